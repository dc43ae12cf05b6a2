"""Random nested control flow against `jax.jit`; `python -m tests.fuzz` runs the same for longer."""

from __future__ import annotations

from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jax_cocktail import compiler
from jax_cocktail.placement.place import place
from tests.cpu.runner import EAGER
from tests.strategies import check_program, programs


@settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(programs(), st.integers(0, 5))
def test_random_programs(program, seed):
    check_program(program, seed)


@settings(
    max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(programs(exits=True), st.integers(0, 5))
def test_random_programs_that_may_leave(program, seed):
    check_program((("fori", 3, seed % 2 > 0, program),), seed)


@settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(program=programs(), seed=st.integers(0, 5), units=st.integers(2, 3))
def test_random_programs_in_units(monkeypatch, program, seed, units):
    monkeypatch.setattr(compiler, "place", partial(place, limits=EAGER))
    check_program(program, seed, units)
