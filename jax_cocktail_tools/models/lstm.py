"""LSTM: ten layers of 256 units over 64 steps (COCKTAILER, OSDI'23, section 6).

The loop over time is outermost and the layers are inside, so a compiler can form a wavefront.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail_tools.models.model import Instance, Model, generator, normal


def cell(x: Any, h: Any, c: Any, weights: Any) -> tuple[Any, Any]:
    """One step of one layer; gates in the order input, forget, candidate, output."""
    w_ih, w_hh, b_ih, b_hh = weights
    gates = x @ w_ih + b_ih + h @ w_hh + b_hh
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm(inputs: Any, layers: Any) -> Any:
    """``inputs`` is (steps, batch, features); returns the last layer's hidden state after the last step."""
    _, batch, _ = inputs.shape
    hidden = layers[0][1].shape[0]
    zeros = jnp.zeros((batch, hidden), inputs.dtype)

    def step(state: Any, x: Any) -> tuple[Any, None]:
        new = []
        for (h, c), weights in zip(state, layers, strict=True):
            h, c = cell(x, h, c, weights)
            new.append((h, c))
            x = h
        return tuple(new), None

    state, _ = lax.scan(step, tuple((zeros, zeros) for _ in layers), inputs)
    return state[-1][0]


def cell_weights(random: np.random.Generator, features: int, hidden: int) -> tuple[Any, ...]:
    """Weights of one cell: input and recurrent matrix, and a bias for each of them."""
    return (
        jnp.asarray(normal(random, features, 4 * hidden, scale=features**-0.5)),
        jnp.asarray(normal(random, hidden, 4 * hidden, scale=hidden**-0.5)),
        jnp.asarray(normal(random, 4 * hidden, scale=0.1)),
        jnp.asarray(normal(random, 4 * hidden, scale=0.1)),
    )


def build(batch: int, small: bool) -> Instance:
    steps, hidden, depth = (7, 16, 3) if small else (64, 256, 10)
    random = generator("lstm")
    layers = tuple(cell_weights(random, hidden, hidden) for _ in range(depth))
    return lstm, (jnp.asarray(normal(random, steps, batch, hidden)), layers)


MODEL = Model("lstm", "LSTM, 10 layers x 256 units, 64 steps: scan", (1, 64), 2e-5, build)
