"""Models as an expert writes them for stock XLA, with the arguments of the model of that name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_cocktail_tools.models import rae
from jax_cocktail_tools.models.programs import gated


def hoisted_lstm(xs: Any, layers: Any) -> Any:
    """The input projection of all steps before the scan; that of other layers needs the layer below."""
    (w_ih, _, b_ih, _), *_ = layers
    zeros = jnp.zeros((xs.shape[1], w_ih.shape[0]), xs.dtype)

    def step(state: Any, gates: Any) -> tuple[Any, None]:
        new: list[Any] = []
        for layer, ((h, c), (w_ih, w_hh, b_ih, b_hh)) in enumerate(zip(state, layers, strict=True)):
            given = gates if layer == 0 else new[-1][0] @ w_ih + b_ih
            new.append(gated(given + h @ w_hh + b_hh, c))
        return tuple(new), None

    return lax.scan(step, tuple((zeros, zeros) for _ in layers), xs @ w_ih + b_ih)[0][-1][0]


def hoisted_lstm_stacked(xs: Any, w: Any, b: Any) -> Any:
    """Runs the layers with stacked weights and states."""
    depth, size = w.shape[0], xs.shape[-1]

    def step(state: Any, gates: Any) -> tuple[Any, None]:
        hs: list[Any] = []
        cs: list[Any] = []
        for layer in range(depth):
            h, c = state[0][layer], state[1][layer]
            if layer:
                gates = jnp.concatenate([hs[-1], h], -1) @ w[layer] + b[layer]
            else:
                gates = gates + h @ w[0, size:]
            h, c = gated(gates, c)
            hs.append(h)
            cs.append(c)
        return (jnp.stack(hs), jnp.stack(cs)), None

    zeros = jnp.zeros((depth, xs.shape[1], w.shape[2] // 4), xs.dtype)
    return lax.scan(step, (zeros, zeros), xs @ w[0, :size] + b[0])[0][0][-1]


def _lstm_layer(xs: Any, w_ih: Any, w_hh: Any, bias: Any) -> Any:
    projected = xs @ w_ih + bias
    zeros = jnp.zeros((xs.shape[1], w_hh.shape[0]), xs.dtype)

    def step(state: Any, gates: Any) -> tuple[Any, Any]:
        h, c = gated(gates + state[0] @ w_hh, state[1])
        return (h, c), h

    return lax.scan(step, (zeros, zeros), projected)[1]


def distributed_lstm(xs: Any, layers: Any) -> Any:
    """A different program: one scan per layer, after the input projection of all steps."""
    for w_ih, w_hh, b_ih, b_hh in layers:
        xs = _lstm_layer(xs, w_ih, w_hh, b_ih + b_hh)
    return xs[-1]


def distributed_lstm_stacked(xs: Any, w: Any, b: Any) -> Any:
    """Runs the distributed layers with stacked weights."""
    for layer in range(w.shape[0]):
        w_ih, w_hh = jnp.split(w[layer], [xs.shape[-1]])
        xs = _lstm_layer(xs, w_ih, w_hh, b[layer])
    return xs[-1]


def hoisted_nasrnn(xs: Any, w_ih: Any, w_hh: Any) -> Any:
    """The input projection of all steps before the scan, which then adds instead of multiplying."""
    inputs = xs @ w_ih
    zeros = jnp.zeros((xs.shape[1], w_hh.shape[0]), xs.dtype)
    sigmoid, relu, tanh = jax.nn.sigmoid, jax.nn.relu, jnp.tanh

    def step(state: Any, x: Any) -> tuple[Any, None]:
        c, m = state
        g = jnp.split(x + m @ w_hh, 8, axis=-1)
        first = tanh(sigmoid(g[0]) * relu(g[1]))
        second = tanh(sigmoid(g[2]) + relu(g[3]))
        third = tanh(tanh(g[4]) * sigmoid(g[5]))
        fourth = sigmoid(tanh(g[6]) * sigmoid(g[7]))
        c = tanh(first + c) * second
        return (c, tanh(c * tanh(third + fourth))), None

    return lax.scan(step, (zeros, zeros), inputs)[0][1]


# model -> how it is written -> the function. A loop over the nodes in post-order stands for recursion.
BY_HAND: dict[str, dict[str, Callable[..., Any]]] = {
    "lstm": {"hoisted": hoisted_lstm, "distributed": distributed_lstm},
    "lstm_stacked": {"hoisted": hoisted_lstm_stacked, "distributed": distributed_lstm_stacked},
    "nasrnn": {"hoisted": hoisted_nasrnn},
    "rae_recursive": {"loop": rae.rae},
}
