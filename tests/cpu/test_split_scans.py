"""Argmax, argmin and running totals along any axis against NumPy and stock XLA, on cores and in the emulation
of a GPU: vector lanes, columns, parts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from tests.cpu.emulated import Emulation

SHAPES = {
    "one row": ((40009,), 0),
    "rows": ((3, 700), 1),
    "columns": ((700, 300), 0),  # more than one strip of columns
    "few long columns": ((30011, 3), 0),
    "middle": ((2, 600, 37), 1),
    "first of three": ((90, 2, 5), 0),
    "one element": ((1, 5), 0),
}
DTYPES = ["float32", "float16", "bfloat16", "int32", "uint8", "int64", "float64"]


def ours(function, units=1):
    return jax_cocktail.jit(function, options={"force": "cocktail", "units": units, "strict": True})


def twice(function):
    """A function of an operand and an axis, of several shapes and in a loop, so that it is ours: of twice its
    operand, and then of its operand."""

    def looped(xs):
        def step(i, _):
            axes = {shape: axis for shape, axis in SHAPES.values()}
            return [function(x * (2 - i).astype(x.dtype), axes[x.shape]) for x in xs]

        return lax.fori_loop(0, 2, step, step(jnp.int32(0), None))

    return looped


searches = twice(lambda x, axis: (lax.argmax(x, axis, np.int32), lax.argmin(x, axis, np.int32)))


def check_searches(found, xs):
    for (first, second), x, (name, (_, axis)) in zip(found, xs, SHAPES.items(), strict=True):
        np.testing.assert_array_equal(first, np.argmax(x, axis), name)
        np.testing.assert_array_equal(second, np.argmin(x, axis), name)


def numbers(dtype):
    """Few different ones, so that extremes repeat."""
    random = np.random.default_rng(0)
    few = [random.integers(0, 50, shape) for shape, _ in SHAPES.values()]
    return [jnp.asarray(x if np.issubdtype(np.dtype(dtype), np.integer) else x - 25.5, dtype) for x in few]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_extreme(dtype, units):
    with jax.enable_x64(True):
        xs = numbers(jnp.dtype(dtype))
        found = ours(searches, units)(xs)
        wide = "int64" if "int" in dtype else "float64"
        check_searches(found, [np.asarray(x.astype(wide)) for x in xs])


def test_the_first_nan_wins():
    random = np.random.default_rng(1)
    xs = [np.array(x) for x in numbers(np.float32)]
    for x, (_, axis) in zip(xs, SHAPES.values(), strict=True):
        x[random.random(x.shape) < 3 / x.shape[axis]] = np.nan
        x[random.random(x.shape) < 3 / x.shape[axis]] = np.inf
    check_searches(ours(searches, 2)(xs), xs)


def test_an_ascending_row():
    """Every block has an element that precedes all before it."""
    function = ours(lambda x: lax.fori_loop(0, 2, lambda i, _: lax.argmax(x - i, 0, np.int32), 0))
    x = np.arange(40009, dtype=np.float32)
    for row in (x, -x, np.full_like(x, -np.inf), np.full_like(x, np.nan)):
        assert int(function(row)) == np.argmax(row)


def running(reverse):
    def function(x, axis):
        sums = tuple(f(x, axis, reverse) for f in (lax.cumsum, lax.cummax, lax.cummin, lax.cumlogsumexp))
        return (*sums, lax.cumprod(1 + x, axis, reverse))

    return twice(function)


def small(*missing):
    random = np.random.default_rng(2)
    xs = [random.standard_normal(shape).astype(np.float32) / 50 for shape, _ in SHAPES.values()]
    for k, x in enumerate(xs if missing else ()):
        x.flat[x.size // 2] = missing[k % len(missing)]
    return xs


def check_running(function, xs, found):
    with jax.enable_x64(True):
        exact = jax.tree.leaves(jax.jit(function)([x.astype(np.float64) for x in xs]))
    triples = zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(function)(xs)), exact, strict=True)
    for mine, stock, right in triples:
        mine, stock, right = (np.asarray(v, np.float64) for v in (mine, stock, right))
        np.testing.assert_array_equal(np.isnan(mine), np.isnan(right))
        np.testing.assert_array_equal(np.isinf(mine), np.isinf(right))
        there = np.isfinite(right)
        mine, stock, right = mine[there], stock[there], right[there]
        bound = 2 * np.abs(stock - right).max() + 1e-6 * np.abs(right).max()
        assert np.abs(mine - right).max() <= bound


@pytest.mark.parametrize("reverse", [False, True])
def test_running_totals(reverse):
    xs = small(np.nan, -np.inf)[int(reverse) :: 2]
    check_running(running(reverse), xs, ours(running(reverse), 2)(xs))


@pytest.mark.parametrize(("reverse", "number"), [(True, 0), (False, 3)])
def test_blocks_of_threads_have_running_totals(reverse, number, monkeypatch):
    emulation = Emulation(launches=[]).install(monkeypatch)
    xs = [small()[number]]
    check_running(running(reverse), xs, ours(running(reverse))(xs))
    assert emulation.launches


def test_blocks_of_threads_search(monkeypatch):
    emulation = Emulation(launches=[]).install(monkeypatch)
    xs = [np.asarray(x) for x in numbers(np.float32)]
    check_searches(ours(searches)(xs), xs)
    assert emulation.launches
