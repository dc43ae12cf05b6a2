"""The mesh interpreter: simulated memory, units, barriers, races."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jax_cocktail.compiler import emit
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.errors import PlacementError, VerificationError
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.memory import sharing
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.sync.hazards import FIRST, Access
from jax_cocktail.utask.ir import LoopUTask, UOperator, UProgram, walk
from tests.null.meshes import (
    Planned,
    RandomMesh,
    agrees,
    block,
    empty,
    given,
    mapped,
    parts,
    planned,
    put,
    useless_barriers,
)
from tests.null.operators import SAMPLES, Sample
from tests.null.programs import arguments, build, counted, elementwise, random_program
from tests.oracle.interpreter.run import run
from tests.oracle.memory import RaceError
from tests.oracle.mesh_interpreter import barrier_count, run_mesh, simulate, without_barrier

MATRIX = "float32[4,6]"


@pytest.fixture
def shared_arrays(monkeypatch):
    """Mesh-level arrays are made once, by unit 0, however small."""
    monkeypatch.setattr(sharing, "PROGRAM", replace(PROGRAM, replicated_bytes=0))


@pytest.fixture
def crowded(shared_arrays, monkeypatch):
    """Shared buffers overlap wherever their lives allow it, however small."""
    monkeypatch.setattr(sharing.Sharing.__init__, "__defaults__", (0,))


def negated(b, x, trips=4, axis=0):
    return mapped(b, x, lambda v: elementwise(b, "neg", v), trips, axis)


def running(b, x, axis=0):
    return b.emit("cumulative", (x,), x.type.dtype, x.type.shape, axis=axis, op="max", reverse=False)


def total(b, x):
    return b.emit("reduce", (x,), "float32", (), axes=(0, 1), op="max")


# -- one unit: the memory plan itself ------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(40))
def test_memory_plans_of_random_programs(seed):
    program = random_program(seed)
    ready = planned(program)
    assert barrier_count(ready[0]) == 0
    agrees(program, ready, seed, most=1)


@pytest.mark.parametrize("case", SAMPLES, ids=str)
def test_every_kind_in_memory(case: Sample):
    if case.kind in ("empty", "arrive", "wait", "block_barrier"):
        pytest.skip("makes nothing that can be compared")
    program = case.program()
    expected, found = run(program, arguments(program)), run_mesh(*planned(program), arguments(program), 1)
    for x, y in zip(expected, found, strict=True):
        np.testing.assert_array_equal(x, y)


def test_carries_that_change_places():
    program = build([MATRIX] * 2, lambda b, x, y: counted(b, 3, (x, y), lambda _, p, q: (q, p)))
    agrees(program, planned(program), most=1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_fresh_memory_is_poison(dtype):
    program = build([], lambda b: (b.emit("empty", (), dtype, (3,)),))
    (found,) = run_mesh(*planned(program), [], 1)
    assert np.isnan(found.astype(np.float64)).all()


def test_fresh_integers_are_odd():
    program = build([], lambda b: (b.emit("empty", (), "int32", (3,)), b.emit("empty", (), "bool", (2,))))
    numbers, _ = run_mesh(*planned(program), [], 1)
    assert (numbers == 0x7FFD7FFD).all()


# -- barriers ------------------------------------------------------------------------------------------------
def same_blocks(b, x):
    return (negated(b, negated(b, x)),)


def other_blocks(b, x):
    return (negated(b, negated(b, x), 3, 1),)


def whole_after_parts(b, x):
    return (running(b, negated(b, x)),)


def parts_after_whole(b, x):
    return (negated(b, running(b, x)),)


def scalar_after_parts(b, x):
    return (total(b, negated(b, x)),)


def in_place(b, x):
    def body(i, out):
        return (put(b, out, elementwise(b, "exp", block(b, out, i)), i),)

    return parts(b, 4, (negated(b, x),), body)


def every_step(b, x):
    """A recurrence: every part of the next state needs all of this one."""

    def step(_, state):
        def body(i, out):
            row = elementwise(b, "sub", block(b, x, i), b.broadcast(total(b, state), (1, 6), ()))
            return (put(b, out, row, i),)

        return parts(b, 4, (empty(b, state),), body)

    return counted(b, 3, (x,), step)


def own_rows_every_step(b, x):
    """The parts of a state that only its own unit reads."""

    def step(_, state):
        def body(i, out):
            return (put(b, out, elementwise(b, "sin", block(b, out, i)), i),)

        return parts(b, 4, (state,), body)

    return counted(b, 3, (negated(b, x),), step)


@pytest.mark.parametrize(
    ("body", "barriers"),
    [
        (same_blocks, 0),
        (other_blocks, 1),
        (whole_after_parts, 1),
        (scalar_after_parts, 1),
        (in_place, 0),
        (own_rows_every_step, 0),
    ],
)
def test_barriers(body, barriers):
    program = build([MATRIX], body)
    ready = planned(program)
    assert barrier_count(ready[0]) == barriers
    agrees(program, ready)
    assert useless_barriers(program, ready) == []


def test_barrier_after_unit_0(shared_arrays):
    program = build([MATRIX], parts_after_whole)
    ready = planned(program)
    assert barrier_count(ready[0]) == 1
    agrees(program, ready)
    assert useless_barriers(program, ready) == []


def test_recurrence():
    program = build([MATRIX], every_step)
    ready = planned(program)
    assert barrier_count(ready[0]) >= 1
    agrees(program, ready)
    assert useless_barriers(program, ready) == []


def test_one_barrier_covers_what_is_done_before_its_wait(shared_arrays):
    def body(b, x, y):
        x, y = running(b, x), running(b, y, 1)
        return negated(b, x), negated(b, y, 2)

    program = build([MATRIX] * 2, body)
    ready = planned(program)
    assert barrier_count(ready[0]) == 1
    agrees(program, ready)


def test_scalars_beside_an_update_are_read_by_all(shared_arrays):
    """One-element work updates a shared array and makes a scalar: only the first is unit 0's alone."""

    def body(b, x):
        y, z, at = running(b, x), running(b, x, 1), b.constant(1, "int64")
        one = b.emit("dynamic_slice", (x, at, at), "float32", (1, 1))
        z = b.emit("dynamic_update_slice", (z, elementwise(b, "neg", one), at, at), "float32", (4, 6))
        far = b.reshape(b.emit("dynamic_slice", (y, at, at), "float32", (1, 1)), ())
        return z, y, mapped(b, x, lambda v: elementwise(b, "add", v, b.broadcast(far, (1, 6), ())), 4)

    program = build([MATRIX], body)
    ready = planned(program)
    agrees(program, ready)
    assert useless_barriers(program, ready) == []


def test_equal_parts_of_shifted_memory_conflict():
    performer = ("part", 4, 1, 24, 4)
    here = Access("workspace", 0, 96, True, performer)
    assert not here.conflicts(here)
    assert here.conflicts(replace(here, begin=48, end=144))
    unit_0 = replace(here, performer=FIRST)
    assert not unit_0.conflicts(replace(unit_0, begin=48, end=144))


# -- random programs -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(60))
def test_random_meshes(seed):
    program = RandomMesh(seed).program()
    agrees(program, planned(program), seed)


@pytest.mark.parametrize("seed", range(60, 120))
def test_random_meshes_of_shared_arrays(seed, shared_arrays):
    program = RandomMesh(seed).program()
    agrees(program, planned(program), seed)


@pytest.mark.parametrize("seed", range(120, 160))
def test_random_meshes_in_little_memory(seed, crowded):
    program = RandomMesh(seed).program()
    agrees(program, planned(program), seed)


def test_hardly_any_barrier_is_useless():
    """What is left are branches that cannot be taken, and slices that happen to fall into one part."""
    barriers, useless = 0, []
    for seed in range(60):
        program = RandomMesh(seed).program()
        ready = planned(program)
        barriers += barrier_count(ready[0])
        useless += [(seed, n) for n in useless_barriers(program, ready, range(seed, seed + 4))]
    assert barriers > 80
    assert len(useless) <= barriers // 50, useless


class Placeable(RandomMesh):
    """Whole-array work that placement can divide."""

    def parallel(self, pool, depth):
        b = self.builder
        if self.chance(0.6):
            return [elementwise(b, "max", elementwise(b, "neg", self.pick(pool)), self.pick(pool))]
        axes = {"lhs_batch": (), "lhs_contract": (1,), "rhs_batch": (), "rhs_contract": (0,)}
        turned = b.emit("transpose", (self.pick(pool),), "float32", (6, 4), permutation=(1, 0))
        square = b.emit("dot", (self.pick(pool), turned), "float32", (4, 4), **axes)
        return [b.emit("dot", (square, self.pick(pool)), "float32", self.SHAPE, **axes)]


def _in_place_or_not(seed: int):
    reason = "stitching reads the own slice of an array again after it has written it"
    return pytest.param(seed, marks=pytest.mark.xfail(reason=reason, raises=PlacementError, strict=True))


@pytest.mark.parametrize("seed", [_in_place_or_not(s) if s in (6, 12) else s for s in range(30)])
def test_placed_programs(seed):
    limits = Limits(flops=0, bytes=0, light=20.0 * (seed % 3), again=1.0)
    placed = place(simplify(Placeable(seed).program()), UnitMesh(units=2), limits=limits)
    agrees(placed, planned(placed), seed)


# -- races ---------------------------------------------------------------------------------------------------
def one_race(program: UProgram, ready: Planned, order, **options) -> RaceError:
    with pytest.raises(RaceError) as caught:
        run_mesh(*ready, given(program, 0), 2, order=order, drop_barrier=0, **options)
    return caught.value


def test_read_too_early():
    program = build([MATRIX], scalar_after_parts)
    ready = planned(program)
    race = one_race(program, ready, [0, 1]).race  # seen when unit 1 writes what unit 0 has read
    assert race.units == (0, 1) and race.accesses == ("read", "write")
    assert "dynamic_update_slice" in str(race)
    race = one_race(program, ready, [1, 0]).race
    assert race.units == (1, 0) and race.accesses == ("read", "write")


def test_overwritten_too_early():
    """The second loop writes where the first one still reads."""

    def body(b, x):
        y = negated(b, x)
        n = total(b, y)

        def part(i, out):
            return (put(b, out, b.broadcast(n, (1, 6), ()), i),)

        return parts(b, 4, (y,), part)

    program = build([MATRIX], body)
    ready = planned(program)
    assert barrier_count(ready[0]) == 2
    agrees(program, ready)
    races = simulate(*ready, given(program, 0), 2, drop_barrier=1, order=[1, 0]).races
    assert ("read", "write") in {race.accesses for race in races}


def test_poison_reaches_the_results():
    program = build([MATRIX], whole_after_parts)
    ready = planned(program)
    values = given(program, 0)
    (found,) = run_mesh(*ready, values, 2, order=[1, 0], drop_barrier=0, on_race="poison")
    assert np.isnan(found).any()
    outcome = simulate(*ready, values, 2, order=[1, 0], drop_barrier=0)
    assert outcome.races and np.isnan(outcome.results[0]).any()
    (alone,) = run_mesh(*ready, values, 1, drop_barrier=0)
    np.testing.assert_array_equal(alone, run(program, values)[0])


def test_trips_that_are_not_independent():
    """A loop that only says that it is parallel: units see each other's writes."""

    def body(b, x):
        return counted(
            b, 4, (negated(b, x),), lambda i, out: (put(b, out, block(b, out, b.constant(0, "int64")), i),)
        )

    program, plan = planned(build([MATRIX], body))
    loops = [s for s in program.entry.body if isinstance(s, LoopUTask)]
    entry = replace(
        program.entry,
        body=tuple(replace(s, parallel=True) if s is loops[-1] else s for s in program.entry.body),
    )
    with pytest.raises(RaceError):
        run_mesh(replace(program, entry=entry), plan, given(program, 0), 2)


def moved(program: UProgram, kind: str) -> UProgram:
    """The program without its barriers' operators of one kind."""
    body = tuple(s for s in program.entry.body if not (isinstance(s, UOperator) and s.kind == kind))
    return replace(program, entry=replace(program.entry, body=body))


def test_units_that_wait_for_ever():
    program, plan = planned(build([MATRIX], whole_after_parts))
    with pytest.raises(VerificationError, match="wait for ever"):
        run_mesh(moved(program, "arrive"), plan, given(program, 0), 2)


def test_arrive_and_wait_alternate():
    def body(b, x):
        return (negated(b, negated(b, negated(b, x), 3, 1)),)

    program, plan = planned(build([MATRIX], body))
    assert barrier_count(program) == 2
    with pytest.raises(VerificationError, match="alternate"):
        run_mesh(moved(program, "wait"), plan, given(program, 0), 2)


def test_without_barrier_names_them_in_order_of_the_text():
    program, _ = planned(build([MATRIX], every_step))
    count = barrier_count(program)
    for number in range(count):
        less = without_barrier(program, number)
        for kind in ("arrive", "wait"):
            left = [s for s in walk(less.entry) if isinstance(s, UOperator) and s.kind == kind]
            assert len(left) == count - 1
    with pytest.raises(ValueError, match=f"barrier {count} of {count}"):
        without_barrier(program, count)


def test_arrays_in_the_scratch_of_an_operator_are_noticed():
    def body(b, x):
        (made,) = b.emit_many("sort", (running(b, x),), [("float32", (8,))], dimension=0, num_keys=1)
        return (running(b, made),)

    made, x = emit(build(["float32[8]"], body)), np.float32([2, 1, 3, 5, 4, 8, 6, 7])
    expected = run(made.program, [x])
    assert np.array_equal(run_mesh(made.program, made.plan, [x], 1), expected)
    over_operand = replace(made.plan, scratch_offset=0)
    assert not np.array_equal(run_mesh(made.program, over_operand, [x], 1), expected)
