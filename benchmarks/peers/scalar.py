"""Loops of scalars and short vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.peers.rows import Row, Run, library, normal


def collatz(numbers: Any) -> Any:
    """The length of the sequence of every number, int32."""

    def length(n: Any) -> Any:
        def step(state: Any) -> Any:
            n, count = state
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

        return lax.while_loop(lambda state: state[0] != 1, step, (n, jnp.int32(0)))[1]

    return jax.vmap(length)(numbers)


def lorenz(points: Any, steps: int) -> Any:
    """Euler steps of the Lorenz system from every point, (points, 3)."""

    def step(_: Any, xyz: Any) -> Any:
        x, y, z = xyz
        return x + 0.01 * 10.0 * (y - x), y + 0.01 * (x * (28.0 - z) - y), z + 0.01 * (x * y - (8 / 3) * z)

    return jnp.stack(lax.fori_loop(0, steps, step, tuple(points.T)), axis=-1)


def levenshtein(a: Any, b: Any) -> Any:
    """The edit distance of two words, by rows."""

    def row(above: Any, letter: Any) -> tuple[Any, None]:
        def cell(left: Any, given: Any) -> tuple[Any, Any]:
            corner, over, other = given
            found = jnp.minimum(jnp.minimum(left, over) + 1, corner + (letter != other))
            return found, found

        first = above[0] + 1
        _, rest = lax.scan(cell, first, (above[:-1], above[1:], b))
        return jnp.concatenate([first[None], rest]), None

    return lax.scan(row, jnp.arange(b.size + 1, dtype=jnp.int32), a)[0][-1]


def newton(start: Any, steps: int) -> Any:
    """Damped steps towards a root of x^3 - x - 2."""
    return lax.fori_loop(0, steps, lambda _, x: x - 0.1 * (x * x * x - x - 2.0) / (3.0 * x * x - 1.0), start)


def kalman(observed: Any, f: Any, h: Any, q: Any, r: Any) -> Any:
    """The filtered means of a state of n numbers that is observed as one, (steps, n)."""

    def step(state: Any, y: Any) -> Any:
        mean, cov = state
        mean, cov = f @ mean, f @ cov @ f.T + q
        gain = cov @ h / (h @ cov @ h + r)
        mean, cov = mean + gain * (y - h @ mean), cov - jnp.outer(gain, h @ cov)
        return (mean, cov), mean

    n = f.shape[0]
    return lax.scan(step, (jnp.zeros(n), jnp.eye(n)), observed)[1]


def metropolis(start: Any, moves: Any, draws: Any) -> Any:
    """The mean of a chain of samples. `moves`, `draws`: the random numbers of each step."""

    def energy(x: Any) -> Any:
        return 0.5 * (x * x).sum() + 0.1 * jnp.cos(3.0 * x).sum()

    def step(state: Any, given: Any) -> tuple[Any, None]:
        x, old, total = state
        move, draw = given
        new = energy(x + move)
        taken = jnp.log(draw) < old - new
        x, old = jnp.where(taken, x + move, x), jnp.where(taken, new, old)
        return (x, old, total + x), None

    _, _, total = lax.scan(step, (start, energy(start), jnp.zeros_like(start)), (moves, draws))[0]
    return total / draws.size


def _row(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], tolerance: float = 1e-4) -> Row:
    """A row with numba's function of the same name. Counts, which are no arrays, are static."""

    def compiled() -> Run:
        return partial(getattr(library("benchmarks.peers.numba_loops"), function.__name__), *arguments)

    arrays = jax.device_put(tuple(x for x in arguments if not isinstance(x, int)))
    counts = tuple(x for x in arguments if isinstance(x, int))
    called = (lambda *given: function(*given, *counts)) if counts else function
    called.__name__ = function.__name__
    return Row(name, called, arrays, {"numba": compiled}, tolerance)


def rows(seed: int) -> Iterator[Row]:
    """All loops, with numbers from a seed."""
    random = np.random.default_rng(seed)
    yield _row("Collatz of 100,000", collatz, (np.arange(1, 100_001, dtype=np.int32),))
    points = normal(random, 4096, 3)
    yield _row("Lorenz, 4,096 x 500 steps", lorenz, (points, 500), tolerance=np.inf)  # chaotic
    words = (random.integers(0, 4, 600).astype(np.int32) for _ in range(2))
    yield _row("Levenshtein 600", levenshtein, tuple(words))
    yield _row("10,000 scalar Newton steps", newton, (np.float32(random.uniform(2, 3)), 10_000))
    n = int(random.integers(3, 9))
    transition = np.eye(n, dtype=np.float32) + 0.1 * normal(random, n, n, scale=n**-0.5)
    noise, seen = 0.01 * np.eye(n, dtype=np.float32), np.eye(n, dtype=np.float32)[0]
    signal = normal(random, 2000)
    given = signal, transition, seen, noise, np.float32(0.5)
    yield _row(f"Kalman filter, {n} states, 2,000 steps", kalman, given)
    n = int(random.integers(4, 40))
    draws = random.uniform(size=5000).astype(np.float32)
    chain = normal(random, n), normal(random, 5000, n, scale=0.5), draws
    # a draw that is close to its limit may fall otherwise
    yield _row(f"Metropolis, {n} numbers, 5,000 steps", metropolis, chain, tolerance=0.2)
