"""Mutants of the compiler: that random programs notice wrong passes and wrong text."""

from __future__ import annotations

import ast

import pytest

from tests.mutants_alike import ALIKE
from tests.mutation import drawn, edits, mutants
from tests.process import python

LOSSLESS = [
    "source == target  ->  source != target",
    "source == target or source == 'bool'  ->  source == 'bool'",
    "source == target or source == 'bool'  ->  source == target and source == 'bool'",
]
HUNTED = "_Walker._scalar: if operator.kind in _KEEPS_SCALAR:  ->  if True"


def edited(text):
    return [ast.unparse(ast.fix_missing_locations(node)) for node in edits(ast.parse(text, mode="eval").body)]


def test_edits():
    assert edited("a < b") == ["a <= b"]
    assert edited("a in b") == ["a not in b"]
    assert edited("a and b") == ["a or b", "b"]
    assert edited("not a") == ["a"]
    assert edited("3") == ["4"] and edited("True") == [] and edited("'x'") == []
    assert edited("a + b") == ["a - b"] and edited("a * b") == []
    assert edited("a if b else c") == ["a if True else c", "a if False else c"]


def test_all_layers_have_mutants():
    names = [str(mutant) for mutant in mutants()]
    assert len(names) > 4000
    for layer in (
        "schedule.memory",
        "schedule.sync",
        "schedule.vmap",
        "placement",
        "analysis",
        "stitch",
        "codegen",
    ):
        assert any(name.startswith(f"jax_cocktail.{layer}.") for name in names)


def test_the_table_names_mutants_that_exist_and_are_not_drawn():
    names = [mutant.name for mutant in mutants()]
    for beginning, reason in ALIKE.items():
        assert reason and any(f"{name}$".startswith(beginning) for name in names), beginning
    assert not [m for m in drawn(len(names), 0) if f"{m.name}$".startswith(tuple(ALIKE))]


@pytest.mark.long
def test_a_mutant_is_found():
    said = python(f"from tests.mutants import main; main(['--match', {HUNTED!r}, '--programs', '6'])")
    assert "1 of 1 mutants found within 6 programs" in said


@pytest.mark.long
def test_watching_tells_which_mutants_would_take_effect():
    """Numbers and `+` where they are computed, conditions where they come out otherwise."""
    said = python(
        """
        from jax_cocktail.schedule.simplify.peephole import is_lossless
        from tests.mutation import mutants, watch
        chosen = [m for m in mutants() if m.function[1] == "is_lossless"]
        seen = watch(chosen)
        assert is_lossless("int8", "int8")
        print(sorted(chosen[number].text for number in seen))
        seen.clear()
        assert is_lossless("int8", "int16")
        print("target in SIGNED  ->  target not in SIGNED" in [chosen[n].text for n in seen])
        """
    )
    first, second = said.splitlines()
    assert first == str(["if source == target or source == 'bool':  ->  if False:", *LOSSLESS])
    assert second == "True"
