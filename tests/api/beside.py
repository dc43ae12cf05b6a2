"""The program and the options of tests of the background."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

import jax_cocktail

# "fresh", as if each capture took long: what the plan cache has does not help the second of two calls.
OPTIONS = {"force": "cocktail", "compile": "background", "plans": "fresh"}
X = jnp.linspace(0, 1, 24, dtype=jnp.float32).reshape(4, 6)


def loop(x, scale=1.25):
    return lax.fori_loop(0, 5, lambda i, a: jnp.tanh(a) * scale - i, x)


def changed(call):
    """How many calls change over because of a call, when all is done."""
    before = jax_cocktail.cache_info().changed_over
    call()
    assert jax_cocktail.wait(60)
    return jax_cocktail.cache_info().changed_over - before
