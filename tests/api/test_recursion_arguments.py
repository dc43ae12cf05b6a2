"""Recursive functions are called like any other of Python's: with names, and without what has a default."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import RecursionTypeError, recursive

OURS = {"force": "cocktail", "strict": True, "units": 1}
PATHS = {
    "eager": lambda f: f,
    "stock": jax.jit,
    "ours": lambda f: jax_cocktail.jit(f, options=OURS),
}


@recursive(max_depth=8, max_calls=8, out_like=lambda x, n=0, *, scale=1.0, **more: x)
def power(self, x, n=2, *, scale=0.5, **more):
    """`scale` of the innermost call is its default."""

    def further():
        return self(n=n - 1, x=x, **more) * x + scale + more["offset"]

    return lax.cond(n < 1, lambda: x * 0 + scale, further)


def plain(x, n=2, *, scale=0.5, offset):
    return scale if n < 1 else plain(n=n - 1, x=x, offset=offset) * x + scale + offset


CALLS = {
    "positions": lambda f, x: f(x, 3, offset=0.25),
    "names": lambda f, x: f(n=3, x=x, scale=2.0, offset=0.25),
    "defaults": lambda f, x: f(x, offset=0.25),
    "some": lambda f, x: f(x, scale=x, offset=x),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("path", PATHS)
def test_values_and_gradients(path, call):
    function, x = PATHS[path](lambda x: CALLS[call](power, x)), np.float64(1.25)
    np.testing.assert_allclose(function(jnp.float32(x)), CALLS[call](plain, x), rtol=1e-6)
    slope = (CALLS[call](plain, x + 1e-6) - CALLS[call](plain, x - 1e-6)) / 2e-6
    gradient = PATHS[path](jax.grad(lambda x: CALLS[call](power, x)))
    np.testing.assert_allclose(gradient(jnp.float32(x)), slope, rtol=1e-5)


def test_one_function_however_it_is_called():
    """A name makes no other function of it, so the calls of two functions of each other meet."""
    seen = []

    @recursive(max_depth=8)
    def even(self, n, step=1):
        seen.append("even")
        return lax.cond(n < 1, lambda: 1, lambda: odd(step=step, n=n - step))

    @recursive(max_depth=8)
    def odd(self, n, step=1):
        seen.append("odd")
        return lax.cond(n < 1, lambda: 0, lambda: even(n - step))

    np.testing.assert_array_equal([even(k) for k in range(5)], [1, 0, 1, 0, 1])
    assert int(even(n=5, step=2)) == 0  # of 5, then 3, then 1, and from there by steps of one
    assert seen.count("even") == seen.count("odd") <= 4


def test_only_names():
    @recursive(max_depth=8)
    def count(self, *, n):
        return lax.cond(n < 1, lambda: n, lambda: self(n=n - 1) + 1)

    assert int(count(n=5)) == 5


def test_defaults_that_are_no_arrays():
    @recursive(max_depth=8)
    def count(self, n, seed=None):
        return lax.cond(n < 1, lambda: n if seed is None else seed, lambda: self(n - 1, seed) + 1)

    assert int(count(5)) == 5
    assert int(count(5, 10)) == 15


WRONG = {
    r"power\(self, x, n=2.* as its first parameter.*missing a required.*'x'": lambda: power(offset=1.0),
    f"too many positional.*{__name__.rpartition('.')[2]}": lambda: power(1.0, 2, 3),
    "multiple values for argument 'x'": lambda: power(1.0, x=2.0),
}


@pytest.mark.parametrize("message", WRONG)
def test_calls_that_do_not_fit(message):
    with pytest.raises(TypeError, match=message):
        WRONG[message]()


def test_calls_of_itself_that_do_not_fit():
    @recursive
    def count(self, n):
        return lax.cond(n < 1, lambda: n, lambda: self(n - 1, m=3))

    with pytest.raises(TypeError, match="unexpected keyword argument 'm'"):
        count(3)


@recursive
def of_first(self, n, x):
    return lax.cond(n < 1, lambda: x, lambda: self(n - 1, x * 2))


@recursive(out_like=lambda n: n)
def of_few(self, n, x):
    return lax.cond(n < 1, lambda: x, lambda: self(n - 1, x * 2))


@recursive
def in_python(self, n, x):
    return n if n < 1 else self(n - 1, x)


NOTED = {
    of_first: r"the body of of_first, whose calls return int32\[\], like its first argument \(.* out_like=",
    of_few: "out_like= of of_few, called with the arguments",
    in_python: "the body of in_python",
}


@pytest.mark.parametrize("function", NOTED, ids=lambda f: f.__name__)
def test_errors_of_others_say_whose_body_it_is(function):
    with pytest.raises(TypeError) as caught:
        function(3, jnp.ones(4))
    note, *_ = caught.value.__notes__  # the others are of JAX
    assert re.search(NOTED[function], note)
    assert f"{__file__}:{function.__wrapped__.__code__.co_firstlineno} " in note


def test_names_that_not_every_call_has():
    @recursive
    def count(self, n, **more):
        return lax.cond(n < 1, lambda: n, lambda: self(n - 1))

    with pytest.raises(RecursionTypeError, match="another structure.*'m'"):
        count(3, m=1)
