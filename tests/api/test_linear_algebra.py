"""Dense linear algebra in loops, with our calls forced, against stock XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail

FORCED = {"force": "cocktail", "strict": True}


def matrices(shape, seed=0):
    """Well-conditioned matrices, positive definite."""
    x = jax.random.normal(jax.random.key(seed), shape)
    return x @ x.mT / shape[-1] + jnp.eye(shape[-1])


def same(function, *arguments, rtol=2e-4):
    """Ours is one custom call, and gives what stock gives."""
    wrapped = jax_cocktail.jit(function, options=FORCED)
    assert "jax_cocktail_cpu" in wrapped.lower(*arguments).as_text()
    found, expected = wrapped(*arguments), jax.jit(function)(*arguments)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol), found, expected)


# -- linear solves -------------------------------------------------------------------------------------------
def implicit(a, y):
    """Steps of implicit Euler, each with conjugate gradients."""

    def step(y, _):
        y, _ = jax.scipy.sparse.linalg.cg(lambda v: v + 0.1 * a @ v, y, maxiter=6)
        return y, y[0]

    return lax.scan(step, y, length=5)


def with_iterations(a, y):
    """The solver tells how many steps it took, besides its result."""

    def solve(matvec, b):
        def step(state):
            x, count = state
            return x + 0.5 * (b - matvec(x)), count + 1

        return lax.while_loop(lambda s: s[1] < 12, step, (b, 0))

    def body(_, state):
        y, total = state
        x, count = lax.custom_linear_solve(
            lambda v: v + 0.1 * a @ v, y, solve=solve, symmetric=True, has_aux=True
        )
        return x, total + count

    return lax.fori_loop(0, 3, body, (y, 0))


SOLVES = pytest.mark.parametrize("function", [implicit, with_iterations])


@SOLVES
def test_a_linear_solve_is_its_solver(function):
    same(function, matrices((6, 6)), jnp.arange(6.0))


@SOLVES
@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None)])
def test_linear_solves_of_a_batch(function, axes):
    a = matrices((3, 6, 6)) if axes[0] == 0 else matrices((6, 6))
    y = jnp.arange(18.0).reshape(3, 6) if axes[1] == 0 else jnp.arange(6.0)
    same(jax.vmap(function, axes), a, y)


def test_a_linear_solve_has_derivatives():
    def loss(a, y):
        return jnp.sum(implicit(a, y)[1] ** 2)

    same(jax.grad(loss, (0, 1)), matrices((4, 4)), jnp.arange(4.0))
