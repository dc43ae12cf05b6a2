"""Predicted beside counted loads and stores: of every program of the table, and of single operators."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks.traffic.__main__ import UNITS, counts, recorded
from benchmarks.traffic.programs import CASES, Case, regions
from benchmarks.traffic.table import COMPARABLE, MEMORIES, ratio, row

pytestmark = pytest.mark.skipif(not COMPARABLE, reason="counts are those of programs for x86-64")
FACTOR = 1.05  # between a prediction and a count, of loaded and of stored bytes of a memory
TOLERANCE = 1.02  # between counts of two releases of a compiler
LINE = 64  # bytes that do not count: compilers may keep a few numbers that a program reads again

row = functools.cache(row)
KNOWN = recorded()


def far_apart(pair, factor):
    return max(pair) - min(pair) > LINE and ratio(*pair) > factor


def apart(found, factor=FACTOR):
    """Memories whose prediction and count differ by more than a factor."""
    return {
        memory: (predicted, counted)
        for memory in MEMORIES
        for predicted, counted in [(found.predicted[memory], found.counted[memory])]
        if far_apart((predicted.loaded, counted.loaded), factor)
        or far_apart((predicted.stored, counted.stored), factor)
    }


EACH_UNITS = pytest.mark.parametrize(
    "units", [UNITS[0], *(pytest.param(n, marks=pytest.mark.long) for n in UNITS[1:])]
)


@EACH_UNITS
@pytest.mark.parametrize("name", CASES)
def test_prediction_and_count_agree(name, units):
    found = row(CASES[name], units)
    assert apart(found) == {}


@EACH_UNITS
@pytest.mark.parametrize("name", CASES)
def test_programs_move_what_they_moved(name, units):
    """If a change is meant: python -m benchmarks.traffic --update."""
    here, there = counts(row(CASES[name], units)), KNOWN[name][str(units)]
    assert here.keys() == there.keys()
    pairs = {m: zip(here[m], there[m], strict=True) for m in here}
    far = {m: (here[m], there[m]) for m in here if any(far_apart(pair, TOLERANCE) for pair in pairs[m])}
    assert far == {}


def test_the_record_has_nothing_else():
    assert KNOWN.keys() == CASES.keys()


def _pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3), (1, 1, 1), "SAME")


def _gated(x):
    return jax.grad(lambda y: _pool(y).sum())(x)


SQUARE = np.random.default_rng(0).standard_normal((48, 48), np.float32)
IMAGE = np.random.default_rng(0).standard_normal((2, 12, 12, 16), np.float32)
STACK = np.random.default_rng(0).standard_normal((3, 16, 16), np.float32)
KERNEL = np.random.default_rng(0).standard_normal((3, 3, 16, 16), np.float32)
AT = np.array([5, 0, 31, 7, 7, 20], np.int32)


def _conv(x, kernel=KERNEL, **how):
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, jnp.asarray(kernel), (1, 1), "SAME", dimension_numbers=names, **how)


OPERATORS = {
    "gather": (lambda x: x.at[: AT.size].add(x[AT])[:48] * 0.5, SQUARE),
    "scatter": (lambda x: x.at[AT].add(x[: AT.size]), SQUARE),
    "roll": (lambda x: jnp.roll(x, 5, 1) + x, SQUARE),
    "pad": (lambda x: jnp.pad(x, ((1, 1), (2, 0)))[1:49, :48] + x, SQUARE),
    "cumsum": (lambda x: lax.cumsum(x, 1), SQUARE),
    "argmax": (lambda x: x + jnp.argmax(x, 1)[:, None], SQUARE),
    "sort": (lambda x: jnp.sort(jnp.sin(1e4 * x), 1), SQUARE),
    "top_k": (lambda x: x.at[:, :24].set(lax.top_k(jnp.sin(1e4 * x), 24)[0]), SQUARE),
    "pool": (_pool, STACK),
    "pool_gradient": (_gated, STACK),
    "transposed": (lambda x: x.T + x, SQUARE),
    "product": (lambda x: x @ x, SQUARE),
    "turned_product": (lambda x: (x.T @ x) * 0.1, SQUARE),
    "inner_product": (lambda x: (x @ x.T) * 0.1, SQUARE),
    "many_rows": (lambda x: (x @ x[:40]) * 0.1, np.tile(SQUARE, (7, 1))[:325, :40]),
    "few_rows": (lambda x: x.at[:3].set(x[:3] @ x), SQUARE),
    "batched": (lambda x: jnp.einsum("bij,bjk->bik", x, x) * 0.1, STACK),
    "convolution": (_conv, IMAGE),
    "grouped": (lambda x: _conv(x, KERNEL[:, :, :4], feature_group_count=4), IMAGE),
    "dilated": (lambda x: _conv(x, rhs_dilation=(2, 2)), IMAGE),
    "pointwise": (lambda x: _conv(x, KERNEL[:1, :1]), IMAGE),
}


ESTIMATED = {"sort": 1.25, "top_k": 1.25}  # comparisons depend on the values


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    step, x = OPERATORS[name]
    function = lambda x: lax.fori_loop(0, 3, lambda _, x: step(x), x)  # noqa: E731
    assert apart(row(Case(lambda: regions(function, (x,))), 1), ESTIMATED.get(name, FACTOR)) == {}
