"""Small programs that each isolate one cost of control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail_tools.models.model import Instance, Model

TOLERANCE = 2e-5


def skipped_conds() -> Instance:
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


def tiny_conds() -> Instance:
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


def scalar_leaves() -> Instance:
    """A scan of 614 steps whose state is 60 separate scalars."""
    return _scalar_leaves, _leaves_and_inputs()


def scalar_leaves_gradient() -> Instance:
    """The gradient of the same scan (jax issue 40150)."""
    return jax.grad(_scalar_leaves, argnums=1), _leaves_and_inputs()


def pass_through() -> Instance:
    """A scan of 1000 steps in which a cond passes three 128x128 matrices through (jax issue 38145)."""
    random = np.random.default_rng(3)
    state = tuple(jnp.asarray(random.standard_normal((128, 128), np.float32)) for _ in range(3))

    def function(state: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> tuple[Any, Any]:
            state = lax.cond(x > 0, lambda s: tuple(a * 0.5 + x for a in s), lambda s: s, state)
            return state, None

        return lax.scan(step, state, xs)[0]

    return function, (state, jnp.full(1000, -1.0, jnp.float32))


def empty_call() -> Instance:
    """A loop of two trips on eight numbers, which isolates the cost of a call."""

    def function(x: Any, count: Any) -> Any:
        return lax.fori_loop(0, count, lambda _, x: x + 1, x)

    return function, (jnp.zeros(8, jnp.float32), jnp.int32(2))


def lstm_stacked(steps: int = 64, hidden: int = 256, depth: int = 10, batch: int = 1) -> Instance:
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
                x, c = gated(gates, c)
                hs.append(x)
                cs.append(c)
            return (jnp.stack(hs), jnp.stack(cs)), None

        zeros = jnp.zeros((depth, batch, hidden), xs.dtype)
        return lax.scan(step, (zeros, zeros), xs)[0][0][-1]

    return function, (xs, w, b)


def gated(gates: Any, c: Any) -> Any:
    """An LSTM cell after its products: the new output and state."""
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def vmapped_while() -> Instance:
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


def vmapped_cond() -> Instance:
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


def _model(program: Callable[[], Instance]) -> Model:
    """A program as a model, which has one size. Its docstring describes it."""
    about = (program.__doc__ or "").rstrip(".")
    return Model(program.__name__, about, (1,), TOLERANCE, lambda batch, small: program())


PROGRAMS: dict[str, Model] = {
    program.__name__: _model(program)
    for program in (
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
