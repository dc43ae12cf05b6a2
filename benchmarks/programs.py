"""Small programs that isolate one cost of control flow each; an entry is ``() -> (function, arguments)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def skipped_conds() -> Program:
    """32 conds with matvec-256 branches, none taken, 1000 times: what a branch costs that is not taken."""
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
    """A chain of 32 conds on eight numbers, 100 times: what deciding costs when branches do little."""

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
    """A scan of 1000 steps in which a cond hands three 128x128 matrices on (jax issue 38145)."""
    random = np.random.default_rng(3)
    state = tuple(jnp.asarray(random.standard_normal((128, 128), np.float32)) for _ in range(3))

    def function(state: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> tuple[Any, Any]:
            state = lax.cond(x > 0, lambda s: tuple(a * 0.5 + x for a in s), lambda s: s, state)
            return state, None

        return lax.scan(step, state, xs)[0]

    return function, (state, jnp.full(1000, -1.0, jnp.float32))


def empty_call() -> Program:
    """A loop of two trips on eight numbers: what remains is the cost of a call."""

    def function(x: Any, count: Any) -> Any:
        return lax.fori_loop(0, count, lambda _, x: x + 1, x)

    return function, (jnp.zeros(8, jnp.float32), jnp.int32(2))


PROGRAMS: dict[str, Callable[[], Program]] = {
    function.__name__: function
    for function in (
        skipped_conds,
        tiny_conds,
        scalar_leaves,
        scalar_leaves_gradient,
        pass_through,
        empty_call,
    )
}
