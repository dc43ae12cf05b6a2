"""Long sums: as accurate as XLA's, whose reductions are trees."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail

SUMS = {
    "vector": (lambda x: jnp.sum(x), (1 << 20,)),
    "rows": (lambda x: jnp.sum(x, 0), (5000, 37)),
    "both": (lambda x: jnp.sum(x), (500, 401)),
    "middle": (lambda x: jnp.sum(x, (0, 2)), (2500, 5, 7)),
    "mean": (lambda x: jnp.mean(x), (3, 1 << 17)),
    "cumulative": (lambda x: jnp.cumsum(x)[-1], (1 << 18,)),
}


@pytest.mark.parametrize("name", SUMS)
def test_long_sums(name):
    function, shape = SUMS[name]
    x = jnp.asarray(np.random.default_rng(0).uniform(0, 1, shape).astype(np.float32))

    def program(x):
        return lax.scan(lambda c, k: (c, function(x * k)), 0, jnp.ones(2))[1][0]

    ours = jax_cocktail.jit(program, options={"force": "cocktail", "strict": True})(x)
    stock = jax.jit(program)(x)
    with jax.enable_x64(True):
        exact = np.asarray(function(jnp.asarray(np.asarray(x), jnp.float64)))
    scale = np.abs(exact).max()
    error, allowed = (np.abs(np.asarray(y, np.float64) - exact).max() / scale for y in (ours, stock))
    assert error <= 2 * allowed + 2e-7
