"""Small programs that each isolate one cost of control flow, as ``() -> (function, arguments)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def skipped_conds() -> Program:
    """32 conds with matvec-256 branches, none taken, 1000 times: the cost of a branch that is not taken."""
    random = np.random.default_rng(1)
    weights = [jnp.asarray(random.standard_normal((256, 256), np.float32) / 16) for _ in range(32)]

    def function(x: Any, limit: Any, weights: Any) -> Any:
        def body(_: Any, x: Any) -> Any:
            for k, w in enumerate(weights):
                x = lax.cond(x[k] > limit, lambda x, w: jnp.tanh(x @ w), lambda x, w: x, x, w)
            return x

        return lax.fori_loop(0, 1000, body, x)

    return function, (jnp.asarray(random.random(256, np.float32)), jnp.float32(1e9), weights)


def tiny_conds() -> Program:
    """A chain of 32 conds on eight numbers, 100 times: the cost of deciding between small branches."""

    def function(x: Any) -> Any:
        def body(_: Any, x: Any) -> Any:
            for _ in range(32):
                x = lax.cond(jnp.sum(x) > 0, lambda x: x * 0.5 - 0.3, lambda x: x * 0.25 + 0.2, x)
            return x

        return lax.fori_loop(0, 100, body, x)

    return function, (jnp.linspace(-1, 1, 8, dtype=jnp.float32),)


def _scalar_leaves(xs: Any, rates: Any) -> Any:
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        new, above = {}, x
        for name, value in state.items():
            error = jnp.tanh(above - value)
            new[name] = value + rates[name] * error
            above = value
        return new, above

    state = {name: jnp.float32(0) for name in rates}
    state, surprise = lax.scan(step, state, xs)
    return jnp.sum(surprise**2) + sum(state.values())


def _leaves_and_inputs() -> tuple[Any, Any]:
    random = np.random.default_rng(2)
    rates = {f"node{k:02d}": jnp.float32(rate) for k, rate in enumerate(random.uniform(0.1, 0.9, 60))}
    return jnp.asarray(random.standard_normal(614, np.float32)), rates


def scalar_leaves() -> Program:
    """A scan of 614 steps whose state is 60 separate scalars."""
    return _scalar_leaves, _leaves_and_inputs()


def scalar_leaves_gradient() -> Program:
    """The gradient of the same scan (jax issue 40150)."""
    return jax.grad(_scalar_leaves, argnums=1), _leaves_and_inputs()


def pass_through() -> Program:
    """A scan of 1000 steps in which a cond passes three 128x128 matrices through (jax issue 38145)."""
    random = np.random.default_rng(3)
    state = tuple(jnp.asarray(random.standard_normal((128, 128), np.float32)) for _ in range(3))

    def function(state: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> tuple[Any, Any]:
            state = lax.cond(x > 0, lambda s: tuple(a * 0.5 + x for a in s), lambda s: s, state)
            return state, None

        return lax.scan(step, state, xs)[0]

    return function, (state, jnp.full(1000, -1.0, jnp.float32))


def empty_call() -> Program:
    """A loop of two trips on eight numbers, which isolates the cost of a call."""

    def function(x: Any, count: Any) -> Any:
        return lax.fori_loop(0, count, lambda _, x: x + 1, x)

    return function, (jnp.zeros(8, jnp.float32), jnp.int32(2))


def lstm_stacked(steps: int = 64, hidden: int = 256, depth: int = 10, batch: int = 1) -> Program:
    """The LSTM model with the weights and states of all layers stacked in one array each, a common style."""
    random = np.random.default_rng(4)
    scale = np.float32((2 * hidden) ** -0.5)
    w = jnp.asarray(random.standard_normal((depth, 2 * hidden, 4 * hidden), np.float32) * scale)
    b = jnp.asarray(random.standard_normal((depth, 4 * hidden), np.float32) * np.float32(0.1))
    xs = jnp.asarray(random.standard_normal((steps, batch, hidden), np.float32))

    def function(xs: Any, w: Any, b: Any) -> Any:
        def step(state: Any, x: Any) -> tuple[Any, None]:
            hs, cs = [], []
            for layer in range(depth):
                h, c = state[0][layer], state[1][layer]
                gates = jnp.concatenate([x, h], -1) @ w[layer] + b[layer]
                x, c = _lstm_cell(gates, c)
                hs.append(x)
                cs.append(c)
            return (jnp.stack(hs), jnp.stack(cs)), None

        zeros = jnp.zeros((depth, batch, hidden), xs.dtype)
        return lax.scan(step, (zeros, zeros), xs)[0][0][-1]

    return function, (xs, w, b)


def _lstm_cell(gates: Any, c: Any) -> tuple[Any, Any]:
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def vmapped_while() -> Program:
    """A batch of 256 loops with 55 trips on average, one of which takes 2000."""
    random = np.random.default_rng(5)
    trips = np.minimum(random.exponential(48.0, 256).astype(np.int32) + 1, 400)
    trips[17] = 2000
    trips[18] += max(55 * 256 - int(trips.sum()), 0)

    def lane(x: Any, a: Any, trips: Any) -> Any:
        def step(state: Any) -> Any:
            x, n = state
            return x - 0.01 * (x * x - a), n + 1

        return lax.while_loop(lambda state: state[1] < trips, step, (x, jnp.int32(0)))[0]

    x = jnp.asarray(random.uniform(0.5, 1.5, 256).astype(np.float32))
    return jax.vmap(lane), (x, x + 0.5, jnp.asarray(trips))


def vmapped_cond() -> Program:
    """A batch of 64, of which every 16th element runs four products with 128x128 matrices."""
    random = np.random.default_rng(6)
    weights = [jnp.asarray(random.standard_normal((128, 128), np.float32) / 12) for _ in range(4)]

    def work(x: Any, weights: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    def lane(taken: Any, x: Any, weights: Any) -> Any:
        return lax.cond(taken, work, lambda x, weights: x, x, weights)

    xs = jnp.asarray(random.standard_normal((64, 128), np.float32))
    return jax.vmap(lane, in_axes=(0, 0, None)), (jnp.arange(64) % 16 == 5, xs, weights)


# ---- by hand, with the arguments of the program of that name -----------------------------------------------


def hoisted_lstm(xs: Any, layers: Any) -> Any:
    """The input projection of all steps before the scan; that of other layers needs the layer below."""
    (w_ih, _, b_ih, _), *_ = layers
    zeros = jnp.zeros((xs.shape[1], w_ih.shape[0]), xs.dtype)

    def step(state: Any, gates: Any) -> tuple[Any, None]:
        new = []
        for layer, ((h, c), (w_ih, w_hh, b_ih, b_hh)) in enumerate(zip(state, layers, strict=True)):
            given = gates if layer == 0 else new[-1][0] @ w_ih + b_ih
            new.append(_lstm_cell(given + h @ w_hh + b_hh, c))
        return tuple(new), None

    return lax.scan(step, tuple((zeros, zeros) for _ in layers), xs @ w_ih + b_ih)[0][-1][0]


def hoisted_lstm_stacked(xs: Any, w: Any, b: Any) -> Any:
    """The same with stacked weights and states."""
    depth, size = w.shape[0], xs.shape[-1]

    def step(state: Any, gates: Any) -> tuple[Any, None]:
        hs, cs = [], []
        for layer in range(depth):
            h, c = state[0][layer], state[1][layer]
            if layer:
                gates = jnp.concatenate([hs[-1], h], -1) @ w[layer] + b[layer]
            else:
                gates = gates + h @ w[0, size:]
            h, c = _lstm_cell(gates, c)
            hs.append(h)
            cs.append(c)
        return (jnp.stack(hs), jnp.stack(cs)), None

    zeros = jnp.zeros((depth, xs.shape[1], w.shape[2] // 4), xs.dtype)
    return lax.scan(step, (zeros, zeros), xs @ w[0, :size] + b[0])[0][0][-1]


def _lstm_layer(xs: Any, w_ih: Any, w_hh: Any, bias: Any) -> Any:
    projected = xs @ w_ih + bias
    zeros = jnp.zeros((xs.shape[1], w_hh.shape[0]), xs.dtype)

    def step(state: Any, gates: Any) -> tuple[Any, Any]:
        h, c = _lstm_cell(gates + state[0] @ w_hh, state[1])
        return (h, c), h

    return lax.scan(step, (zeros, zeros), projected)[1]


def distributed_lstm(xs: Any, layers: Any) -> Any:
    """A different program: one scan per layer, after the input projection of all steps."""
    for w_ih, w_hh, b_ih, b_hh in layers:
        xs = _lstm_layer(xs, w_ih, w_hh, b_ih + b_hh)
    return xs[-1]


def distributed_lstm_stacked(xs: Any, w: Any, b: Any) -> Any:
    """The same from stacked weights."""
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


HOISTED: dict[str, Callable[..., Any]] = {
    "lstm": hoisted_lstm,
    "lstm_stacked": hoisted_lstm_stacked,
    "nasrnn": hoisted_nasrnn,
}

DISTRIBUTED: dict[str, Callable[..., Any]] = {
    "lstm": distributed_lstm,
    "lstm_stacked": distributed_lstm_stacked,
}

PROGRAMS: dict[str, Callable[[], Program]] = {
    function.__name__: function
    for function in (
        skipped_conds,
        tiny_conds,
        scalar_leaves,
        scalar_leaves_gradient,
        pass_through,
        empty_call,
        lstm_stacked,
        vmapped_while,
        vmapped_cond,
    )
}
