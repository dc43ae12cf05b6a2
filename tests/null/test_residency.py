"""Which arrays stay, slice by slice, in the near memory of their units, and why others do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.device.nvidia import H200
from jax_cocktail.schedule.memory.residency import find_residency, residency
from jax_cocktail.utask.candidate import way
from jax_cocktail.utask.ir import LoopUTask, UProgram, is_parallel, walk
from jax_cocktail.utask.plan import Part
from tests.null.gpus import plan_for
from tests.null.meshes import block, mapped, parts, planned, put
from tests.null.programs import build, counted, elementwise
from tests.null.wavefronts import stacked_lstm

ROOM = 1 << 20


def moved(program: UProgram, **firsts: int) -> UProgram:
    """Parallel loops, by their position in the entry (`s0`, `s1`, ...), begin at other units."""
    loops = [s for s in program.entry.body if is_parallel(s)]
    changed = {id(loops[int(name[1:])]): first for name, first in firsts.items()}
    body = tuple(
        replace(s, first=changed[id(s)]) if isinstance(s, LoopUTask) and id(s) in changed else s
        for s in program.entry.body
    )
    return replace(program, entry=replace(program.entry, body=body))


def negated(b, x, trips, axis=0):
    return mapped(b, x, lambda v: elementwise(b, "neg", v), trips, axis)


def found(program: UProgram, room: int = ROOM, **changes):
    """What is resident, as parts, and why other buffers of the workspace are not."""
    final, plan = planned(program)
    survey = find_residency(final, replace(plan, **changes), room)
    return list(survey.parts.values()), sorted(survey.refused.values())


def twice(b, x, trips=(4, 4)):
    """x, negated twice by parts: what is in between is touched by slices alone."""
    return (negated(b, negated(b, x, trips[0]), trips[1]),)


# -- what stays ----------------------------------------------------------------------------------------------
def test_slices_written_and_read_by_the_same_units():
    program = build(["float32[4,6]"], lambda b, x: twice(b, x))
    assert found(program) == ([Part(0, 24, 0)], [])
    assert found(moved(program, s0=3, s1=3)) == ([Part(0, 24, 3)], [])


def test_the_plan_with_its_parts():
    final, plan = planned(build(["float32[4,6]"], lambda b, x: twice(b, x)))
    assert residency(final, plan, ROOM).resident_bytes == 24
    assert residency(final, plan, 8) is plan
    assert residency(final, replace(plan, most_units=1), ROOM) == replace(plan, most_units=1)


@pytest.mark.parametrize(
    ("first", "offsets"),
    [(0, {24: 192, 160: 0}), (3, {24: 192, 160: 0}), (4, {24: 0, 160: 0})],  # the fourth unit has both, too
)
def test_arrays_of_different_units_share_a_place(first, offsets):
    program = build(["float32[4,6]", "float32[4,40]"], lambda b, x, y: (*twice(b, x), *twice(b, y)))
    inside, refused = found(moved(program, s2=first, s3=first))
    assert refused == []
    assert {p.bytes: p.offset for p in inside} == offsets
    assert {p.bytes: p.first for p in inside} == {24: 0, 160: first}


def state(b, x, initial, trips=5):
    """A state that is carried through a loop over time and only ever touched by parts."""

    def own(index, array):
        return (put(b, array, elementwise(b, "sin", block(b, array, index)), index),)

    (last,) = counted(b, trips, (initial,), lambda _, array: parts(b, 4, (array,), own))
    return (negated(b, last, 4),)


def test_state_that_starts_by_parts():
    program = build(["float32[4,6]"], lambda b, x: state(b, x, negated(b, x, 4)))
    assert found(program) == ([Part(0, 24, 0)], [])


def test_what_is_touched_most_comes_first():
    def body(b, x, y):
        return (*twice(b, x), *state(b, y, negated(b, y, 4)))

    program = build(["float32[4,60]", "float32[4,6]"], body)
    inside, refused = found(program, room=200)
    assert inside == [Part(0, 24, 0)]
    assert refused == ["no room for 256 bytes more behind 64 of 200"]


# -- what does not -------------------------------------------------------------------------------------------
def test_state_that_one_unit_initialises():
    program = build(["float32[4,6]"], lambda b, x: state(b, x, b.full(1.0, "float32", (4, 6))))
    assert found(program) == ([], ["a statement outside of parallel loops touches it"])


def test_state_that_moves():
    """Two buffers that change places are copied where the loop begins again, or are other units' at times."""

    def body(b, x):
        def step(_, array):
            return (negated(b, array, 4),)

        (last,) = counted(b, 5, (negated(b, x, 4),), step)
        return (negated(b, last, 4),)

    _, refused = found(build(["float32[4,6]"], body))
    assert "it is copied where regions join" in refused


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ((4, 0), (2, 0), "its slices belong to different units at different times"),
        ((4, 1), (4, 1), "its slices are not dense"),
        ((2, 0), (2, 1), "its slices are not dense"),
    ],
)
def test_slices_that_are_not_one_units(first, second, reason):
    """`first`, `second`: number of parts and axis."""
    program = build(["float32[4,8]"], lambda b, x: (negated(b, negated(b, x, *first), *second),))
    assert found(program) == ([], [reason])


def test_an_array_that_a_part_reads_whole():
    def body(b, x):
        y = negated(b, x, 4)

        def shifted(index, out):
            return (put(b, out, elementwise(b, "add", block(b, x, index), block(b, y, zero)), index),)

        zero = b.constant(0, "int64")
        return parts(b, 4, (b.emit("empty", (), "float32", (4, 6)),), shifted)

    assert found(build(["float32[4,6]"], body)) == ([], ["a part touches more than its own slice"])


def test_slices_of_other_units():
    program = build(["float32[4,6]"], lambda b, x: twice(b, x))
    reason = "its slices belong to different units at different times"
    assert found(moved(program, s1=1)) == ([], [reason])


def test_an_array_that_all_read():
    def body(b, x):
        y = negated(b, x, 4)
        total = b.emit("reduce", (y,), "float32", (6,), axes=(0,), op="sum")
        return (total, negated(b, y, 4))

    inside, refused = found(build(["float32[4,6]"], body))
    assert inside == []
    assert "a statement outside of parallel loops touches it" in refused


def test_slices_that_would_wrap_around():
    program = moved(build(["float32[4,6]"], lambda b, x: twice(b, x)), s0=3, s1=3)
    reason = "its last slices wrap around: 4 from unit 3 on of 5"
    assert found(program, most_units=5) == ([], [reason])


def test_memory_that_arrays_of_different_size_use_in_turn():
    def body(b, x, y):
        return (*twice(b, x), *twice(b, y))

    program = build(["float32[4,100000]", "float32[4,90000]"], body)
    inside, refused = found(program, 1 << 30)
    assert inside == []
    assert refused == ["its slices are of different sizes at different times"]


# -- wavefronts ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("units", "busy"), [(36, 36), (40, 40)])
def test_all_weights_of_a_wavefront_stay_with_their_units(units, busy):
    """Three layers: 5 MB of weights on few units of 227 KB each. Parts need not divide the layers."""
    program = stacked_lstm(3, 6, size=256)
    ready = plan_for(program, way(units, pipeline=True))
    survey = find_residency(ready.program, ready.plan, H200.shared_bytes - ready.plan.own_bytes)
    weights = {
        slot for v, slot in ready.plan.slots.items() if slot.space == "workspace" and v.type.nbytes >= 1 << 20
    }
    assert weights and weights <= survey.parts.keys()
    assert ready.plan.resident_bytes <= H200.shared_bytes - ready.plan.own_bytes - ready.plan.template_bytes
    loops = [s for s in walk(ready.program.entry) if is_parallel(s)]
    assert ready.plan.most_units == max(s.first + (s.trip_count or 0) for s in loops) <= busy
