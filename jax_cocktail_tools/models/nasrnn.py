"""NASRNN: the eight-gate recurrent cell found by architecture search (Zoph and Le, ICLR'17), 1000 steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_cocktail_tools.models.model import Instance, Model, generator, normal


def nasrnn(inputs: Any, w_ih: Any, w_hh: Any) -> Any:
    """``inputs`` is (steps, batch, features); returns the last hidden state."""
    _, batch, _ = inputs.shape
    zeros = jnp.zeros((batch, w_hh.shape[0]), inputs.dtype)
    sigmoid, relu, tanh = jax.nn.sigmoid, jax.nn.relu, jnp.tanh

    def step(state: Any, x: Any) -> tuple[Any, None]:
        c, m = state
        g = jnp.split(x @ w_ih + m @ w_hh, 8, axis=-1)
        first = tanh(sigmoid(g[0]) * relu(g[1]))
        second = tanh(sigmoid(g[2]) + relu(g[3]))
        third = tanh(tanh(g[4]) * sigmoid(g[5]))
        fourth = sigmoid(tanh(g[6]) * sigmoid(g[7]))
        c = tanh(first + c) * second
        return (c, tanh(c * tanh(third + fourth))), None

    (_, m), _ = lax.scan(step, (zeros, zeros), inputs)
    return m


def build(batch: int, small: bool) -> Instance:
    steps, hidden = (23, 16) if small else (1000, 256)
    random = generator("nasrnn")
    weights = [jnp.asarray(normal(random, hidden, 8 * hidden, scale=0.5 * hidden**-0.5)) for _ in range(2)]
    return nasrnn, (jnp.asarray(normal(random, steps, batch, hidden)), *weights)


MODEL = Model("nasrnn", "NASRNN, 256 units, 8 gates, 1000 steps: scan", (1, 64), 2e-5, build)
