"""What the tests of binaries that serve many sizes call: an LSTM, and a function in both ways."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_cocktail

HIDDEN = 24


def lstm(w, u, b, xs, reverse=False):
    def step(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((xs.shape[1], HIDDEN))
    return lax.scan(step, (zero, zero), xs, reverse=reverse)


def agree(ours, stock):
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(stock), strict=True):
        scale = float(np.max(np.abs(theirs), initial=1))
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5 * scale)


def called(function, arguments, units=1):
    options = {"force": "cocktail", "units": units, "strict": True}
    ours = jax_cocktail.jit(function, options=options)(*arguments)
    agree(ours, jax.jit(function)(*arguments))
    return ours
