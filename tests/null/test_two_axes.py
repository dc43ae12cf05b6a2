"""Blocks of two axes: which loops may have them, what is cut so, and that nothing else is touched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jax_cocktail.analysis.parallel import (
    AxisRange,
    Digit,
    block_access,
    own_slices,
    parallel_fault,
    scalar_constants,
    tile_access,
)
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.cost.unit_time import Part, operand_bytes, unit_seconds
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.device.unit import unit_of
from jax_cocktail.placement import place as place_module
from jax_cocktail.placement.grid import numbers_of_parts
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.memory import sharing
from jax_cocktail.schedule.products.pack_factors import Packing, pack_factors
from jax_cocktail.schedule.simplify.canonicalise import canonicalise
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.sync.hazards import ALL, Access
from jax_cocktail.utask.ir import LoopUTask, UOperator, UProgram, free_values, is_parallel, operators_in, walk
from tests.null.gpus import plan_for, recurrence
from tests.null.grids import EagerGrids
from tests.null.meshes import agrees, double_buffer, empty, parts, planned, useless_barriers
from tests.null.programs import arguments, build, counted, elementwise, matmul, unverified
from tests.oracle.interpreter.run import run
from tests.oracle.mesh_interpreter import barrier_count

# -- the rule ------------------------------------------------------------------------------------------------


def digits(b, index, across):
    """Of a trip: the number of its part, and that of its block."""
    number = b.constant(across, "int64")
    return [b.emit(kind, (index, number), "int64", ()) for kind in ("div", "rem")]


def gridded(trips, across, size=(1, 1), place=lambda b, row, column: (row, column), other=None):
    """A loop whose trips negate blocks of a matrix, 4 x 6. `place`: the numbers of the block that is written;
    `other`: of the block that is read, if it is another one of the result itself."""

    def body(b, x):
        def trip(index, out):
            row, column = digits(b, index, across)

            def corner(numbers):
                return [
                    b.emit("mul", (n, b.constant(s, "int64")), "int64", ())
                    for n, s in zip(numbers, size, strict=True)
                ]

            source, start = (x, (row, column)) if other is None else (out, other(b, row, column))
            piece = b.emit("dynamic_slice", (source, *corner(start)), "float32", size)
            new = elementwise(b, "neg", piece)
            return (
                b.emit("dynamic_update_slice", (out, new, *corner(place(b, row, column))), "float32", (4, 6)),
            )

        return parts(b, trips, (empty(b, x) if other is None else x,), trip)

    return body


def loop_of(body):
    program = unverified(["float32[4,6]"], body)
    loop = next(s for s in walk(program.entry) if isinstance(s, LoopUTask))
    return loop, scalar_constants(program.entry)


@pytest.mark.parametrize(
    ("trips", "across", "size"), [(24, 6, (1, 1)), (6, 3, (2, 2)), (4, 2, (1, 3)), (2, 2, (4, 3))]
)
def test_a_block_has_a_run_for_every_digit(trips, across, size):
    loop, constants = loop_of(gridded(trips, across, size))
    assert not parallel_fault(loop, constants)
    runs = {AxisRange(0, size[0], Digit(across, trips // across)), AxisRange(1, size[1], Digit(1, across))}
    found = block_access(loop, constants)[loop.outputs[0]]
    assert set(found) == {run for run in runs if run.digit.count > 1}
    for part in range(trips):
        assert [run.digit.of(part) for run in sorted(runs)] == [part // across, part % across]
    if trips > across:  # what asks for slices of one axis is told of none
        assert own_slices(loop, constants) == {}
        assert tile_access(loop, constants)[loop.outputs[0]] is None


def shifted(b, row, column):
    return row, elementwise(b, "add", column, b.constant(1, "int64"))


@pytest.mark.parametrize(
    "body",
    [
        gridded(24, 4),  # the last rows would lie outside
        gridded(20, 6),  # some parts have fewer blocks than others
        gridded(24, 6, place=lambda b, row, column: (row, row)),
        gridded(24, 6, place=lambda b, row, column: (b.constant(0, "int64"), column)),
        gridded(12, 6, size=(2, 2)),  # blocks overlap at the border
        gridded(24, 6, place=shifted),
        gridded(24, 6, other=shifted),  # reads the neighbour's block
        gridded(24, 6, other=lambda b, row, column: (row, row)),
    ],
)
def test_blocks_that_meet_are_refused(body):
    loop, constants = loop_of(body)
    assert "more than its own slice" in parallel_fault(loop, constants)


def test_own_block_of_the_result_is_read():
    loop, constants = loop_of(gridded(24, 6, other=lambda b, row, column: (row, column)))
    assert not parallel_fault(loop, constants)


def test_what_a_part_reads_along_one_axis_is_not_its_own():
    def body(b, x):
        def trip(index, out):
            row, column = digits(b, index, 6)
            zero = b.constant(0, "int64")
            line = b.emit("dynamic_slice", (x, row, zero), "float32", (1, 6))
            top = b.emit("reduce", (line,), "float32", (1,), axes=(1,), op="max")
            return (
                b.emit("dynamic_update_slice", (out, b.reshape(top, (1, 1)), row, column), "float32", (4, 6)),
            )

        return parts(b, 24, (empty(b, x),), trip)

    loop, constants = loop_of(body)
    found = block_access(loop, constants)
    assert not parallel_fault(loop, constants)
    (x,) = (v for v in free_values(loop.body) if v.type.shape == (4, 6))
    assert len(found[loop.outputs[0]]) == 2 and found[x] is None


# -- what is cut ---------------------------------------------------------------------------------------------


def heads(batch: int, count: int, size: int, trips: int) -> UProgram:
    """Every head of every row: h = tanh(h @ w) + the sum of all so far, which stand in a cache."""

    def body(b, x, cache, w):
        zero = b.constant(0, "int64")
        types = {"lhs_batch": (1,), "lhs_contract": (2,), "rhs_batch": (0,), "rhs_contract": (1,)}

        def step(i, h, c):
            y = b.emit("dot", (h, w), "float32", (count, batch, size), **types)
            y = elementwise(
                b, "tanh", b.emit("transpose", (y,), "float32", x.type.shape, permutation=(1, 0, 2))
            )
            row = b.reshape(y, (batch, count, 1, size))
            c = b.emit("dynamic_update_slice", (c, row, zero, zero, i, zero), "float32", c.type.shape)
            total = b.emit("reduce", (c,), "float32", x.type.shape, axes=(2,), op="sum")
            return elementwise(b, "add", y, total), c

        return counted(b, trips, (x, cache), step)

    shape = f"{batch},{count}"
    return build(
        [f"float32[{shape},{size}]", f"float32[{shape},{trips},{size}]", f"float32[{count},{size},{size}]"],
        body,
    )


def normalised(rows: int, columns: int) -> UProgram:
    """h = tanh(h @ w) / the largest of its column: rows meet."""

    def body(b, h, w):
        def step(_, h):
            y = elementwise(b, "tanh", matmul(b, h, w))
            top = b.emit("reduce", (elementwise(b, "abs", y),), "float32", (columns,), axes=(0,), op="max")
            return (elementwise(b, "div", y, b.broadcast(top, (rows, columns), (1,))),)

        return counted(b, 4, (h,), step)

    return build([f"float32[{rows},{columns}]", f"float32[{columns},{columns}]"], body)


_ROWS = {  # attributes of a gather of rows
    "collapsed_slice_dims": (0,),
    "fill_value": bytes(4),
    "mode": "promise_in_bounds",
    "offset_dims": (1,),
    "operand_batching_dims": (),
    "start_index_map": (0,),
    "start_indices_batching_dims": (),
}


def embedded(batch: int, size: int, trips: int) -> UProgram:
    """h = tanh(table[n] @ u + h @ w), where the next rows of the table depend on h."""

    def body(b, table, numbers, u, w):
        def step(i, n, h):
            rows = b.emit(
                "gather",
                (table, b.reshape(n, (batch, 1))),
                "float32",
                (batch, size),
                slice_sizes=(1, size),
                **_ROWS,
            )
            h = elementwise(b, "tanh", elementwise(b, "add", matmul(b, rows, u), matmul(b, h, w)))
            top = b.emit("reduce", (h,), "float32", (batch,), axes=(1,), op="max")
            return elementwise(b, "add", n, elementwise(b, "convert", top, dtype="int32")), h

        return counted(b, trips, (numbers, b.full(0.5, "float32", (batch, size))), step)

    square = f"float32[{size},{size}]"
    return build([f"float32[32,{size}]", f"int32[{batch}]", square, square], body)


def cut(program: UProgram, limits: Limits, units: int = 4) -> UProgram:
    ready = canonicalise(simplify(program))
    found = place(ready, UnitMesh(units=units), limits=limits)
    verify(found)
    return found


def grids(program: UProgram) -> list[int]:
    """Trips of the loops that own blocks of two axes."""
    constants = scalar_constants(program.entry)
    loops = (s for s in walk(program.entry) if is_parallel(s))
    return [
        s.trip_count for s in loops if any(len(r or ()) == 2 for r in block_access(s, constants).values())
    ]


CASES = {
    "rows and heads": (heads(4, 3, 5, 3), EagerGrids(), [12]),
    "rows and columns": (recurrence(4, 8, 5), EagerGrids(last=True), [16]),
    "columns that leave some over": (recurrence(4, 7, 5), EagerGrids(last=True), [16]),
    "a shorter last block": (heads(4, 5, 5, 3), EagerGrids(uneven=True), [12]),
    "rows that meet": (normalised(4, 8), EagerGrids(last=True), []),
}


@pytest.mark.parametrize("near", [1 << 20, 1])  # one copy of the weights for each block, or for all of a part
@pytest.mark.parametrize("name", CASES)
def test_blocks_of_two_axes_on_every_number_of_units(name, near):
    program, limits, expected = CASES[name]
    found = cut(program, limits)
    assert grids(found) == expected
    for x, y in zip(run(found, arguments(program)), run(program, arguments(program)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    ready = planned(pack_factors(simplify(double_buffer(found)), Packing(reads=2, near=near)))
    agrees(found, ready, most=5)
    assert useless_barriers(found, ready) == []
    plain = cut(program, replace(limits, has_grids=False))
    assert barrier_count(ready[0]) == barrier_count(planned(simplify(double_buffer(plain)))[0])


class ForProducts(EagerGrids):
    """Only products ask for a grid."""

    def grid(self, offers, units):
        products = any(isinstance(s, UOperator) and s.kind == "dot" for s in offers[0].statements)
        return EagerGrids.grid(self, offers, units) if products else None


def test_what_lies_between_products_is_cut_like_them():
    """e = sin(d), d = e @ w: the next sine reads the block that its own unit has written."""

    def body(b, d, w):
        def step(_, d):
            e = elementwise(b, "sin", d)
            return (matmul(b, e, w),)

        return counted(b, 4, (d,), step)

    program = build(["float32[4,8]", "float32[8,8]"], body)
    found = cut(program, ForProducts(last=True))
    assert grids(found) == [16, 16]
    ready = planned(simplify(double_buffer(found)))
    agrees(found, ready, most=5)
    plain = cut(program, replace(ForProducts(last=True), has_grids=False))
    assert barrier_count(ready[0]) == barrier_count(planned(simplify(double_buffer(plain)))[0])


class OnlyProducts(ForProducts):
    """Only products are divided."""

    def pays(self, statements, axes=None, parts=0):
        return any(isinstance(s, UOperator) and s.kind == "dot" for s in statements)


def test_a_block_gathers_the_rows_that_it_reads(monkeypatch):
    """The rows of a table that one unit would gather for all others."""
    for module in (place_module, sharing):
        monkeypatch.setattr(module, "PROGRAM", replace(PROGRAM, replicated_bytes=16))
    program = embedded(4, 8, 5)
    found = cut(program, OnlyProducts(last=True, light=64))
    gathered = [o.output.type.shape[0] for o in operators_in(found.entry) if o.kind == "gather"]
    assert grids(found) == [16] and set(gathered) == {1}
    ready = planned(simplify(double_buffer(found)))
    agrees(program, ready, most=5)
    assert useless_barriers(found, ready) == []


def waves(size: int) -> UProgram:
    """Sums of rows that are longer than what they are made of, and of waves that all of them read."""

    def body(b, x, w):
        deep = (6, size, size)
        rows = b.broadcast(elementwise(b, "neg", x), deep, (1, 2))
        sine = elementwise(b, "sin", b.emit("iota", (), "float32", deep[:1], dimension=0))
        added = elementwise(b, "add", rows, b.broadcast(sine, deep, (0,)))
        return (matmul(b, b.emit("reduce", (added,), "float32", deep[1:], axes=(0,), op="sum"), w),)

    return build([f"float32[{size},{size}]"] * 2, body)


@pytest.mark.parametrize("size", [4, 5, 8])
def test_a_block_recomputes_nothing_that_others_have_divided(size, monkeypatch):
    """A part of an array may be computed apart from the others, which form no loop's result then."""
    monkeypatch.setattr(place_module, "PROGRAM", replace(PROGRAM, replicated_bytes=16))
    program = waves(size)
    found = cut(program, EagerGrids(last=True), 3)
    agrees(program, planned(simplify(found)), most=4)


def test_domains_do_not_meet():
    ready = planned(cut(*CASES["rows and heads"][:2]))
    assert not barrier_count(ready[0])


def test_one_axis_on_a_cpu():
    for program, *_ in CASES.values():
        assert grids(cut(program, Limits(flops=4, bytes=8, least_part=1))) == []


def test_equal_blocks_need_no_barrier():
    """A block is the same bytes in the same unit, whichever loop touches it; other blocks are not."""
    first = Access("workspace", 0, 96, True, ("part", 0, 24, 6, 4, 1, 24, 4, 1, 6, 1, 4, 6))
    assert not first.conflicts(replace(first, write=False))
    assert first.conflicts(replace(first, performer=("part", 0, 24, 1, 24, 1, 24, 4)))
    assert first.conflicts(replace(first, performer=ALL))


@pytest.mark.parametrize(("near", "copies"), [(1 << 20, 16), (1, 4)])
def test_weights_that_stay_are_copied_for_every_unit(near, copies):
    """Blocks of equal columns read equal weights: each its own copy, if that can stay in near memory."""
    found = pack_factors(simplify(cut(*CASES["rows and columns"][:2])), Packing(reads=2, near=near))
    shapes = [s.outputs[0].type.shape for s in walk(found.entry) if is_parallel(s)]
    assert shapes[0] == (copies, 8, 2)


# -- on a GPU ------------------------------------------------------------------------------------------------


def test_rows_and_columns_where_all_would_read_all():
    """Units in groups by rows: a step costs what it reads, and more columns stay with each unit."""
    found = plan_for(recurrence(64, 512, 100))
    assert grids(found.program) and set(found.parts) == {32, 128}  # 32 parts of the first state are copied
    part = max(p.bytes for p in found.plan.parts.values())
    assert 512 * 4 * 4 < part <= H200.shared_bytes


def test_a_decoder_gathers_in_its_blocks():
    """Otherwise one unit would gather all rows, and the others would wait for it."""
    program = embedded(64, 256, 6)
    found = plan_for(program)
    loop = next(s for s in found.program.entry.body if isinstance(s, LoopUTask) and not s.parallel)
    gathered = [o.output.type.shape for o in operators_in(loop.body) if o.kind == "gather"]
    assert gathered and all(rows < 64 for rows, _ in gathered)
    given = [a * 0.1 if a.dtype == np.float32 else a for a in arguments(program)]
    for x, y in zip(run(found.program, given), run(program, given), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [4, 16, 64])
def test_heads_fill_the_card(batch):
    """Neither rows nor heads alone are enough parts; at 16 rows, their loops would be divided inside."""
    found = plan_for(heads(batch, 12, 64, 32))
    (trips,) = found.parts
    assert trips > max(batch, 12) and grids(found.program) == [trips]
    assert not any(isinstance(s, UOperator) and s.kind == "wait" for s in walk(found.program.entry))


def test_a_share_of_a_share():
    """A block of a product reads its rows of one operand and its columns of the other."""
    shapes = ["float32[64,32]", "float32[32,128]"]
    (dot,) = build(shapes, lambda b, x, w: (matmul(b, x, w),)).entry.body
    rows = Part({dot.output: 0}, 1 / 16)
    block = Part({dot.output: 1}, 1 / 4, within=rows)
    x, w = dot.inputs
    assert operand_bytes(dot, block) == {x: x.type.nbytes / 16, w: w.type.nbytes / 4}
    assert block.of(dot)(block.share) == 1 / 64
    unit = unit_of(H200)
    assert unit_seconds((dot,), unit, block) < unit_seconds((dot,), unit, rows)
    far = replace(block, far=frozenset({x}))
    assert unit_seconds((dot,), unit, far) > unit_seconds((dot,), unit, block)


def test_numbers_of_parts():
    assert numbers_of_parts(128, 256, 132) == [128, 64, 32, 16, 8, 4, 2]
    assert numbers_of_parts(115, 3797, 132) == [115, 44, 33, 26, 23, 22, 18, 16, 5]


def test_one_row_has_one_axis():
    assert grids(plan_for(recurrence(1, 512, 100)).program) == []
