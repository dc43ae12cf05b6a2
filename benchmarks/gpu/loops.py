"""The loops that people ask about: little work in each step, many steps, and gradients of recurrences.

An entry is ``small -> (function, arguments)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail_tools.models import programs

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def scalar_scan(small: bool) -> Program:
    """A scan of a million steps on one number."""
    steps = 1000 if small else 1_000_000

    def function(x: Any, a: Any) -> Any:
        return lax.scan(lambda x, _: (x * a + jnp.float32(0.1), None), x, None, length=steps)[0]

    return function, (jnp.float32(0.3), jnp.float32(0.999))


def vmapped_while(small: bool) -> Program:
    """256 lanes of a loop, one of which takes 2000 trips."""
    function, (x, a, trips) = programs.vmapped_while()
    return function, (x[:32], a[:32], trips[:32] // 20 + 1) if small else (x, a, trips)


def conjugate_gradient(small: bool) -> Program:
    """CG on a symmetric positive 256 x 256 system until the residual is small, at most 200 steps."""
    size = 24 if small else 256
    random = np.random.default_rng(11)
    factor = random.standard_normal((size, size)) / np.sqrt(size)
    matrix = jnp.asarray((factor @ factor.T + 0.5 * np.eye(size)).astype(np.float32))
    right = jnp.asarray(random.standard_normal(size).astype(np.float32))

    def function(matrix: Any, right: Any) -> Any:
        def step(state: Any) -> Any:
            n, x, r, p, rr = state
            q = matrix @ p
            alpha = rr / (p @ q)
            x, r = x + alpha * p, r - alpha * q
            new = r @ r
            return n + 1, x, r, r + (new / rr) * p, new

        def unfinished(state: Any) -> Any:
            return (state[4] > 1e-6 * (right @ right)) & (state[0] < 200)

        first = (jnp.int32(0), jnp.zeros_like(right), right, right, right @ right)
        return lax.while_loop(unfinished, step, first)[1]

    return function, (matrix, right)


def runge_kutta(small: bool) -> Program:
    """RK4 on 64 coupled oscillators, 2000 steps."""
    size, steps = (8, 20) if small else (64, 2000)
    random = np.random.default_rng(12)
    coupling = jnp.asarray((random.standard_normal((size, size)) / (4 * size)).astype(np.float32))
    state = jnp.asarray(random.standard_normal((2, size)).astype(np.float32))

    def function(state: Any, coupling: Any) -> Any:
        def slope(s: Any) -> Any:
            return jnp.stack([s[1], -s[0] - 0.1 * s[1] + coupling @ jnp.sin(s[0])])

        def step(_: Any, s: Any) -> Any:
            h = jnp.asarray(0.01, s.dtype)
            k1 = slope(s)
            k2 = slope(s + h / 2 * k1)
            k3 = slope(s + h / 2 * k2)
            k4 = slope(s + h * k3)
            return s + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

        return lax.fori_loop(0, steps, step, state)

    return function, (state, coupling)


def hidden_markov(small: bool) -> Program:
    """The forward algorithm of a hidden Markov model with 64 states over 1000 observations, in logarithms."""
    states, steps, symbols = (6, 15, 5) if small else (64, 1000, 32)
    random = np.random.default_rng(13)
    log_rows = lambda *s: jnp.asarray(  # noqa: E731
        np.log(random.dirichlet(np.ones(s[1]), s[0])).astype(np.float32)
    )
    observed = jnp.asarray(random.integers(0, symbols, steps).astype(np.int32))

    def function(start: Any, moves: Any, emits: Any, observed: Any) -> Any:
        def step(alpha: Any, symbol: Any) -> tuple[Any, None]:
            return jax.nn.logsumexp(alpha[:, None] + moves, axis=0) + emits[:, symbol], None

        alpha, _ = lax.scan(step, start[0] + emits[:, observed[0]], observed[1:])
        return jax.nn.logsumexp(alpha)

    return function, (log_rows(1, states), log_rows(states, states), log_rows(states, symbols), observed)


def _gates(random: np.random.Generator, count: int, hidden: int) -> tuple[Any, ...]:
    scale = hidden**-0.5
    shapes = ((hidden, count * hidden), (hidden, count * hidden), (count * hidden,))
    return tuple(jnp.asarray((random.standard_normal(s) * scale).astype(np.float32)) for s in shapes)


def _gradient(cell: Callable[..., Any], gates: int, seed: int, small: bool) -> Program:
    """Of the mean square of a scan's outputs, with respect to the weights; batch 64, 256 units, 64 steps."""
    steps, batch, hidden = (4, 3, 8) if small else (64, 64, 256)
    random = np.random.default_rng(seed)
    weights = _gates(random, gates, hidden)
    xs = jnp.asarray(random.standard_normal((steps, batch, hidden)).astype(np.float32))

    def loss(weights: Any, xs: Any) -> Any:
        zeros = jnp.zeros(xs.shape[1:], xs.dtype)
        _, ys = lax.scan(lambda s, x: cell(s, x, weights), (zeros, zeros), xs)
        return jnp.mean(ys**2)

    return jax.grad(loss), (weights, xs)


def _lstm(state: Any, x: Any, weights: Any) -> Any:
    (h, c), (w, u, b) = state, weights
    i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def _gru(state: Any, x: Any, weights: Any) -> Any:
    (h, unused), (w, u, b) = state, weights
    xr, xz, xn = jnp.split(x @ w + b, 3, axis=-1)
    hr, hz, hn = jnp.split(h @ u, 3, axis=-1)
    z = jax.nn.sigmoid(xz + hz)
    h = (1 - z) * jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn) + z * h
    return (h, unused), h


def lstm_gradient(small: bool) -> Program:
    """The gradient of an LSTM layer."""
    return _gradient(_lstm, 4, 14, small)


def gru_gradient(small: bool) -> Program:
    """The gradient of a GRU layer."""
    return _gradient(_gru, 3, 15, small)


LOOPS: dict[str, Callable[[bool], Program]] = {
    function.__name__: function
    for function in (
        scalar_scan,
        vmapped_while,
        conjugate_gradient,
        runge_kutta,
        hidden_markov,
        lstm_gradient,
        gru_gradient,
    )
}
