"""Slots that batch elements of a vmapped while loop share: how many, at what price, and what they hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.device.tuning import MODEL
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.ir import LoopUTask, Statement, is_a, walk
from tests.null.lanes import EAGER, check, counting, less, lock_step, loops
from tests.null.programs import build, elementwise


def test_units_share_many_lanes_in_a_few_parts():
    after = check(counting(100), units=2, limits=replace(EAGER, parts=3))
    (outer,) = [s for s in loops(after) if s.parallel]
    assert outer.trip_count == 6


@pytest.mark.parametrize("units", [1, 2])
def test_slots_are_priced_by_their_rounds(units):
    """The trips of the rounds together are those of the lock-step loop for every lane."""
    program = counting(1000)
    after = check(program, units=units)
    (rounds,) = [s for s in loops(after) if any(map(loops_on_slots, s.body.body)) and s.trip_count is None]
    parts = next((s.trip_count for s in loops(after) if s.parallel), 1)
    (inside,) = filter(loops_on_slots, rounds.body.body)
    steps = parts * rounds.likely_trips * inside.likely_trips
    assert 0.5 < steps * EAGER.slots / (1000 * MODEL.unknown_trips) < 1.5


def loops_on_slots(statement: Statement) -> bool:
    return isinstance(statement, LoopUTask) and statement.condition is not None


def test_slots_need_no_elements_of_broadcast_scalars():
    """The start is one number for all, and so is the step, which stands before the loop."""

    def body(b, limit):
        one = b.full(1, "int32", limit.type.shape)

        def step(n, y):
            return [elementwise(b, "add", n, one), elementwise(b, "add", y, one)]

        initial = [b.full(start, "int32", limit.type.shape) for start in (0, 5)]
        return lock_step(b, initial, lambda n, y: less(b, n, limit), step)

    after = check(simplify(build(["int32[33]"], body)))
    gathers = [s for s in walk(after.entry) if is_a(s, "gather")]
    assert len(gathers) == 2  # of the limit: at the beginning, and when slots are filled again
