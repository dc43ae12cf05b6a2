"""Where the threads of a unit meet: wherever the oracle finds that they must, and nowhere in vain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.device.nvidia import H200
from jax_cocktail.placement.limits import Limits
from jax_cocktail.schedule.sync.block_barriers import block_barriers
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, UOperator, walk
from tests.golden.programs import PROGRAMS
from tests.null.programs import arguments, build, counted, elementwise
from tests.oracle.threads import unordered

SPEC = replace(H200, shared_bytes=96 << 10)

EAGER = Limits(flops=4, bytes=8, least_part=1, light=2, lanes=1)  # divides work of any size


def planned(program, units=1):
    return emit(program, machine_of(SPEC, 64), candidate=Candidate(units))


def barriers_in(region):
    return sum(isinstance(s, UOperator) and s.kind == "block_barrier" for s in walk(region))


def without_block_barrier(region, number):
    """The region without its `number`-th meet, counted in the order of `walk`."""
    left = [number]

    def strip(region: Region) -> Region:
        body = []
        for statement in region.body:
            if isinstance(statement, UOperator) and statement.kind == "block_barrier":
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


def faults(emitted, values, entry=None):
    """What threads do unordered in one run, with another text or the program's own."""
    program = emitted.program if entry is None else replace(emitted.program, entry=entry)
    return unordered(program, emitted.plan, values, emitted.plan.most_units)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("units", [1, 2, 3])
def test_threads_meet_wherever_they_must(name, units, monkeypatch):
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    program = PROGRAMS[name]()
    emitted = planned(program, units)
    for seed in range(2):
        assert faults(emitted, arguments(program, seed)) == ()


def test_some_programs_are_divided(monkeypatch):
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    assert {planned(make(), 2).plan.most_units for make in PROGRAMS.values()} == {1, 2}


# A row is another one in every iteration, which is more than the pass knows of an array.
NOT_NEEDED = {"updated_row": [0]}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_meet_is_in_vain(name):
    program = PROGRAMS[name]()
    emitted, needless = planned(program), []
    entry = emitted.program.entry
    for number in range(barriers_in(entry)):
        less = without_block_barrier(entry, number)
        assert barriers_in(less) == barriers_in(entry) - 1
        if not any(faults(emitted, arguments(program, seed), less) for seed in range(2)):
            needless.append(number)
    assert needless == NOT_NEEDED.get(name, [])


def test_scalars_need_no_meet():
    def body(b, x):
        return counted(b, 9, (x,), lambda i, x: (elementwise(b, "tanh", x),))

    assert barriers_in(planned(build(["float32[]"], body)).program.entry) == 0


def test_meets_are_inserted_once():
    emitted = planned(PROGRAMS["softmax"]())
    assert block_barriers(emitted.program, emitted.plan) is emitted.program
