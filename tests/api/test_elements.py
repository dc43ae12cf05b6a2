"""Random programs of batch elements, before and after `threads`, in the interpreter, against stock."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import ElementTuning
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.vmap.threads import threads
from jax_cocktail.utask.ir import by_threads, walk
from tests.oracle.interpreter.run import run as interpreted
from tests.selection import ALL
from tests.strategies import check_state, initial_state, programs, run

EAGER = ElementTuning(fewest=2, branch_flops=1.0)
EVERY = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
BATCH = 3


def states(seed):
    """The states of a few elements, element axis first."""
    found = [initial_state(100 * seed + k) for k in range(BATCH)]
    return tuple(np.stack(parts) for parts in zip(*found, strict=True))


def taken(function, state):
    """Compares the program after the pass with stock. Returns the number of loops by threads."""
    program = simplify(translate(adapter.program(jax.make_jaxpr(function)(*state)), "elements"))
    after = simplify(threads(program, limits=EAGER))
    verify(after, "placed")
    check_state(interpreted(after, list(state)), jax.jit(function)(*state))
    return sum(map(by_threads, walk(after.entry)))


@pytest.mark.one_jax
def test_random_elements():
    """Many random programs have a thread for each element, and all agree with stock."""
    found = []

    @settings(EVERY, max_examples=200 if ALL else 15)
    @given(programs(), st.integers(0, 5))
    def each(program, seed):
        function = jax.vmap(lambda *state: run((("fori", 3, seed % 2 > 0, program),), state))
        found.append(taken(function, states(seed)))

    each()
    assert sum(n > 0 for n in found) >= len(found) // 3, found


def solved(matrix, b):
    """Steps with a factorisation, a determinant, and a system in each."""

    def step(_, x):
        a = matrix + 0.1 * jnp.outer(x, x)
        spd = a @ a.T + 4.0 * jnp.eye(3, dtype=a.dtype)
        y = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(spd), x, lower=True)
        z = jnp.linalg.solve(a, b)
        return 0.1 * y + 0.2 * jnp.tanh(z) + 0.01 * jnp.tanh(jnp.linalg.det(a))

    return jax.lax.fori_loop(0, 3, step, b)


@pytest.mark.one_jax
def test_small_factorisations():
    rng = np.random.default_rng(0)
    state = rng.normal(size=(BATCH, 3, 3)).astype(np.float32), rng.normal(size=(BATCH, 3)).astype(np.float32)
    state[0][1, 0] = 0  # a pivot that is not in its row
    assert taken(lambda *s: (jax.vmap(solved)(*s),), state) == 1


@pytest.mark.one_jax
def test_a_matrix_without_a_factor():
    """All of the factor is NaN."""
    a = np.stack([np.eye(3), -np.eye(3), [[1, 2, 0], [2, 1, 0], [0, 0, 1]]]).astype(np.float32)

    def factor(a):
        return jax.lax.fori_loop(0, 2, lambda _, x: jnp.linalg.cholesky(x, symmetrize_input=False), a)

    assert taken(lambda a: (jax.vmap(factor)(a),), (a,)) == 1
