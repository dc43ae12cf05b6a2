"""Random nested control flow against `jax.jit`; `python -m tests.fuzz` runs the same for longer."""

from __future__ import annotations

import jax
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jax_cocktail
from tests.strategies import initial_state, programs, run


def check_program(program, seed):
    """The program as a captured region equals stock."""
    state = initial_state(seed)
    stock = jax.jit(lambda *s: run(program, s))(*state)
    ours = jax_cocktail.jit(lambda *s: run(program, s), options={"force": "cocktail", "strict": True})(*state)
    for position, (x, y) in enumerate(zip(ours, stock, strict=True)):
        assert x.shape == y.shape and x.dtype == y.dtype, position
        if np.issubdtype(y.dtype, np.floating):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4, err_msg=str(position))
        else:
            np.testing.assert_array_equal(x, y, err_msg=str(position))


@settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(programs(), st.integers(0, 5))
def test_random_programs(program, seed):
    check_program(program, seed)
