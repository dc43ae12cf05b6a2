"""Operands that loops overwrite are copied by all units, part by part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jax_cocktail.compiler import emit
from jax_cocktail.schedule.memory.copies import copied_carries, loop_copies
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import LoopUTask, UProgram, is_a, is_parallel, operators_in, walk
from tests.null.programs import build, counted, elementwise
from tests.oracle.interpreter.run import run
from tests.oracle.mesh_interpreter import run_mesh


def grow(b, x, trips: int = 3):
    """Every trip adds the first element to all: units cannot go through the loop on their own."""

    def step(_, x):
        one = b.slice(x, (0,) * x.type.rank, (1,) * x.type.rank)
        first = b.broadcast(b.reshape(one, ()), x.type.shape, ())
        return (elementwise(b, "tanh", elementwise(b, "add", x, first)),)

    return counted(b, trips, (x,), step)


def growing(shape: str) -> UProgram:
    return build([f"float32[{shape}]"], grow)


def copy_parts(program: UProgram, units: int = 2) -> list[int]:
    """The parts of the loops that only copy."""
    emitted = emit(program, candidate=Candidate(units))
    loops = [s for s in walk(emitted.program.entry) if isinstance(s, LoopUTask) and is_parallel(s)]
    bodies = [(s.trip_count, {o.kind for o in operators_in(s.body)}) for s in loops]
    copying = {"constant", "mul", "dynamic_slice", "dynamic_update_slice"}
    return [trips or 0 for trips, kinds in bodies if kinds <= copying]


@pytest.mark.parametrize(
    ("shape", "units", "parts"),
    [
        ("64,3000", 2, [2]),
        ("65,3000", 2, [65]),  # 33 and 32 of them, where 5 would be 3 and 2
        ("1,64,3000", 2, [2]),
        ("64,3000", 4, [4]),
        ("7919,64", 2, []),  # a prime number of rows of less than 4 KiB
        ("8,1024", 2, []),  # 32 KiB: every unit has a copy of its own
    ],
)
def test_units_copy_equal_parts(shape, units, parts):
    assert copy_parts(growing(shape), units) == parts


def test_one_unit_copies_in_one_go():
    emitted = emit(growing("64,3000"), candidate=Candidate(1))
    assert not any(is_parallel(s) for s in walk(emitted.program.entry))


def test_what_the_caller_gives_away_is_not_copied():
    program = replace(growing("64,3000"), donated=(0,))
    emitted = emit(program, candidate=Candidate(2))
    loops = [s for s in walk(emitted.program.entry) if isinstance(s, LoopUTask)]
    assert not any(copied_carries(loop, emitted.plan) for loop in loops) and copy_parts(program) == []


@pytest.mark.parametrize("shape", ["64,300", "65,300", "1,64,300"])
def test_the_result_is_the_same(shape):
    program = growing(shape)
    emitted = emit(program, candidate=Candidate(2))
    assert not any(is_a(o, "copy") for o in operators_in(emitted.program.entry))  # no second copy
    x = np.random.default_rng(0).standard_normal([int(n) for n in shape.split(",")]).astype(np.float32)
    for units in (1, 2):
        (found,) = run_mesh(emitted.program, emitted.plan, [x], units)
        np.testing.assert_array_equal(found, run(program, [x])[0])


def test_a_program_without_large_copies_stays_as_it_is():
    emitted = emit(growing("8,1024"), candidate=Candidate(2))
    assert loop_copies(emitted.program, emitted.plan) == (emitted.program, emitted.plan)


def test_what_each_unit_overwrites_for_itself_is_copied_by_each():
    """An array of which a loop changes a row at a time, beside one that units change together."""

    def body(b, rows, x):
        def step(i, rows):
            start = i, b.constant(0)
            row = elementwise(b, "tanh", b.emit("dynamic_slice", (rows, *start), "float32", (1, 300)))
            return (b.emit("dynamic_update_slice", (rows, row, *start), rows.type),)

        (changed,) = counted(b, 3, (rows,), step)
        return b.slice(changed, (2, 0), (1, 300)), *grow(b, x)

    program = build(["float32[64,300]", "float32[64,3000]"], body)
    emitted = emit(program, candidate=Candidate(2))
    copies = [o for o in operators_in(emitted.program.entry) if o.kind == "copy"]
    assert [emitted.plan.slot(o.output).space for o in copies] == ["own"] and copy_parts(program) == [2]
    random = np.random.default_rng(0)
    given = [random.standard_normal(v.type.shape).astype(np.float32) for v in program.entry.parameters]
    results = run_mesh(emitted.program, emitted.plan, given, 2)
    for found, expected in zip(results, run(program, given), strict=True):
        np.testing.assert_array_equal(found, expected)
