"""Batches of loops that mix no batch elements: what one element computes, how many there are, and how often
their loops run. `rows` checks and times them, `elements` shows their plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.packed import BY_THREADS, TOGETHER

Program = tuple[Callable[..., Any], tuple[Any, ...]]

SMALL = 200  # elements of the tests' sizes: more than a warp of each unit
SIDE, SMALL_SIDE = 512, 14  # pixels of a picture
FAR = 50.0  # a ray that gets so far meets nothing


def collatz(n: Any) -> Any:
    """Steps until the Collatz sequence of n reaches 1."""

    def following(state: Any) -> Any:
        n, steps = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return jax.lax.while_loop(lambda state: state[0] > 1, following, (n, 0))[1]


def lorenz(state: Any) -> Any:
    """500 steps of the Lorenz system by the classical Runge-Kutta method."""

    def slope(s: Any) -> Any:
        x, y, z = s
        return jnp.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z])

    def step(_: Any, s: Any) -> Any:
        h = 0.01
        a = slope(s)
        b = slope(s + h / 2 * a)
        c = slope(s + h / 2 * b)
        d = slope(s + h * c)
        return s + h / 6 * (a + 2 * b + 2 * c + d)

    return jax.lax.fori_loop(0, 500, step, state)


def price_path(key: Any, start: Any) -> Any:
    """What a call option pays at the end of a random path of 252 days (Black and Scholes)."""

    def day(_: Any, state: Any) -> Any:
        price, key = state
        key, sub = jax.random.split(key)
        return price * jnp.exp(-0.0001 + 0.02 * _drawn(jax.random.normal, sub, price)), key

    return jnp.maximum(jax.lax.fori_loop(0, 252, day, (start, key))[0] - 100, 0)


def march(pixel: Any) -> Any:
    """The distance of the first surface behind a pixel: a sphere above a plane."""
    return jnp.minimum(_marched(pixel)[0], FAR)


def _marched(pixel: Any) -> Any:
    """The distance, and the number of steps."""
    ray = jnp.stack([pixel[0], pixel[1], jnp.ones_like(pixel[0])])
    ray = ray / jnp.linalg.norm(ray)

    def distance(at: Any) -> Any:
        return jnp.minimum(jnp.linalg.norm(at - jnp.array([0.0, 0.0, 3.0])) - 1.0, at[1] + 1.0)

    def going(state: Any) -> Any:
        along, number, near = state
        return (number < 128) & (near > 1e-3) & (along < FAR)

    def step(state: Any) -> Any:
        along, number, _ = state
        near = distance(along * ray)
        return along + near, number + 1, near

    start = jnp.zeros_like(pixel[0]), 0, jnp.ones_like(pixel[0])
    return jax.lax.while_loop(going, step, start)[:2]


def metropolis(key: Any, start: Any) -> Any:
    """1000 steps of a Metropolis sampler of four numbers."""

    def density(x: Any) -> Any:
        return -0.5 * jnp.sum(x * x * jnp.arange(1, 5))

    def step(_: Any, state: Any) -> Any:
        x, log, key = state
        key, move, chance = jax.random.split(key, 3)
        y = x + 0.5 * _drawn(jax.random.normal, move, x)
        accepted = jnp.log(_drawn(jax.random.uniform, chance, log)) < density(y) - log
        return jnp.where(accepted, y, x), jnp.where(accepted, density(y), log), key

    return jax.lax.fori_loop(0, 1000, step, (start, density(start), key))[0]


def _drawn(draw: Callable[..., Any], key: Any, like: Any) -> Any:
    """Numbers of a shape and a type. They come from float32 even for float64, whose bits are others."""
    return draw(key, like.shape, jnp.float32).astype(like.dtype)


# ---- rows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ensemble:
    """A batch of loops.

    function: of the whole batch. arguments: of so many elements. count: of the row. tolerance: as in
    `rows.Row`. strays: the share of elements that a rounding error may send another way, since a decision
    depends on it. trips: of the loop of each element, in the order of the batch; None if the program says how
    many there are.
    """

    function: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    count: int
    tolerance: float = 2e-5
    strays: float = 0.0
    trips: Callable[..., Any] | None = None

    def make(self, small: bool) -> Program:
        """The function and its arguments, the latter of few elements if `small`."""
        return self.function, self.arguments(SMALL if small else self.count)

    def trips_by_way(self, small: bool, warp: int) -> dict[str, int]:
        """Trips of the loop by the way in which it runs: threads of a warp wait for the last of them, and
        elements that stay together for the last of all. The former is the mean of all warps. Nothing if the
        program says how many there are."""
        if self.trips is None:
            return {}
        trips = np.asarray(jax.jit(self.trips)(*self.make(small)[1])).reshape(-1)
        longest = np.maximum.reduceat(trips, np.arange(0, trips.size, warp))
        return {BY_THREADS: round(float(longest.mean())), TOGETHER: int(trips.max())}


def _numbers(count: int) -> tuple[Any, ...]:
    return (jnp.arange(1, count + 1, dtype=jnp.int32),)


def _states(count: int) -> tuple[Any, ...]:
    """Different ones, so that an element in another's place is noticed."""
    return (1 + jnp.linspace(0, 1, count)[:, None] * jnp.array([1.0, 0.5, 0.25]),)


def _keys(count: int) -> Any:
    return jax.random.split(jax.random.PRNGKey(0), count)


def _pixels(count: int) -> tuple[Any, ...]:
    line = jnp.linspace(-1, 1, SIDE if count >= SIDE**2 else SMALL_SIDE)
    return (jnp.stack(jnp.meshgrid(line, line), -1),)


def _ensembles() -> dict[str, Ensemble]:
    sequences, picture = jax.vmap(collatz), jax.vmap(jax.vmap(march))
    steps = jax.vmap(jax.vmap(lambda pixel: _marched(pixel)[1]))
    return {
        "collatz/10000": Ensemble(sequences, _numbers, 10**4, trips=sequences),
        "collatz/1000000": Ensemble(sequences, _numbers, 10**6, trips=sequences),
        "lorenz/100000": Ensemble(jax.vmap(lorenz), _states, 10**5, tolerance=1e-4),
        "price_paths/100000": Ensemble(
            jax.vmap(price_path, (0, None)), lambda n: (_keys(n), jnp.float32(100)), 10**5
        ),
        "ray_marching/262144": Ensemble(picture, _pixels, SIDE**2, tolerance=1e-4, strays=1e-3, trips=steps),
        "metropolis/4096": Ensemble(
            jax.vmap(metropolis, (0, None)), lambda n: (_keys(n), jnp.zeros(4)), 4096, strays=0.01
        ),
    }


ENSEMBLES = _ensembles()
