"""Placement of whole programs: what becomes a domain, what is split or left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.compiler import emit
from jax_cocktail.cost.cpu import our_price
from jax_cocktail.device.host import SERVER
from jax_cocktail.placement.bound import recurrence_bound
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.placement.push_slices import push_slices
from jax_cocktail.placement.tile_groups import divide
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import LoopUTask, UOperator, UProgram, is_parallel, walk
from tests.null.programs import (
    arguments,
    branch,
    build,
    counted,
    elementwise,
    lstm,
    matmul,
    random_program,
    same_results,
    while_loop,
)
from tests.oracle.interpreter.run import run

SMALL = Limits(flops=20, bytes=1e9, light=4, least_part=2)
TWO = UnitMesh(units=2)


def placed(program: UProgram, mesh: UnitMesh = TWO, limits: Limits = SMALL, notes=None) -> UProgram:
    """The placed program, whose results are those of the original."""
    after = place(program, mesh, notes, limits)
    verify(after)
    given = arguments(program)
    for x, y in zip(run(after, given), run(program, given), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    return after


def loops(region) -> list[LoopUTask]:
    return [s for s in region.body if isinstance(s, LoopUTask)]


def parallel(program: UProgram) -> list[LoopUTask]:
    return [s for s in walk(program.entry) if is_parallel(s)]


def kinds(region) -> list[str]:
    return [s.kind for s in region.body if isinstance(s, UOperator)]


# -- gate splitting ------------------------------------------------------------------------------------------
def test_gates_become_an_axis():
    program = lstm(1, 6)
    after = push_slices(program)
    verify(after)
    same_results(program, after)
    (loop,) = loops(after.entry)
    (dot,) = (s for s in loop.body.body if isinstance(s, UOperator) and s.kind == "dot")
    assert dot.output.type.shape == (1, 4, 6)
    assert "reshape" in kinds(after.entry)  # of the weights, once


def test_projection_in_front_is_made_split():
    def body(b, x, w, u):
        xs = matmul(b, x, w)

        def step(i, h):
            row = b.emit("dynamic_slice", (xs, i, b.constant(0, "int64")), "float32", (1, 8))
            z = elementwise(b, "add", row, matmul(b, h, u))
            p, q = (b.emit("slice", (z,), "float32", (1, 4), starts=(0, k), strides=(1, 1)) for k in (0, 4))
            return (elementwise(b, "tanh", elementwise(b, "mul", p, q)),)

        return counted(b, 5, (b.full(0.5, "float32", (1, 4)),), step)

    program = build(["float32[5,3]", "float32[3,8]", "float32[4,8]"], body)
    after = push_slices(program)
    verify(after)
    same_results(program, after)
    dots = [s for s in after.entry.body if isinstance(s, UOperator) and s.kind == "dot"]
    assert [d.output.type.shape for d in dots] == [(5, 2, 4)]


def test_an_operand_whose_gates_are_made_by_a_reshape():
    """No axis of the reshape's operand holds the gates; its result is split, not the reshape."""

    def body(b, bias, w):
        def step(_, h):
            z = elementwise(b, "add", b.reshape(bias, (2, 8)), matmul(b, h, w))
            p, q = (b.emit("slice", (z,), "float32", (2, 4), starts=(0, k), strides=(1, 1)) for k in (0, 4))
            return (elementwise(b, "tanh", elementwise(b, "mul", p, q)),)

        return counted(b, 3, (b.full(0.5, "float32", (2, 4)),), step)

    program = build(["float32[16]", "float32[4,8]"], body)
    after = push_slices(program)
    assert after is not program
    verify(after)
    same_results(program, after)


def test_gates_along_the_batch_axis_of_a_product():
    """Both operands are split, and the product has one more batch axis."""

    def body(b, w):
        def step(_, h):
            batched = {"lhs_batch": (0,), "lhs_contract": (1,), "rhs_batch": (0,), "rhs_contract": (1,)}
            z = b.emit("dot", (h, w), "float32", (8, 3), **batched)
            p, q = (b.emit("slice", (z,), "float32", (4, 3), starts=(k, 0), strides=(1, 1)) for k in (0, 4))
            gate = elementwise(b, "tanh", elementwise(b, "mul", p, q))
            return (b.emit("concatenate", (gate, p), "float32", (8, 3), dimension=0),)

        return counted(b, 3, (b.full(0.5, "float32", (8, 3)),), step)

    program = build(["float32[8,3,3]"], body)
    after = push_slices(program)
    verify(after)
    same_results(program, after)
    (dot,) = (s for s in walk(after.entry) if isinstance(s, UOperator) and s.kind == "dot")
    assert dot.output.type.shape == (2, 4, 3)
    assert dot.ints("lhs_batch") == dot.ints("rhs_batch") == (0, 1)


@pytest.mark.parametrize("starts", [(0, 3), (0, 2, 4)])
def test_slices_of_other_places_stay(starts):
    """Slices that overlap, or whose start is no multiple of their size."""

    def body(b, w):
        def step(_, h):
            z = matmul(b, h, w)
            parts = [b.emit("slice", (z,), "float32", (4,), starts=(k,), strides=(1,)) for k in starts]
            for part in parts[1:]:
                parts[0] = elementwise(b, "add", parts[0], part)
            return (elementwise(b, "tanh", parts[0]),)

        return counted(b, 3, (b.full(1.0, "float32", (4,)),), step)

    program = build(["float32[4,8]"], body)
    assert push_slices(program) is program


def test_whole_product_may_be_read_too():
    """A product that something else reads whole is put together again."""

    def body(b, w):
        def step(_, h, kept):
            z = elementwise(b, "tanh", matmul(b, h, w))
            first = b.emit("slice", (z,), "float32", (4,), starts=(0,), strides=(1,))
            last = b.emit("slice", (z,), "float32", (4,), starts=(4,), strides=(1,))
            return elementwise(b, "add", first, last), z

        return counted(b, 3, (b.full(1.0, "float32", (4,)), b.full(0.0, "float32", (8,))), step)

    program = build(["float32[4,8]"], body)
    after = push_slices(program)
    verify(after)
    same_results(program, after)


# -- domains -------------------------------------------------------------------------------------------------
def test_batch_rows_are_a_domain():
    after = placed(lstm(6, 4))
    (outer,) = loops(after.entry)
    assert outer.parallel and outer.trip_count == 2
    (inner,) = loops(outer.body)
    assert not inner.parallel and inner.trip_count == 5
    assert [v.type.shape for v in inner.carried][:2] == [(3, 4), (3, 4)]


def test_heads_are_a_domain_of_decoding():
    """The time loop moves inside: attention needs no barrier (design, section 1)."""

    def body(b, x, keys, weights):
        head = {"lhs_batch": (0,), "rhs_batch": (0,)}

        def step(i, x, keys):
            zero = b.constant(0, "int64")
            new = b.emit(
                "dot", (x, weights), "float32", (4, 1, 3), lhs_contract=(2,), rhs_contract=(1,), **head
            )
            keys = b.emit("dynamic_update_slice", (keys, new, zero, i, zero), "float32", (4, 5, 3))
            scores = b.emit(
                "dot", (x, keys), "float32", (4, 1, 5), lhs_contract=(2,), rhs_contract=(2,), **head
            )
            total = b.emit("reduce", (scores,), "float32", (4, 1), axes=(2,), op="max")
            scores = elementwise(b, "sub", scores, b.broadcast(total, (4, 1, 5), (0, 1)))
            out = b.emit(
                "dot", (scores, keys), "float32", (4, 1, 3), lhs_contract=(2,), rhs_contract=(1,), **head
            )
            return elementwise(b, "tanh", out), keys

        return counted(b, 5, (x, keys), step)

    program = build(["float32[4,1,3]", "float32[4,5,3]", "float32[4,3,3]"], body)
    notes: list[str] = []
    after = placed(program, notes=notes)
    (outer,) = parallel(after)
    assert outer in after.entry.body and len(loops(outer.body)) == 1
    assert any("never wait" in note for note in notes)


def test_counter_of_a_domain_is_kept_outside():
    def body(b, x):
        one, limit = b.constant(1, "int32"), b.constant(4, "int32")

        def step(y, count):
            return elementwise(b, "sin", y), elementwise(b, "add", count, one)

        return while_loop(
            b,
            (x, b.constant(0, "int32")),
            lambda _, count: elementwise(b, "lt", count, limit, dtype="bool"),
            step,
        )

    program = build(["float32[8,6]"], body)
    after = placed(program)
    skeleton, outer = loops(after.entry)
    assert [v.type.shape for v in skeleton.carried] == [()] and kinds(skeleton.body) == ["add"]
    assert outer.parallel and len(loops(outer.body)) == 1


def test_condition_on_the_class_keeps_the_loop_outside():
    def body(b, x):
        def goes_on(y):
            largest = b.emit("reduce", (y,), "float32", (), axes=(0,), op="max")
            return b.emit("gt", (largest, b.constant(0.3, "float32")), "bool", ())

        half = b.full(0.5, "float32", (8,))
        return while_loop(
            b, (x,), goes_on, lambda y: (elementwise(b, "mul", elementwise(b, "sin", y), half),)
        )

    after = placed(build(["float32[8]"], body))
    (outer,) = loops(after.entry)
    assert not outer.parallel and len(parallel(after)) == 1
    assert parallel(after)[0] in outer.body.body


# -- splits --------------------------------------------------------------------------------------------------
def test_hidden_axis_of_a_cell_is_split():
    """One crossing per step: the new hidden state. The cell state and the rows are updated in place."""
    notes: list[str] = []
    after = placed(lstm(1, 6), notes=notes)
    outer = next(s for s in loops(after.entry) if not s.parallel)
    (inner,) = loops(outer.body)
    assert inner.parallel and inner.trip_count == 2
    h, c, ys = outer.carried
    assert set(inner.initial) >= {c, ys} and h not in inner.initial
    assert any("1 barrier per iteration; the recurrence bound is 1" in note for note in notes)


@pytest.mark.parametrize(("hidden", "units"), [(7, 2), (7, 3), (11, 4), (5, 2)])
def test_uneven_hidden_sizes(hidden, units):
    after = placed(lstm(1, hidden), UnitMesh(units=units))
    assert {(s.trip_count, s.first) for s in parallel(after)} == {(units - 1, 0), (1, units - 1)}


def test_units_compute_uneven_parts_at_the_same_time():
    """Two loops of one part each are not priced one after the other."""
    divided = emit(lstm(1, 253), candidate=Candidate(units=2)).program
    assert {(s.trip_count, s.first) for s in parallel(divided)} == {(1, 0), (1, 1)}
    whole = our_price(emit(lstm(1, 253)).program, 1, SERVER)
    assert our_price(divided, 2, SERVER).seconds < 0.75 * whole.seconds


def test_uneven_parts_in_a_branch():
    """Those of a side are priced as simultaneous, too. The branch as a whole touches more bytes."""

    def twice(b, x, w):
        return [matmul(b, matmul(b, x, w), w)]

    def either(b, x, w, flag):
        return branch(b, flag, lambda: twice(b, x, w), lambda: twice(b, x, w))

    types = ["float32[1,509]", "float32[509,509]"]
    inside, outside = build([*types, "int32[]"], either), build(types, twice)
    planned = (emit(p, candidate=Candidate(units=2)).program for p in (inside, outside))
    price = [our_price(p, 2, SERVER).seconds for p in planned]
    assert price[0] < 1.6 * price[1]
    alone = our_price(emit(outside).program, 1, SERVER).seconds
    assert price[1] < 0.75 * alone


def test_groups_of_a_convolution_are_no_axis_of_any_parts():
    """Two input features belong to one output feature: no parts of two lengths fit both."""
    sizes = {"batch_group_count": 1, "feature_group_count": 45, "window_strides": (1,), "padding": ((1, 1),)}
    sizes |= {"lhs_dilation": (1,), "rhs_dilation": (1,)}
    specs = {"lhs_spec": (0, 2, 1), "rhs_spec": (2, 1, 0), "out_spec": (0, 2, 1)}

    def body(b, x, w):
        return [b.emit("conv", (x, w), "float32", (1, 64, 45), **sizes, **specs)]

    program = build(["float32[1,64,90]", "float32[3,2,45]"], body)
    assert all(not s.first for s in parallel(placed(program, limits=replace(SMALL, lanes=1))))


def test_uneven_rows_with_a_loop_inside():
    """Each part runs whole loops, and the last one is about as long as the others."""
    after = placed(lstm(17, 4))
    parts = [s for s in parallel(after) if s in after.entry.body and loops(s.body)]
    rows = [loops(s.body)[0].carried[0].type.shape[0] for s in parts]
    assert sum(n * s.trip_count for n, s in zip(rows, parts, strict=True)) == 17
    assert max(rows) - min(rows) <= 1


def test_branch_is_split_as_a_whole():
    def body(b, x, w, which):
        def step(_, h):
            return branch(b, which, lambda: (elementwise(b, "tanh", matmul(b, h, w)),), lambda: (h,))

        return counted(b, 4, (x,), step)

    program = build(["float32[6]", "float32[6,6]", "int32[]"], body)
    after = placed(program)
    (inner,) = (s for s in parallel(after) if s not in after.entry.body)
    assert any(not isinstance(s, (UOperator, LoopUTask)) for s in inner.body.body)


def test_an_operand_of_recomputed_values_is_not_overwritten():
    """Rows are computed with all of the vector that another part of the branch would replace."""

    def body(b, m, x, y, which):
        def other():
            wide = b.broadcast(x, (4, 6), (1,))
            return elementwise(b, "mul", elementwise(b, "sin", m), wide), elementwise(b, "sin", y)

        return branch(b, which, lambda: (m, x), other)

    program = build(["float32[4,6]", "float32[6]", "float32[6]", "int32[]"], body)
    assert parallel(placed(program, limits=Limits(flops=4, bytes=8, least_part=1, light=2, lanes=1)))


def test_small_update_of_a_large_array_is_not_copied():
    """Rows are read anywhere, so the array cannot be updated by parts; the update stays at mesh level."""

    def body(b, rows, w):
        def step(i, rows):
            zero, first = b.constant(0, "int64"), b.constant(0, "int64")
            row = b.emit("dynamic_slice", (rows, first, zero), "float32", (1, 4))
            new = elementwise(b, "tanh", matmul(b, row, w))
            return (b.emit("dynamic_update_slice", (rows, new, i, zero), "float32", (9, 4)),)

        return counted(b, 5, (rows,), step)

    after = placed(build(["float32[9,4]", "float32[4,4]"], body))
    outer = next(s for s in loops(after.entry) if not s.parallel)
    assert "dynamic_update_slice" in kinds(outer.body)
    assert [s.outputs[0].type.shape for s in loops(outer.body)] == [(1, 4)]


def test_a_small_update_of_an_array_that_parts_make_is_cut():
    """The gradient of one element of each row: zeros, and one number per row."""

    def body(b, at, x):
        zeros = b.full(0.0, "float32", (8, 50))
        table, ones = b.reshape(at, (8, 1, 1)), b.full(1.0, "float32", (8, 1))
        axes = {"inserted_window_dims": (1,), "scatter_dims_to_operand_dims": (1,), "update_window_dims": ()}
        batch = {"operand_batching_dims": (0,), "scatter_indices_batching_dims": (0,)}
        operands, attributes = (zeros, table, ones), {"mode": "fill_or_drop", "op": "add", **axes, **batch}
        one = b.emit("scatter", operands, "float32", (8, 50), **attributes)
        return (elementwise(b, "sub", elementwise(b, "exp", x), one),)

    after = placed(build(["int32[8]", "float32[8,50]"], body))
    (loop,) = parallel(after)
    assert "scatter" in kinds(loop.body) and "scatter" not in kinds(after.entry)


def test_replicated_values_are_not_split():
    def body(b, x):
        return counted(b, 4, (x,), lambda _, y: (elementwise(b, "neg", y),))

    program = build(["float32[4]"], body)
    notes: list[str] = []
    assert place(program, TWO, notes) is program


def test_what_is_read_behind_a_barrier_is_computed_there():
    """`scaled` would be stored before the barrier of the maximum, and loaded behind it; `shared` is read
    before, too."""

    def body(b, x, y):
        scaled, shared = elementwise(b, "tanh", y), elementwise(b, "exp", x)
        parts = b.emit("reduce", (shared,), "float32", (64,), axes=(1,), op="max")
        most = b.emit("reduce", (parts,), "float32", (), axes=(0,), op="max")
        spread = b.broadcast(most, (64, 64), ())
        return [elementwise(b, "add", elementwise(b, "mul", scaled, spread), shared)]

    limits = replace(SMALL, flops=2000)
    first, *_, last = parallel(placed(build(["float32[64,64]"] * 2, body), limits=limits))
    assert "exp" in kinds(first.body) and "tanh" not in kinds(first.body)
    assert "tanh" in kinds(last.body) and "exp" not in kinds(last.body)
    early = parallel(placed(build(["float32[64,64]"] * 2, body), limits=replace(limits, delays=False)))
    assert "tanh" in kinds(early[0].body)


def test_one_unit_places_nothing():
    program = lstm(6, 4)
    assert place(program, UnitMesh()) is program


def test_work_at_the_top_is_split_too():
    after = placed(build(["float32[6,4]", "float32[4,6]"], lambda b, x, w: (matmul(b, x, w),)))
    (outer,) = loops(after.entry)
    assert outer.parallel and kinds(outer.body).count("dot") == 1


def test_empty_and_tiny_programs():
    zero_rows = build(["float32[0,4]", "float32[4,4]"], lambda b, x, w: (matmul(b, x, w),))
    assert place(zero_rows, TWO, limits=SMALL) is zero_rows
    no_trips = build(
        ["float32[6]"], lambda b, x: counted(b, 0, (x,), lambda _, y: (elementwise(b, "exp", y),))
    )
    placed(no_trips)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    program = random_program(seed)
    after = place(
        program, UnitMesh(units=3), None, Limits(flops=1, bytes=1, light=2, least_part=1, again=9.0)
    )
    verify(after)
    same_results(program, after, seed)


# -- the recurrence bound ------------------------------------------------------------------------------------
def chain(depth: int, carries: int) -> UProgram:
    """`depth` products on one cycle; the state passes through `carries` carries, one per iteration."""

    def body(b, w):
        def step(_, *state):
            h = state[-1]
            for _ in range(depth):
                h = elementwise(b, "tanh", matmul(b, h, w))
            return h, *state[:-1]

        return counted(b, 6, [b.full(1.0, "float32", (6,))] * carries, step)

    return build(["float32[6,6]"], body)


@pytest.mark.parametrize(
    ("depth", "carries", "bound"), [(1, 1, 1), (2, 1, 2), (3, 1, 3), (1, 2, 1), (3, 2, 2)]
)
def test_recurrence_bound(depth, carries, bound):
    program = chain(depth, carries)
    (loop,) = loops(program.entry)
    division = divide(loop.body, 2, SMALL)
    assert recurrence_bound(loop, division) == bound
    assert division.barrier_count == depth


def test_layers_inside_time_have_a_bound_of_one():
    """What lies on no cycle counts no barrier, although all three layers meet in every step."""

    def body(b, x, *weights):
        def step(_, *state):
            below, new = x, []
            for h, w in zip(state, weights, strict=True):
                below = elementwise(b, "tanh", elementwise(b, "add", matmul(b, below, w), matmul(b, h, w)))
                new.append(below)
            return new

        return counted(b, 6, [b.full(0.0, "float32", (6,))] * 3, step)

    program = build(["float32[6]"] + ["float32[6,6]"] * 3, body)
    (loop,) = loops(program.entry)
    division = divide(loop.body, 2, SMALL)
    assert recurrence_bound(loop, division) == 1
    assert division.barrier_count == 3


def test_element_wise_recurrence_needs_no_barrier():
    def body(b, x):
        def step(_, h, total):
            return elementwise(b, "sin", h), b.emit("reduce", (h,), "float32", (), axes=(0,), op="sum")

        return counted(b, 6, (x, b.constant(0.0, "float32")), step)

    program = build(["float32[8]"], body)
    (loop,) = loops(program.entry)
    division = divide(loop.body, 2, SMALL)
    assert recurrence_bound(loop, division) == 0
