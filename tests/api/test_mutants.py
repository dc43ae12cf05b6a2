"""Mutants of the compiler: that random programs notice wrong passes and wrong text."""

from __future__ import annotations

import ast

import pytest

from tests.mutants import edits, mutants
from tests.process import python

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


@pytest.mark.one_jax
def test_a_mutant_is_found():
    said = python(f"from tests.mutants import main; main(['--match', {HUNTED!r}, '--programs', '4'])")
    assert "VerificationError" in said and "1 of 1 mutants found" in said
