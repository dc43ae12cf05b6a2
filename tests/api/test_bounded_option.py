"""The option `max_trips`: JAX's own `while_loop` has a gradient inside of `jit`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail

OPTIONS = {"max_trips": 10, "force": "cocktail", "compile": "now"}
A, X = np.float32([1.3, 0.2, 0.7]), np.float32([0.4, 0.5, -1.0])


@jax.jit
def inner(a, x, n):
    return lax.while_loop(lambda s: s[1] < n, lambda s: (jnp.sin(a * s[0]), s[1] + 1), (x, 0))[0].sum()


def outer(a, x, n):
    return inner(a, x, n) + a.sum()


def unrolled(a, x, n):
    for _ in range(n):
        x = jnp.sin(a * x)
    return x.sum() + a.sum()


@pytest.mark.parametrize("n", [0, 4, 10])
def test_gradients_inside_and_outside(n):
    wanted = jax.grad(unrolled)(A, X, n)
    inside = jax_cocktail.jit(jax.grad(outer), options=OPTIONS)
    np.testing.assert_allclose(inside(A, X, n), wanted, 1e-5)
    np.testing.assert_allclose(jax.grad(jax_cocktail.jit(outer, options=OPTIONS))(A, X, n), wanted, 1e-5)
    np.testing.assert_allclose(jax_cocktail.jit(outer, options=OPTIONS)(A, X, n), unrolled(A, X, n), 1e-5)
    report = jax_cocktail.explain(inside)(A, X, n)
    assert len(report.captured) == 1 and not report.left


def test_bounds_do_not_mix():
    """What JAX caches of `inner` under one bound is neither used with another one nor without."""
    with pytest.raises(ValueError, match="Reverse-mode"):
        jax.grad(inner)(A, X, 7)
    for most in (7, 8):
        found = jax_cocktail.jit(jax.grad(inner), options={"max_trips": most})(A, X, 7)
        np.testing.assert_allclose(found, jax.grad(unrolled)(A, X, 7) - 1, 1e-5, 1e-6)
    with pytest.raises(ValueError, match="Reverse-mode"):
        jax.grad(inner)(A, X, 7)


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_more_trips_than_the_bound_are_an_error(place):
    if place == "inside":
        function = jax_cocktail.jit(jax.grad(outer), options=OPTIONS)
    else:
        function = jax.grad(jax_cocktail.jit(outer, options=OPTIONS))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="more than 10 trips; raise max_trips"):
        jax.block_until_ready(function(A, X, 11))


def test_a_bound_of_its_own_counts_more():
    def f(x):
        def step(s):
            twice = lax.while_loop(lambda t: t[1] < 2, lambda t: (jnp.sin(t[0]), t[1] + 1), (s[0], 0))
            return twice[0], s[1] + 1

        return jax_cocktail.while_loop(lambda s: s[1] < 12, step, (x, 0), max_trips=12)[0]

    def sines(x):
        for _ in range(24):
            x = jnp.sin(x)
        return x

    found = jax_cocktail.jit(jax.grad(f), options=OPTIONS)(0.7)
    np.testing.assert_allclose(found, jax.grad(sines)(0.7), 1e-4)


def test_loops_of_integers_have_no_bound():
    count = jax_cocktail.jit(lambda n: lax.while_loop(lambda i: i < n, lambda i: i + 1, 0), options=OPTIONS)
    assert count(25) == 25


def test_a_block_of_options_sets_it():
    function = jax_cocktail.jit(jax.grad(outer))
    with jax_cocktail.options(max_trips=5):
        np.testing.assert_allclose(function(A, X, 5), jax.grad(unrolled)(A, X, 5), 1e-5)


@pytest.mark.parametrize("value", [-1, 2.5, True])
def test_bad_values(value):
    with pytest.raises(ValueError, match="option 'max_trips' must be an integer >= 0"):
        jax_cocktail.jit(outer, options={"max_trips": value})
