"""Templates on a GPU whose results have one element: a thread leaves them in a mailbox, each in its place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from tests.cpu.emulated import KERNELS, Emulation, array


def largest(x):
    """Two results of one element of one template."""

    def step(c, _):
        value, place = lax.top_k(c, 1)
        return c * 0.9 + value * 0.1, (value, place)

    return lax.scan(step, x, None, length=3)


def factored(x):
    """The pivots beside the factor."""

    def step(_, c):
        factor, pivots, _ = lax.linalg.lu(c[None] + 4)
        return jnp.tanh(c * factor[0] + pivots)

    return lax.fori_loop(0, 3, step, x[:1])


def solved(x):
    return lax.fori_loop(0, 3, lambda _, c: jnp.linalg.solve(c[None] * 2 + 4, c) + c * 0.1, x[:1])


def reflected(x):
    def step(_, c):
        orthogonal, upper = jnp.linalg.qr(c[None])
        return orthogonal[0] * 0.5 + upper[0]

    return lax.fori_loop(0, 3, step, x[:1])


@pytest.mark.parametrize("function", [largest, factored, solved, reflected], ids=lambda f: f.__name__)
def test_results_of_one_element(function, monkeypatch):
    emulation = Emulation(launches=[]).install(monkeypatch)
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True, "units": 1})
    x = array(5, 7)
    stock = jax.jit(function)(x)
    for emulation.kernel in KERNELS:
        for a, b in zip(jax.tree.leaves(ours(x)), jax.tree.leaves(stock), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
