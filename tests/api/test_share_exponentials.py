"""A softmax beside its logarithm, whose exponentials are computed once, against stock XLA and float64."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from benchmarks.census import accuracy

FORCED = {"scope": "memory_bound", "force": "cocktail", "strict": True, "profile": "off"}


def shares(x):
    return jnp.exp(jax.nn.log_softmax(x))


def entropy(x):
    logs = jax.nn.log_softmax(x)
    return -jnp.sum(jnp.exp(logs) * logs, axis=-1)


def divergence(x):
    logs = jax.nn.log_softmax(x)
    return jnp.sum(jnp.exp(logs) * (logs - jax.nn.log_softmax(x[::-1])), axis=-1)


def gradient(x):
    return jax.grad(lambda x: entropy(x).sum())(x)


FUNCTIONS = [shares, entropy, divergence, gradient]


def looped(function):
    """Of each matrix of a stack."""
    return lambda xs: lax.scan(lambda c, x: (c, function(x)), 0, xs)[1]


@pytest.mark.covering(2)
@pytest.mark.parametrize("units", [1, 2, 3])
@pytest.mark.parametrize("shape", [(5, 7), (64, 1000), (3, 1), (1, 300), (4, 6, 33)], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_error_is_at_most_twice_that_of_stock(function, shape, units):
    x = 5 * np.random.default_rng(1).standard_normal((2, *shape), np.float32)
    exact = accuracy.reference(looped(function), (x,))
    ours = jax_cocktail.jit(looped(function), options={**FORCED, "units": units})
    found, stock = (accuracy.error(f(x), exact) for f in (ours, jax.jit(looped(function))))
    assert not found.exceeds(stock), (found, stock)


def test_the_bits_do_not_depend_on_the_number_of_units():
    x = 5 * np.random.default_rng(1).standard_normal((600, 700), np.float32)
    one, two, three = (
        jax_cocktail.jit(divergence, options={**FORCED, "units": units})(x) for units in (1, 2, 3)
    )
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1)], ids=str)
def test_empty_and_single_elements(shape):
    x = np.ones((2, *shape), np.float32)
    for function in (shares, entropy):
        found = jax_cocktail.jit(looped(function), options=FORCED)(x)
        np.testing.assert_array_equal(found, jax.jit(looped(function))(x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_are_not_finite(dtype):
    """Rows with NaN, with infinities, of nothing but one of them, and of numbers that are far apart."""
    with jax.enable_x64(dtype == "float64"):
        x = np.random.default_rng(2).standard_normal((14, 70)).astype(dtype)
        x[1, 5] = np.nan
        x[2, 5] = np.inf
        x[3, 5] = -np.inf
        x[4, 5], x[4, 6] = np.inf, -np.inf
        x[5, 5], x[5, 6] = np.inf, np.inf
        x[6], x[7], x[8] = -np.inf, np.inf, np.nan
        x[9], x[9, 3] = -np.inf, 2.0
        x[10] = np.finfo(dtype).max
        x[11] = -np.finfo(dtype).max
        x[12, ::2], x[12, 1::2] = np.finfo(dtype).max, -np.finfo(dtype).max
        x[13] = -np.linspace(0, 800, 70)  # exponentials are denormal, then zero
        for function in (shares, entropy):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                found = np.asarray(jax_cocktail.jit(function, options=FORCED)(x))
                stock = np.asarray(jax.jit(function)(x))
            np.testing.assert_array_equal(np.isnan(found), np.isnan(stock))
            np.testing.assert_allclose(found, stock, rtol=1e-4, atol=1e-6)
