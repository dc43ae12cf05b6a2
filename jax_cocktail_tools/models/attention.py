"""Attention decoding: one 12-head layer writes its key and value caches in place for 32 new tokens.

As in COCKTAILER's benchmark there is no mask: the softmax includes cache rows that are still zero.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_cocktail_tools.models.model import Instance, Model, generator, normal


def decoder(start: int, stop: int) -> Any:
    """A function that generates the cache rows ``start`` to ``stop``."""

    def attention(x: Any, k: Any, v: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> tuple[Any, Any, Any]:
        """``x`` is (batch, heads, 1, size); ``k`` and ``v`` are (batch, heads, length, size)."""
        scale = x.shape[-1] ** -0.5

        def step(row: Any, state: Any) -> tuple[Any, Any, Any]:
            x, k, v = state
            k = lax.dynamic_update_slice_in_dim(k, x @ wk, row, axis=2)
            v = lax.dynamic_update_slice_in_dim(v, x @ wv, row, axis=2)
            scores = jnp.einsum("bhqd,bhkd->bhqk", x @ wq, k) * scale
            x = jax.nn.softmax(scores, axis=-1) @ v
            return x @ wo, k, v

        return lax.fori_loop(start, stop, step, (x, k, v))

    return attention


def build(batch: int, small: bool) -> Instance:
    heads, size, length, start = (3, 8, 8, 4) if small else (12, 64, 64, 32)
    random = generator("attention")
    weights = [jnp.asarray(normal(random, heads, size, size, scale=size**-0.5)) for _ in range(4)]
    caches = []
    for _ in range(2):
        cache = normal(random, batch, heads, length, size)
        cache[:, :, start:] = 0.0
        caches.append(jnp.asarray(cache))
    x = jnp.asarray(normal(random, batch, heads, 1, size))
    return decoder(start, length), (x, *caches, *weights)


MODEL = Model("attention", "attention decoding, 12 heads x 64, 32 tokens: fori_loop", (1, 64), 2e-5, build)
