"""Random nested control flow against `jax.jit`; `python -m tests.fuzz` runs the same for longer."""

from __future__ import annotations

import jax
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jax_cocktail
from tests.strategies import check_state, initial_state, programs, run


def check_program(program, seed):
    """The program as a captured region equals stock."""
    state = initial_state(seed)
    stock = jax.jit(lambda *s: run(program, s))(*state)
    ours = jax_cocktail.jit(lambda *s: run(program, s), options={"force": "cocktail", "strict": True})(*state)
    check_state(ours, stock)


@settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(programs(), st.integers(0, 5))
def test_random_programs(program, seed):
    check_program(program, seed)
