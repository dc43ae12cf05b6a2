"""The option `max_trips`: JAX's own `while_loop` has a gradient inside of `jit`."""

from __future__ import annotations

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.primitives.jaxprs import equations_in

LOOPS = "while", "bounded_while"
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


def sines(x):
    return lax.while_loop(lambda s: s[1] < 7, lambda s: (jnp.sin(s[0]), s[1] + 1), (x, 0))[0]


def in_blocks(x):
    """Loops and calls under the bound of the caller, under none, under another one."""
    value = sines(x)
    with jax_cocktail.options(max_trips=0):
        value += sines(x) + jax_cocktail.jit(sines)(x)
        with jax_cocktail.options(max_trips=9, strict=True):
            value += sines(x) + jax_cocktail.jit(sines)(x)
    return value + sines(x)


def bounds(function):
    """The bounds of all loops of a function, in their order; 0 for a loop of JAX's."""
    loops = [e for e in equations_in(jax.make_jaxpr(function)(0.5)) if e.primitive.name in LOOPS]
    return [e.params["loop"].most - 1 if "loop" in e.params else 0 for e in loops]


def with_bound(function, most=100):
    return jax_cocktail.jit(function, options={"max_trips": most})


@pytest.mark.parametrize(
    "function, wanted",
    [
        (with_bound(lambda x: with_bound(sines, 0)(x) + sines(x)), [0, 100]),
        (with_bound(lambda x: with_bound(sines, 8)(x) + sines(x)), [8, 100]),
        (with_bound(lambda x: jax_cocktail.jit(sines)(x) + jax.jit(sines)(x)), [100, 100]),
        (with_bound(lambda x: with_bound(jax.jit(sines), 0)(x) + jax.jit(sines)(x)), [0, 100]),
        (with_bound(lambda x: with_bound(with_bound(sines, 8), 0)(x)), [8]),
        (with_bound(in_blocks), [100, 0, 0, 9, 9, 100]),
        (jax.jit(in_blocks), [0, 0, 0, 0, 9, 0]),
    ],
)
@pytest.mark.parametrize("around", [None, 0, 50])
def test_the_innermost_bound_counts(function, wanted, around):
    """The options of a function count more than a block around the call, and less than one inside of it."""
    with nullcontext() if around is None else jax_cocktail.options(max_trips=around):
        assert bounds(function) == wanted
        np.testing.assert_allclose(function(0.5), len(wanted) * jax.jit(sines)(0.5), 1e-6)


def without_bound(x):
    return with_bound(sines, 0)(x)


TRANSFORMS = {
    "value": lambda f: f,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (2 * x,)),
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])),
    "jvp of vmap": lambda f: lambda x: jax.jvp(jax.vmap(f), (jnp.stack([x, x]),), (jnp.stack([x, 2 * x]),)),
    "vmap of jvp": lambda f: lambda x: jax.vmap(lambda y: jax.jvp(f, (x,), (y,)))(jnp.stack([x, 2 * x])),
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
}


@pytest.mark.parametrize("how", TRANSFORMS)
def test_no_bound_inside_of_one_stays_away(how):
    """JAX's rules make the loop anew under the bound around it, which it would exceed."""
    transformed = TRANSFORMS[how](without_bound)
    found = jax_cocktail.jit(transformed, options={**OPTIONS, "max_trips": 3})(0.5)
    wanted = jax.jit(TRANSFORMS[how](sines))(0.5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), found, wanted)
    assert bounds(with_bound(transformed, 3)) == [0]


def test_no_bound_inside_of_one_has_no_gradient():
    with pytest.raises(ValueError, match="Reverse-mode"):
        with_bound(jax.grad(without_bound))(0.5)


@pytest.mark.parametrize("value", [-1, 2.5, True, "9", None, 1 << 30 | 1])
def test_bad_values(value):
    error = "option 'max_trips' must be an integer from 0 to 1073741824, not"
    for give in (lambda **options: jax_cocktail.jit(outer, options=options), jax_cocktail.Options):
        with pytest.raises(ValueError, match=error):
            give(max_trips=value)
    with pytest.raises(ValueError, match=error), jax_cocktail.options(max_trips=value):
        pass


@pytest.mark.parametrize("text", ["-1", "2.5", "many", str(1 << 30 | 1)])
def test_bad_values_of_the_environment(text, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_MAX_TRIPS", text)
    with pytest.raises(ValueError, match="JAX_COCKTAIL_MAX_TRIPS must be an integer from 0 to 1073741824"):
        jax_cocktail.jit(outer)
