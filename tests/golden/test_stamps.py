"""The stamps of traced programs: which there are, and that nothing else of a program changes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.codegen.stamps import CROSSINGS, EVERYTHING, STAGES, stamps_of
from jax_cocktail.compiler import emit
from jax_cocktail.device.nvidia import H200
from jax_cocktail.utask.ir import StitchedUTask, UOperator, operators_in, walk
from jax_cocktail.utask.operators import BARRIERS, HALVES
from jax_cocktail.utask.types import Source
from tests.golden.programs import DIVIDED, PROGRAMS

LEVELS = (CROSSINGS, STAGES, EVERYTHING)
each_level = pytest.mark.parametrize("level", LEVELS)
each_divided = pytest.mark.parametrize("name", DIVIDED)


def traced(name, level):
    case = DIVIDED[name]
    machine = machine_of(H200, 128) if case.on_gpu else machine_of(None)
    return emit(case.program(), machine, candidate=case.candidate, trace=level)


def numbers(text):
    return [int(number) for number in re.findall(r"ck_stamp\(\w+, unit, (\d+)\);", text)]


@each_level
@each_divided
def test_the_text_has_the_stamps_of_the_table(name, level):
    emitted = traced(name, level)
    rows, found = emitted.stamps.rows, numbers(emitted.source)
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    silent = [row for row in rows if row.number not in found]  # tiles that begin with a stamp of their own
    assert set(found) | {row.number for row in silent} == {row.number for row in rows}
    assert all(row.kind == "parts" and rows[row.number].parent == row.number for row in silent)
    ends = len([s for s in walk(emitted.program.entry) if id(s) in emitted.stamps.within])
    exchanges = sum(row.what == "wait (exchange)" for row in rows)
    assert len(found) == len(rows) - len(silent) + ends - exchanges  # a loop's stamp ends its iterations


@each_level
@each_divided
def test_parents_are_loops_and_branches_that_come_first(name, level):
    rows = traced(name, level).stamps.rows
    for row in rows:
        assert row.parent < row.number
        assert not row.parent or rows[row.parent - 1].kind in ("loop", "parts", "branch")


@each_level
@each_divided
def test_every_crossing_has_its_halves(name, level):
    emitted = traced(name, level)
    kinds = [row.kind for row in emitted.stamps.rows]
    operators = [o.kind for o in operators_in(emitted.program.entry) if o.kind in BARRIERS]
    exchanges = sum(kind not in HALVES for kind in operators)
    assert kinds.count("wait") == operators.count("wait") + exchanges
    assert kinds.count("arrive") == operators.count("arrive") + exchanges


@each_divided
def test_levels_add_up(name):
    """A higher level has what a lower one has."""
    found = [
        {(row.kind, row.what) for row in traced(name, level).stamps.rows if row.kind != "work"}
        for level in LEVELS
    ]
    assert found[0] <= found[1] <= found[2]
    assert {kind for kind, _ in found[0]} <= {"arrive", "wait", "loop", "branch"}


def test_all_stages_that_write_arrays_have_stamps_at_the_highest_level():
    emitted = traced("lstm_2_cores", EVERYTHING)
    stages = [
        s
        for s in walk(emitted.program.entry)
        if (isinstance(s, StitchedUTask) or (isinstance(s, UOperator) and not s.is_element))
        and any(not v.type.is_scalar for v in s.outputs)
    ]
    assert sum(row.kind == "stage" for row in emitted.stamps.rows) == len(stages) > 2


def test_warps_have_rings_at_the_highest_level_on_a_gpu():
    assert [traced("exchange_4_blocks", level).stamps.shape[:2] for level in LEVELS] == [
        (4, 1),
        (4, 1),
        (4, 4),
    ]
    assert traced("lstm_2_cores", EVERYTHING).stamps.shape[:2] == (2, 1)
    assert any(row.kind == "meet" for row in traced("exchange_4_blocks", EVERYTHING).stamps.rows)


@each_divided
def test_the_program_is_the_same(name):
    """Only the text differs, by its stamps, and a unit of a GPU has a little more memory of its own."""
    case = DIVIDED[name]
    machine = machine_of(H200, 128) if case.on_gpu else machine_of(None)
    plain, found = emit(case.program(), machine, candidate=case.candidate), traced(name, STAGES)
    assert plain.program == found.program and plain.fingerprint == found.fingerprint
    assert replace(found.plan, own_bytes=0) == replace(plain.plan, own_bytes=0)
    assert found.plan.own_bytes - plain.plan.own_bytes == (128 if case.on_gpu else 0)
    assert "trace" not in plain.source and "ck_stamp" not in plain.source


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_do_not_depend_on_the_place_of_the_program(name):
    """A program that moves in its file is not compiled again."""
    emitted = emit(PROGRAMS[name](), trace=STAGES)
    moved = [replace(row, source=Source("elsewhere.py", 7, "f")) for row in emitted.stamps.rows]
    assert "elsewhere" not in emitted.source and len(moved) == len(emitted.stamps.rows)
    again = stamps_of(emitted.program, emitted.plan, emitted.machine, STAGES)
    assert again == emitted.stamps and not re.search(r"\.py", emitted.source)
