"""Random nested control flow against `jax.jit`; `python -m tests.fuzz` runs the same for longer."""

from __future__ import annotations

from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jax_cocktail.placement.place import place
from jax_cocktail.schedule.products.pack_factors import Packing
from tests.cpu.runner import EAGER, PACKS
from tests.selection import ALL
from tests.strategies import check_program, programs

EVERY = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@settings(EVERY, max_examples=60 if ALL else 15)
@given(programs(), st.integers(0, 5))
def test_random_programs(program, seed):
    check_program(program, seed)


@settings(EVERY, max_examples=20 if ALL else 6)
@given(programs(exits=True), st.integers(0, 5))
def test_random_programs_that_may_leave(program, seed):
    check_program((("fori", 3, seed % 2 > 0, program),), seed)


@settings(EVERY, max_examples=40 if ALL else 10)
@given(program=programs(), seed=st.integers(0, 5), units=st.integers(2, 3))
def test_random_programs_in_units(monkeypatch, program, seed, units):
    monkeypatch.setattr("jax_cocktail.passes.place", partial(place, limits=EAGER))
    monkeypatch.setattr(Packing, "of", lambda _: PACKS)
    check_program(program, seed, units)
