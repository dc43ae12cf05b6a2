"""Small programs for the card."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)


def newton(a: Any) -> Any:
    """A while loop whose trips depend on the data."""

    def going(x: Any) -> Any:
        return jnp.any(abs(x * x - a) > 1e-5 * a)

    return lax.while_loop(going, lambda x: 0.5 * (x + a / x), a)


def cells(x: Any, w: Any) -> Any:
    """A recurrence with a product in each step. x: (steps, batch, n), w: (n, n)."""

    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(x + h @ w)
        return h, h.sum(-1)

    return lax.scan(step, jnp.zeros_like(x[0]), x)


def lstm(xs: Any, w: Any, u: Any, b: Any) -> Any:
    """xs: (steps, batch, n), w, u: (n, 4 n), b: (4 n,). The hidden states."""

    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros_like(xs[0])
    return lax.scan(step, (zeros, zeros), xs)[1]


def lstm_arguments(steps: int = 5, batch: int = 3, n: int = 8) -> tuple[np.ndarray, ...]:
    return floats(steps, batch, n), floats(n, 4 * n), floats(n, 4 * n, seed=1), floats(4 * n)


def gru(xs: Any, w: Any, u: Any) -> Any:
    """xs: (steps, batch, n), w, u: (n, 3 n). The hidden states."""

    def step(h: Any, x: Any) -> Any:
        a, b = jnp.split(x @ w, 3, axis=-1), jnp.split(h @ u, 3, axis=-1)
        r, z = jax.nn.sigmoid(a[0] + b[0]), jax.nn.sigmoid(a[1] + b[1])
        h = (1 - z) * jnp.tanh(a[2] + r * b[2]) + z * h
        return h, h

    return lax.scan(step, jnp.zeros_like(xs[0]), xs)[1]


def gru_arguments(steps: int = 5, batch: int = 3, n: int = 8) -> tuple[np.ndarray, ...]:
    return floats(steps, batch, n), floats(n, 3 * n), floats(n, 3 * n, seed=1)


def two_layers(xs: Any, w: Any, u: Any) -> Any:
    """Two recurrences, one feeding the other: to be distributed, or pipelined. Weights: (2, n, n)."""

    def step(state: Any, x: Any) -> Any:
        new = []
        for k in range(2):
            x = jnp.tanh(x @ w[k] + state[k] @ u[k])
            new.append(x)
        return tuple(new), x

    return lax.scan(step, (jnp.zeros_like(xs[0]),) * 2, xs)


def two_layer_arguments(steps: int = 6, batch: int = 4, n: int = 8) -> tuple[np.ndarray, ...]:
    return floats(steps, batch, n), 0.5 * floats(2, n, n), 0.5 * floats(2, n, n, seed=1)


def decoder(table: Any, w: Any, token: Any, limit: Any) -> Any:
    """Greedy decoding: a token chooses the next one. table: (words, n), w: (n, words)."""

    def step(state: Any) -> Any:
        token, count, seen = state
        token = jnp.argmax(jnp.tanh(table[token]) @ w).astype(jnp.int32)
        return token, count + 1, seen.at[count].set(token)

    def going(state: Any) -> Any:
        return (state[0] != 0) & (state[1] < limit)

    return lax.while_loop(going, step, (token, jnp.int32(0), jnp.full(16, -1, jnp.int32)))


def decoder_arguments() -> tuple[Any, ...]:
    return floats(11, 12), floats(12, 11), np.int32(4), np.int32(16)


def moves(x: Any, w: Any) -> Any:
    """Elementwise arithmetic, sorting and movement: nothing is added up. x: (steps, m, n), w: (n, n)."""

    def step(state: Any, x: Any) -> Any:
        state = jnp.tanh(jnp.roll(state, 1, axis=0) + x) * w[: x.shape[0]]
        return jnp.flip(state, 1), (jnp.sort(state, axis=1), state.argmax(0))

    return lax.scan(step, x[0], x)


def mixed(x: Any, flags: Any, key: Any) -> Any:
    """Branches, integers, sorting and random numbers in a loop. x: (m, n) floats, flags: bools."""

    def step(state: Any, flag: Any) -> Any:
        x, key, count = state
        key, used = jax.random.split(key)

        def yes() -> Any:
            return jnp.sort(x, axis=-1) + jax.random.uniform(used, x.shape), jnp.argmax(x).astype(jnp.int32)

        y, index = lax.cond(flag, yes, lambda: (jnp.cumsum(x, axis=0) * 0.25, jnp.int32(-1)))
        return (y, key, count ^ (index * 7)), (index, lax.top_k(y[0], 3)[1])

    return lax.scan(step, (x, key, jnp.int32(5)), flags)


def mixed_arguments() -> tuple[Any, ...]:
    return floats(5, 13), np.array([1, 0, 0, 1, 1], bool), np.array([3, 4], np.uint32)
