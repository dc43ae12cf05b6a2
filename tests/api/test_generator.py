"""Random programs by seed, briefly; `python -m tests.fuzz` runs them for as long as you like."""

from __future__ import annotations

import pickle

import jax
import numpy as np
import pytest

from jax_cocktail.utask.ir import walk
from tests import fuzz
from tests.generator import built, passes
from tests.generator.draw import Draw, Kind, extreme_values
from tests.generator.passes import check, difference, interpret
from tests.generator.programs import LARGE, NESTED, program
from tests.generator.tasks import task


@pytest.mark.parametrize("seed", range(4))
def test_passes_keep_the_meaning(seed):
    assert check(task(seed)) == ""


@pytest.mark.one_jax
@pytest.mark.parametrize("seed", (1, 4))
def test_built_programs_equal_stock(seed):
    assert built.check(seed) == ""


def test_a_seed_is_a_program():
    first, second = task(11), task(11)
    assert first.program == second.program
    assert all(
        np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
        for x, y in zip(first.arguments, second.arguments, strict=True)
    )
    assert pickle.loads(pickle.dumps(first)).program == first.program


def test_every_kind_of_statement_comes_up():
    tags = {s for seed in range(120) for s in program(seed).tags}
    assert tags == {*NESTED, *LARGE, "assign", "permute"}


def test_statements_can_be_left_out():
    made = program(3)
    nothing = made.function(frozenset(made.numbers))
    arguments = made.arguments()
    with jax.enable_x64(made.x64):
        for x, y in zip(nothing(*arguments), arguments, strict=True):
            assert x is y
    assert len(walk_all(task(3, frozenset(made.numbers[:1])).program)) < len(walk_all(task(3).program))


def walk_all(program):
    return list(walk(program.entry))


def test_extreme_values_come_up():
    kind = Kind("float32", (200,), True)
    values = Draw(0).array(kind, 0.5)
    assert all(
        np.any((values == e) | (np.isnan(values) & np.isnan(e)))
        for e in np.float32(extreme_values("float32"))
    )


def test_wrong_results_are_noticed():
    made = task(0)
    expected = interpret(made.program, made.arguments)
    for number, exact in enumerate(made.exact):
        wrong = [x.copy() for x in expected]
        if not wrong[number].size:
            continue
        place = (0,) * wrong[number].ndim
        was = wrong[number][place]
        wrong[number][place] = (
            ~was if was.dtype == bool else (7 if np.isnan(was) else was + (1 if exact else 0.5))
        )
        assert f"result {number} " in difference(made, wrong, expected)


def test_a_wrong_pass_is_found_reduced_and_repeated(monkeypatch):
    """A pass that forgets a statement is a failure, with the line that repeats it."""
    broken = passes.pass_list.sink

    def forgets(program):
        return broken(program) if len(program.entry.body) < 2 else 1 / 0

    monkeypatch.setattr(passes.pass_list, "sink", forgets)
    assert "ZeroDivisionError" in fuzz.check("passes", 0)
    left_out = fuzz.reduced("passes", 0, frozenset())
    assert fuzz.check("passes", 0, left_out) and len(left_out) < len(program(0).numbers)
    assert fuzz.repetition("passes", 0, left_out).startswith(
        "python -m tests.fuzz passes --seed 0 --programs 1"
    )


@pytest.mark.one_jax
def test_the_command_goes_on_from_its_log(tmp_path, capsys):
    log = tmp_path / "log"
    log.write_text("0 ok\n1 failed\n")
    assert fuzz.main(["passes", "--programs", "3", "--log", str(log)]) == 1
    assert log.read_text() == "0 ok\n1 failed\n2 ok\n"
    assert "3 programs, depth passes: 1 failed [1]" in capsys.readouterr().out


def test_a_program_that_kills_its_process_is_a_failure(capsys):
    assert [*fuzz.run("no such depth", iter([5]), 1, 0.0)] == [(5, "no end within 0 s")]
