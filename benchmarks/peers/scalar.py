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


def logistic(x: Any, rates: Any) -> Any:
    """All values of the logistic map, with a rate of its own in each step."""

    def step(x: Any, rate: Any) -> tuple[Any, Any]:
        x = rate * x * (1.0 - x)
        return x, x

    return lax.scan(step, x, rates)[1]


def divisors(a: Any, b: Any) -> Any:
    """The sum of the greatest common divisors of pairs, by Euclid."""

    def pair(total: Any, given: Any) -> tuple[Any, None]:
        found, _ = lax.while_loop(lambda xy: xy[1] != 0, lambda xy: (xy[1], xy[0] % xy[1]), given)
        return total + found, None

    return lax.scan(pair, jnp.int32(0), (a, b))[0]


def walk(state: Any, steps: int) -> Any:
    """Where a walk ends that takes one of four kinds of steps, as a linear congruential generator says."""
    kinds = (
        lambda x, y, length: (x + length, y),
        lambda x, y, length: (x - length, y),
        lambda x, y, length: (x, y + length * x),
        lambda x, y, length: (x, y - jnp.sqrt(length)),
    )

    def step(_: Any, given: Any) -> Any:
        state, x, y = given
        state = jnp.uint32(1664525) * state + jnp.uint32(1013904223)
        length = (state >> 8).astype(jnp.float32) * 2.0**-24
        return state, *lax.switch((state >> 30).astype(jnp.int32), kinds, x, y, length)

    return jnp.stack(lax.fori_loop(0, steps, step, (state, jnp.float32(0), jnp.float32(0)))[1:])


def pendulum(angle: Any, speed: Any, damping: Any, steps: int) -> Any:
    """Angle and speed of a damped pendulum, after Euler steps."""

    def step(_: Any, given: Any) -> Any:
        angle, speed = given
        speed = speed + 0.01 * (-jnp.sin(angle) - damping * speed * jnp.exp(-speed * speed))
        return angle + 0.01 * speed, speed

    return jnp.stack(lax.fori_loop(0, steps, step, (angle, speed)))


def _row(
    name: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    found: np.ndarray,
    by_hand: tuple[Any, ...] = (),
    *,
    numba: bool = True,
    tolerance: float = 1e-4,
) -> Row:
    """A row with the functions of the same name in C++ and, maybe, numba. Counts, which are no arrays, are
    static. `found`: for the result of C++; `by_hand`: its arguments, if they are others."""
    name_there = function.__name__

    def compiled() -> Run:
        return partial(getattr(library("benchmarks.peers.numba_loops"), name_there), *arguments)

    def in_cpp() -> Run:
        return library("benchmarks.peers.by_hand").loop(name_there, found, *(by_hand or arguments))

    arrays = jax.device_put(tuple(x for x in arguments if not isinstance(x, int)))
    counts = tuple(x for x in arguments if isinstance(x, int))
    called = (lambda *given: function(*given, *counts)) if counts else function
    called.__name__ = name_there
    peers = {"C++": in_cpp, **({"numba": compiled} if numba else {})}
    return Row(name, called, arrays, peers, tolerance)


def rows(seed: int) -> Iterator[Row]:
    """All loops, with numbers from a seed."""
    random = np.random.default_rng(seed)
    yield from _numbers(random)
    yield from _filters(random)
    yield from _straight(random)


def _numbers(random: np.random.Generator) -> Iterator[Row]:
    numbers = np.arange(1, 100_001, dtype=np.int32)
    lengths = np.empty_like(numbers)
    yield _row("Collatz of 100,000", collatz, (numbers,), lengths, (numbers, numbers.size))
    points = normal(random, 4096, 3)
    given, there = (points, 500), (points, 4096, 500)  # chaotic: no result is like another
    yield _row("Lorenz, 4,096 x 500 steps", lorenz, given, points.copy(), there, tolerance=np.inf)
    a, b = (random.integers(0, 4, 600).astype(np.int32) for _ in range(2))
    yield _row("Levenshtein 600", levenshtein, (a, b), np.empty((), np.int32), (a, 600, b, 600))
    start = np.float32(random.uniform(2, 3))
    yield _row("10,000 scalar Newton steps", newton, (start, 10_000), np.empty((), np.float32))


def _filters(random: np.random.Generator) -> Iterator[Row]:
    n = int(random.integers(3, 9))
    transition = np.eye(n, dtype=np.float32) + 0.1 * normal(random, n, n, scale=n**-0.5)
    noise, seen = 0.01 * np.eye(n, dtype=np.float32), np.eye(n, dtype=np.float32)[0].copy()
    signal, rest = normal(random, 2000), (transition, seen, noise, np.float32(0.5))
    given, there = (signal, *rest), (signal, 2000, *rest, n)
    means = np.empty((2000, n), np.float32)
    yield _row(f"Kalman filter, {n} states, 2,000 steps", kalman, given, means, there)
    n = int(random.integers(4, 40))
    draws = random.uniform(size=5000).astype(np.float32)
    start, moves = normal(random, n), normal(random, 5000, n, scale=0.5)
    given, there = (start, moves, draws), (start, n, moves, draws, 5000)
    name = f"Metropolis, {n} numbers, 5,000 steps"  # a draw that is close to its limit may fall otherwise
    yield _row(name, metropolis, given, np.empty(n, np.float32), there, tolerance=0.2)


def _straight(random: np.random.Generator) -> Iterator[Row]:
    """Loops of a few scalars, whose steps need each other."""
    steps = int(random.integers(50_000, 150_000))
    start, rates = np.float32(0.3), random.uniform(2, 3.5, steps).astype(np.float32)
    given, there = (start, rates), (start, rates, steps)
    yield _row(f"{steps:,} steps of the logistic map", logistic, given, rates.copy(), there, numba=False)
    a, b = (random.integers(1, 1 << 30, 20_000).astype(np.int32) for _ in range(2))
    given, there = (a, b), (a, b, a.size)
    yield _row("20,000 greatest divisors", divisors, given, np.empty((), np.int32), there, numba=False)
    state, steps = np.uint32(random.integers(1 << 31)), int(random.integers(200_000, 400_000))
    name = f"walk of {steps:,} steps, four kinds"
    yield _row(name, walk, (state, steps), np.empty(2, np.float32), numba=False, tolerance=1e-2)
    angle, speed, damping = (np.float32(x) for x in random.uniform(0.2, 1.5, 3))
    name, ends = f"pendulum, {steps // 4:,} steps", np.empty(2, np.float32)
    given = (angle, speed, damping, steps // 4)
    yield _row(name, pendulum, given, ends, numba=False, tolerance=1e-3)
