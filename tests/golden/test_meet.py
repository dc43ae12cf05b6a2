"""Where the threads of a unit meet: enough, and nowhere in vain, along every path of a program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.device.spec import H200
from jax_cocktail.schedule.sync.thread_barriers import meet_lanes, touches_of
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, UOperator, walk
from tests.golden.programs import PROGRAMS
from tests.null.programs import build, counted, elementwise

SPEC = replace(H200, shared_bytes=96 << 10)


def planned(program, units=1):
    return emit(program, machine_of(SPEC, 64), candidate=Candidate(units))


def meets(region):
    return sum(isinstance(s, UOperator) and s.kind == "meet" for s in walk(region))


def steps(region, plan, choice, tail=()):
    """What happens in one run, in order: frozen sets of touches, or None where threads meet. Loops run twice,
    branches take the side that `choice` says."""
    for statement in region.body:
        if isinstance(statement, UOperator) and statement.kind in ("arrive", "wait", "meet"):
            if statement.kind != "arrive":
                yield None
            continue
        yield frozenset(touches_of(statement, plan))
        if isinstance(statement, LoopUTask):
            ends = touches_of(statement, plan, end=statement.body)
            for _ in range(2):
                if statement.condition is not None:
                    yield from steps(statement.condition, plan, choice)
                yield from steps(statement.body, plan, choice, ends)
            if statement.condition is not None:
                yield from steps(statement.condition, plan, choice)
        elif isinstance(statement, BranchUTask):
            taken = statement.branches[choice % len(statement.branches)]
            yield from steps(taken, plan, choice, touches_of(statement, plan, end=taken))
    yield frozenset(tail)


def faults(region, plan, choice):
    """Conflicting touches with no meeting between them."""
    found, since = 0, set()
    for happening in steps(region, plan, choice):
        if happening is None:
            since = set()
            continue
        found += any(a.conflicts(b) for a in since for b in happening)
        since |= happening
    return found


def without_meet(region, number):
    """The region without its `number`-th meet, counted in the order of `walk`."""
    left = [number]

    def strip(region: Region) -> Region:
        body = []
        for statement in region.body:
            if isinstance(statement, UOperator) and statement.kind == "meet":
                left[0] -= 1
                if left[0] == -1:
                    continue
            if isinstance(statement, LoopUTask):
                condition = statement.condition and strip(statement.condition)
                statement = replace(statement, condition=condition, body=strip(statement.body))
            elif isinstance(statement, BranchUTask):
                statement = replace(statement, branches=tuple(map(strip, statement.branches)))
            body.append(statement)
        return replace(region, body=tuple(body))

    return strip(region)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("units", [1, 2])
def test_threads_meet_wherever_they_must(name, units):
    emitted = planned(PROGRAMS[name](), units)
    for choice in (0, 1, 2):
        assert faults(emitted.program.entry, emitted.plan, choice) == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_meet_is_in_vain(name):
    emitted = planned(PROGRAMS[name]())
    entry = emitted.program.entry
    for number in range(meets(entry)):
        less = without_meet(entry, number)
        assert meets(less) == meets(entry) - 1
        assert any(faults(less, emitted.plan, choice) for choice in (0, 1, 2)), number


def test_scalars_need_no_meet():
    def body(b, x):
        return counted(b, 9, (x,), lambda i, x: (elementwise(b, "tanh", x),))

    assert meets(planned(build(["float32[]"], body)).program.entry) == 0


def test_meets_are_inserted_once():
    emitted = planned(PROGRAMS["softmax"]())
    assert meet_lanes(emitted.program, emitted.plan) is emitted.program
