"""Pipelining: the wavefront over recurrences that feed each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import LoopTuning
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.products.pack_factors import Packing, pack_factors
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.sync.hazards import Access
from jax_cocktail.utask.candidate import Candidate, way
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Stage, UOperator, is_parallel, walk
from jax_cocktail.utask.printer import fingerprint, print_statement
from jax_cocktail.utask.types import TensorType, Value
from tests.null.meshes import agrees, double_buffer, mapped, planned, useless_barriers
from tests.null.programs import arguments, build, counted, elementwise, matmul, while_loop
from tests.null.wavefronts import (
    ALWAYS,
    RandomChain,
    diagonals,
    is_outlined,
    pipelined,
    put_row,
    row,
    stacked_lstm,
)
from tests.oracle.interpreter.run import run
from tests.oracle.mesh_interpreter import barrier_count, run_mesh, simulate

EAGER = Limits(flops=4, bytes=8, least_part=1, light=2, lanes=1)


def equal(program, after, seed=0, tolerance=1e-5):
    values = arguments(program, seed)
    for x, y in zip(run(after, values), run(program, values), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


# What a device has beside that. Parts that stay with their units are packed, whatever they are.
NEAR = replace(EAGER, takes_operands=False)


def placed(program, units, distributed=True, limits=EAGER):
    """Pipelined, placed and unrolled, as the compiler does it."""
    after = pipelined(program)
    if distributed:
        after = distribute(after, LoopTuning(flops=0, trips=2))
    after = simplify(double_buffer(place(simplify(after), UnitMesh(units=units), limits=limits)))
    return pack_factors(after, Packing(reads=2, near=1 << 20 if limits is NEAR else 0))


def waits(region):
    return sum(isinstance(s, UOperator) and s.kind == "wait" for s in region.body)


# -- the transform -------------------------------------------------------------------------------------------
@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", range(80))
def test_random_chains(seed):
    chain = RandomChain(seed)
    program = chain.program()
    after = pipelined(program)
    verify(after)
    equal(program, after, seed)
    if chain.trips > 1:
        (loop,) = diagonals(after)
        stages = [s for s in loop.body.body if is_outlined(s)]
        assert len(stages) >= chain.depth
        assert [s.stage for s in stages] == [Stage(k, len(stages)) for k in range(len(stages))]
        assert loop.trip_count == chain.trips + len(stages) - 1


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("trips", [2, 7])
def test_a_stage_per_layer(depth, trips):
    program = stacked_lstm(depth, trips)
    after = pipelined(program)
    equal(program, after)
    (loop,) = diagonals(after)
    assert loop.trip_count == trips + depth - 1
    assert sum(map(is_outlined, loop.body.body)) == depth
    products = [s for s in after.entry.body if isinstance(s, UOperator) and s.kind == "dot"]
    assert [p.output.type.shape for p in products] == [(trips, 1, 64)]  # of the first layer's input
    assert len(loop.carried) == 2 * depth + 1  # what a layer hands on is its state; rows of the last one


def test_products_after_the_last_recurrence_are_one_product():
    def body(b, xs, w0, u0, w1, u1, out):
        zero, rows = b.full(0.0, "float32", (1, 4)), b.full(0.0, "float32", (6, 1, 8))

        def step(t, h, g, ys):
            h = elementwise(b, "tanh", elementwise(b, "add", matmul(b, row(b, xs, t), w0), matmul(b, h, u0)))
            g = elementwise(b, "tanh", elementwise(b, "add", matmul(b, h, w1), matmul(b, g, u1)))
            return [h, g, put_row(b, ys, matmul(b, g, out), t)]

        return counted(b, 6, [zero, zero, rows], step)

    program = build(["float32[6,1,4]", *["float32[4,4]"] * 4, "float32[4,8]"], body)
    after = pipelined(program)
    equal(program, after)
    shapes = [s.output.type.shape for s in after.entry.body if isinstance(s, UOperator) and s.kind == "dot"]
    assert (6, 1, 8) in shapes
    (loop,) = diagonals(after)
    assert loop.trip_count == 7


def test_a_loop_inside_a_loop():
    """Pipelined where it stands."""

    def body(b, xs, *weights):
        def outer(_, total):
            zero = b.full(0.0, "float32", (1, 4))

            def step(t, h, g):
                h = elementwise(b, "tanh", elementwise(b, "add", row(b, xs, t), matmul(b, h, weights[0])))
                g = elementwise(
                    b, "tanh", elementwise(b, "add", matmul(b, h, weights[1]), matmul(b, g, weights[2]))
                )
                return h, g

            _, g = counted(b, 5, [zero, zero], step)
            return (elementwise(b, "add", total, g),)

        return counted(b, 3, [b.full(0.0, "float32", (1, 4))], outer)

    program = build(["float32[5,1,4]", *["float32[4,4]"] * 3], body)
    after = pipelined(program)
    equal(program, after)
    assert [loop.trip_count for loop in diagonals(after)] == [6]


# -- refusals ------------------------------------------------------------------------------------------------
def refused(program, limits=ALWAYS):
    heard = []
    after = pipelined(program, limits, heard.append)
    assert not diagonals(after)
    assert not any(remark.fired for remark in heard)
    return " ".join(remark.text for remark in heard)


def two_layers(b, w, x, h, g):
    h = elementwise(b, "tanh", elementwise(b, "add", x, matmul(b, h, w)))
    return h, elementwise(b, "tanh", elementwise(b, "add", matmul(b, h, w), matmul(b, g, w)))


def test_while_loops_stay():
    def body(b, x, w):
        zero = b.full(0.0, "float32", (1, 4))

        def condition(n, *_):
            return elementwise(b, "lt", n, b.constant(3, "int32"), dtype="bool")

        def step(n, h, g):
            return (elementwise(b, "add", n, b.constant(1, "int32")), *two_layers(b, w, x, h, g))

        return while_loop(b, [b.constant(0, "int32"), zero, zero], condition, step)

    assert "its end depends" in refused(build(["float32[1,4]", "float32[4,4]"], body))


def test_one_recurrence_is_no_wavefront():
    assert refused(stacked_lstm(1, 7)) == ""


def test_recurrences_side_by_side_are_no_wavefront():
    def body(b, xs, w, u):
        zero = b.full(0.0, "float32", (1, 4))

        def step(t, h, g):
            x = row(b, xs, t)
            return [
                elementwise(b, "tanh", elementwise(b, "add", x, matmul(b, h, w))),
                elementwise(b, "tanh", elementwise(b, "add", x, matmul(b, g, u))),
            ]

        return counted(b, 7, [zero, zero], step)

    text = refused(build(["float32[7,1,4]", *["float32[4,4]"] * 2], body))
    assert "do not feed each other" in text


def test_a_cycle_over_both_layers_is_one_recurrence():
    """The first layer reads what the last one made a step before."""

    def body(b, x, w):
        zero = b.full(0.0, "float32", (1, 4))

        def step(_, h, g):
            return two_layers(b, w, elementwise(b, "add", x, g), h, g)

        return counted(b, 7, [zero, zero], step)

    assert refused(build(["float32[1,4]", "float32[4,4]"], body)) == ""


def test_caches_do_not_cross_stages():
    """All rows so far of one layer are read by the next."""

    def body(b, x, w):
        zero, rows = b.full(0.0, "float32", (1, 4)), b.full(0.0, "float32", (7, 1, 4))

        def step(t, h, cache, g):
            h = elementwise(b, "tanh", elementwise(b, "add", x, matmul(b, h, w)))
            cache = put_row(b, cache, h, t)
            seen = b.emit("reduce", (cache,), "float32", (1, 4), axes=(0,), op="max")
            g = elementwise(b, "tanh", elementwise(b, "add", matmul(b, seen, w), matmul(b, g, w)))
            return [h, cache, g]

        return counted(b, 7, [zero, rows, zero], step)

    program = build(["float32[1,4]", "float32[4,4]"], body)
    after = pipelined(program)  # what is seen of the cache is computed where the cache is
    equal(program, after)
    assert len(diagonals(after)) == 1

    def crossing(b, x, w):
        zero, rows = b.full(0.0, "float32", (1, 4)), b.full(0.0, "float32", (4, 4))

        def step(t, h, cache, g):
            h = elementwise(b, "tanh", elementwise(b, "add", x, matmul(b, h, w)))
            starts = (b.constant(1, "int64"), b.constant(0, "int64"))
            cache = b.emit("dynamic_update_slice", (cache, h, *starts), "float32", (4, 4))
            return [h, cache, elementwise(b, "tanh", matmul(b, g, matmul(b, cache, w)))]

        return counted(b, 7, [zero, rows, zero], step)

    text = refused(build(["float32[1,4]", "float32[4,4]"], crossing))
    assert "updates in place" in text


def test_limits():
    program = stacked_lstm(2, 7)
    assert "too few trips" in refused(program, LoopTuning(flops=0, trips=8))
    assert "handed on" in refused(program, LoopTuning(flops=0, trips=1, handed_bytes=8))
    assert "2 stages are too many" in refused(program, LoopTuning(flops=0, trips=1, stages=1))
    after = pipelined(program, LoopTuning(flops=0, trips=1, batched_bytes=8))  # nothing is batched
    assert [s for s in after.entry.body if isinstance(s, UOperator) and s.kind == "dot"] == []
    equal(program, after)


def test_parallel_loops_stay():
    program = build(["float32[4,6]"], lambda b, x: (mapped(b, x, lambda v: elementwise(b, "neg", v), 4),))
    assert pipelined(program).entry.body == simplify(program).entry.body


# -- units ---------------------------------------------------------------------------------------------------
CHAINS = [seed for seed in range(20) if RandomChain(seed).trips > 1]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", CHAINS)
def test_random_chains_on_units(seed):
    units = 2 + seed % 5
    program = placed(RandomChain(seed).program(), units, distributed=seed % 2 == 0)
    verify(program)
    ready = planned(program)
    values = arguments(program, seed)
    expected = run(program, values)
    for count in (1, 2, 3, 6):
        for x, y in zip(run_mesh(*ready, values, count, order=[*range(count)][::-1]), expected, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", CHAINS)
def test_random_chains_in_parts_that_do_not_divide_them(seed):
    size = 5 + 2 * (seed % 2)
    program = placed(RandomChain(seed, size).program(), 6 + seed % 8, seed % 3 > 0, (EAGER, NEAR)[seed % 2])
    verify(program)
    ready = planned(program)
    values = arguments(program, seed)
    expected = run(program, values)
    for count in (1, 3, ready[1].most_units):
        for x, y in zip(run_mesh(*ready, values, count, order=[*range(count)][::-1]), expected, strict=True):
            np.testing.assert_array_equal(x, y)
    equal(RandomChain(seed, size).program(), program, seed)


@pytest.mark.parametrize(
    ("depth", "units", "batch", "size"),
    [(2, 4, 1, 8), (2, 4, 3, 8), (3, 8, 1, 8), (3, 16, 3, 8), (4, 4, 1, 8), (2, 6, 1, 7), (3, 12, 3, 5)],
)
def test_one_barrier_per_diagonal(depth, units, batch, size):
    trips = 10 - depth
    before = stacked_lstm(depth, trips, batch, size)
    program = placed(before, units, distributed=False)
    ready = planned(program)
    (loop,) = diagonals_of_units(ready[0])
    assert loop.trip_count * 2 + 1 == trips + depth - 1
    assert waits(loop.body) == 2
    assert not any(waits(r) for s in walk(loop.body) for r in getattr(s, "regions", ()))
    agrees(program, ready, most=3)
    values = arguments(program, 0)
    run_mesh(*ready, values, units + 1, order=[*range(units + 1)][::-1])  # raises at a race
    assert useless_barriers(program, ready) == []
    equal(before, program)


def diagonals_of_units(program):
    """The sequential loops around parallel ones."""
    loops = [s for s in program.entry.body if isinstance(s, LoopUTask) and not s.parallel]
    return [s for s in loops if any(is_parallel(t) for t in s.body.body)]


def test_every_stage_has_units_of_its_own():
    program = placed(stacked_lstm(3, 8), 12)
    ready, plan = planned(program)
    (loop,) = diagonals_of_units(ready)
    stages = [(s.first, s.trip_count) for s in loop.body.body if isinstance(s, LoopUTask)]
    assert stages == [(0, 4), (4, 4), (8, 4)] * 2
    packs = [(s.first, s.trip_count) for s in ready.entry.body if is_parallel(s)]
    assert {(0, 4), (4, 4), (8, 4)} <= set(packs)  # weights are packed by the units that use them
    assert plan.most_units >= 12


def test_parts_need_not_divide_the_axis():
    """7 columns in 4 parts: what a stage makes has room for 8, of which all others see 7."""
    program = placed(stacked_lstm(2, 6, size=7), 6, distributed=False)
    (loop,) = diagonals_of_units(program)
    stages = [s for s in loop.body.body if isinstance(s, LoopUTask)]
    assert {(s.first, s.trip_count) for s in stages} == {(0, 2), (2, 4)}
    assert {v.type.shape for s in stages for v in s.outputs} == {(1, 8), (6, 1, 8)}
    seen = [s for s in loop.body.body if isinstance(s, UOperator) and s.kind == "slice"]
    assert seen and {s.output.type.shape for s in seen} == {(1, 7)}


def test_stacked_results_stay_in_even_parts():
    """Unless there are none, their rows are written where they belong, not copied there in the end."""
    (loop,) = diagonals_of_units(placed(stacked_lstm(2, 6, size=28), 7, distributed=False))
    first, last = [s for s in loop.body.body if isinstance(s, LoopUTask)][:2]
    assert (last.trip_count, {v.type.shape for v in last.outputs}) == (4, {(1, 28), (6, 1, 28)})
    assert (first.trip_count, {v.type.shape for v in first.outputs}) == (3, {(1, 36)})


def test_stages_with_more_work_have_more_units():
    """The product with the inputs of the first layer is made for all steps at once."""
    (loop,) = diagonals_of_units(placed(stacked_lstm(2, 6, size=64), 12))
    assert {(s.first, s.trip_count) for s in loop.body.body if isinstance(s, LoopUTask)} == {(0, 4), (4, 8)}


def test_too_few_units_for_all_stages():
    """Each stage takes all of them, one after the other."""
    (loop,) = diagonals_of_units(placed(stacked_lstm(4, 6), 4))
    assert {(s.first, s.trip_count) for s in loop.body.body if isinstance(s, LoopUTask)} == {(0, 4)}


def test_a_stage_writes_its_results_where_they_belong():
    """Nothing is kept until after the guard: parts hold one branch, whose regions write."""
    program = placed(stacked_lstm(2, 6, size=8), 4, distributed=False)
    (loop,) = diagonals_of_units(program)
    for stage in (s for s in loop.body.body if isinstance(s, LoopUTask)):
        (branch,) = stage.body.body
        assert isinstance(branch, BranchUTask)
        assert stage.body.results == branch.outputs
        passed_on, computed = branch.branches
        assert set(passed_on.results) & set(stage.carried)  # the cell state stays where it is
        assert not set(computed.results) & set(stage.carried)


def test_parts_keep_weights_rather_than_rows():
    """Rows could be cut without any meeting, but every unit would read all weights."""
    program = placed(stacked_lstm(2, 6, batch=8), 8, distributed=False)
    (loop,) = diagonals_of_units(program)
    for stage in (s for s in loop.body.body if isinstance(s, LoopUTask)):
        dots = [s for s in walk(stage.body) if isinstance(s, UOperator) and s.kind == "dot"]
        assert dots and all(d.output.type.shape[0] == 8 for d in dots)


def test_a_stage_that_meets_inside_is_run_by_all():
    """Two products on the cycle of a layer: placement divides it as any branch."""

    def body(b, xs, w, u):
        zero = b.full(0.0, "float32", (1, 8))

        def step(t, h, g):
            for_h = elementwise(b, "tanh", matmul(b, matmul(b, h, w), u))
            h = elementwise(b, "add", row(b, xs, t), for_h)
            return h, elementwise(b, "tanh", elementwise(b, "add", matmul(b, h, w), matmul(b, g, u)))

        return counted(b, 5, [zero, zero], step)

    before = build(["float32[5,1,8]", *["float32[8,8]"] * 2], body)
    notes: list[str] = []
    after = place(simplify(pipelined(before)), UnitMesh(units=4), notes, EAGER)
    assert any("a barrier would be in it" in note for note in notes)
    verify(after)
    agrees(after, planned(after), most=4)


# -- what the rest of the compiler knows ---------------------------------------------------------------------
def _loop(**changes):
    index = Value(0, TensorType("int64"))
    initial, array, out = (Value(n, TensorType("int32", (4,))) for n in (1, 2, 3))
    body = Region((index, array), (), (array,))
    return LoopUTask((initial,), (out,), body, trip_count=4, **changes)


def test_first_unit_of_a_loop():
    loop = _loop(parallel=True, first=3)
    assert "parallel loop trips 4 first 3 from" in print_statement(loop)
    assert "first" not in print_statement(_loop(parallel=True))
    for wrong in ({"parallel": True, "first": -1}, {"first": 2}):
        with pytest.raises(ValueError, match="first unit"):
            _loop(**wrong)


def test_stage_of_a_branch():
    selector, out = Value(0, TensorType("int32")), Value(1, TensorType("int32"))
    regions = (Region((), (), (selector,)),) * 2
    stage = BranchUTask(selector, regions, (out,), stage=Stage(1, 3))
    assert "branch %0 stage 1 of 3 {" in print_statement(stage)
    assert "branch %0 {" in print_statement(BranchUTask(selector, regions, (out,)))
    for wrong in ((3, 3), (-1, 2), (0, 1)):
        with pytest.raises(ValueError, match="stage"):
            Stage(*wrong)


def test_trips_are_dealt_out_from_the_first_unit_on():
    """Parts of two loops that start at different units meet in between."""

    def body(b, x):
        return (mapped(b, mapped(b, x, lambda v: elementwise(b, "neg", v), 4), lambda v: v, 4),)

    program = build(["float32[4,6]"], lambda b, x: (body(b, x)[0],))
    moved = _moved(program, 1)
    assert fingerprint(program) != fingerprint(moved)
    ready = planned(moved)
    assert ready[1].most_units == 5
    agrees(moved, ready, most=5)
    assert barrier_count(planned(program)[0]) == 0
    assert barrier_count(ready[0]) == 1
    races = simulate(*ready, arguments(program, 0), 3, drop_barrier=0).races
    assert races


def _moved(program, first):
    """The program with its last loop on other units."""
    *rest, last = program.entry.body
    return replace(program, entry=replace(program.entry, body=(*rest, replace(last, first=first))))


def test_parts_of_other_units_conflict():
    here = Access("workspace", 0, 96, True, ("part", 0, 4, 1, 24, 4))
    assert not here.conflicts(here)
    assert here.conflicts(replace(here, performer=("part", 2, 4, 1, 24, 4)))


def test_candidates():
    assert way(units=4, pipeline=True).name == "4 units, pipelined"
    assert way(units=4, pipeline=True).text != Candidate(units=4).text
    assert not way(units=1, pipeline=True).runs("pipeline")
    assert not way(units=4, pipeline=True, distribute=False).runs("pipeline")
