"""`jit` of what was derived from a jitted function: wrappers copy attributes, ours must not mix in."""

from __future__ import annotations

import functools
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.special import zeta

import jax_cocktail

X = jnp.arange(3.0)


@pytest.fixture
def loss():
    def function(x):
        return lax.fori_loop(0, 5, lambda _, x: jnp.sin(x) * 1.1, x).sum()

    return jax_cocktail.jit(function, options={"force": "cocktail"})


DERIVED = {
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "vmap": lambda f: jax.vmap(lambda x: f(x[None])),
    "vmap itself": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])),
    "checkpoint": jax.checkpoint,
    "hessian": jax.hessian,
    "jacfwd": jax.jacfwd,
}


@pytest.mark.parametrize("name", DERIVED)
def test_jit_of_a_derived_function(loss, name):
    derived = DERIVED[name](loss)
    ours = jax_cocktail.jit(derived, options={"force": "cocktail"})(X)
    stock = jax.jit(DERIVED[name](loss.__wrapped__))(X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, stock)


def test_jit_of_a_wrapper(loss):
    @functools.wraps(loss)
    def twice(x):
        return 2 * loss(x)

    np.testing.assert_allclose(jax_cocktail.jit(twice)(X), 2 * loss(X), rtol=1e-6)


def test_jit_of_a_jitted_function_takes_the_new_options(loss):
    report = jax_cocktail.explain(jax_cocktail.jit(loss.__wrapped__, options={"force": "stock"}))(X)
    assert report.choice == "stock"


def test_explain_of_a_derived_function(loss):
    first = jax_cocktail.explain(loss)(X)
    second = jax_cocktail.explain(jax.grad(loss))(X)
    assert str(first) != str(second)


def test_callable_object_with_attributes_of_our_names():
    class Model:
        def __init__(self):
            self._function = jnp.sin
            self._inner = "mine"
            self.lower = 0.0

        def __call__(self, x):
            return lax.fori_loop(0, 3, lambda _, x: jnp.sin(x), x)

    ours = jax_cocktail.jit(Model(), options={"force": "cocktail"})(X)
    np.testing.assert_allclose(ours, jnp.sin(jnp.sin(jnp.sin(X))), rtol=1e-6)


def test_explain_of_a_bound_method():
    class Model:
        def __init__(self):
            self.trips = 4

        @functools.partial(jax_cocktail.jit, static_argnames=("self",), options={"force": "cocktail"})
        def run(self, x):
            return lax.fori_loop(0, self.trips, lambda _, x: jnp.sin(x), x)

    report = jax_cocktail.explain(Model().run)(X)
    assert len(report.captured) == 1


def test_explain_without_jit(loss):
    with jax.disable_jit():
        assert jax_cocktail.explain(loss)(X).why == "jax.disable_jit is in force"


def test_dump_folder_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    options = {"force": "cocktail", "dump_to": str(blocked / "folder")}
    with pytest.warns(jax_cocktail.CocktailWarning, match="dump_to: cannot write"):
        y = jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda _, x: x + 1, x), options=options)(X)
    np.testing.assert_array_equal(y, X + 3)


def test_warnings_are_at_the_users_line():
    def loop(x):
        return lax.fori_loop(0, 3, lambda _, x: zeta(x + 2, 2.0), x)

    with pytest.warns(jax_cocktail.CocktailWarning) as caught:
        jax_cocktail.jit(loop)(jnp.eye(2))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("array", [jnp.ones, lambda n: np.ones(n, np.float32)], ids=["jax", "numpy"])
def test_debug_nans_finds_the_place(array):
    function = jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: jnp.log(c - 10), x))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        function(array(3))


def test_a_function_that_is_jitted_again_is_not_traced_again():
    traced = []

    def function(x, trips):
        traced.append(trips)
        return lax.fori_loop(0, trips, lambda _, x: x + 1, x)

    def traces(force, **jit_options):
        traced.clear()
        y = jax_cocktail.jit(function, options={"force": force}, **jit_options)(X, 3)
        np.testing.assert_array_equal(y, X + 3)
        return len(traced)

    ways = [("cocktail", {}), ("cocktail", {"static_argnums": 1}), ("stock", {})]
    assert [traces(force, **options) for force, options in ways] == [1, 1, 1]
    assert [traces(force, **options) for force, options in ways] == [0, 0, 0]
    jax_cocktail.jit(function).clear_cache()
    assert [traces(force, **options) for force, options in ways] == [1, 0, 1]


def test_what_jax_cannot_jit_is_refused_at_once():
    def generator():
        yield 1

    for wrong in (3, staticmethod(jnp.sin), generator):
        with pytest.raises(TypeError) as stock:
            jax.jit(wrong)
        with pytest.raises(TypeError) as ours:
            jax_cocktail.jit(wrong)
        assert str(ours.value) == str(stock.value)


class Shift:
    """A function that nothing can refer to weakly, which says nothing of itself."""

    __slots__ = ()

    def __call__(self, x):
        return lax.fori_loop(0, 3, lambda _, x: x + 1, x)

    def __repr__(self):
        raise ValueError


def test_unusual_functions():
    ours = jax_cocktail.jit(Shift(), options={"force": "cocktail"})
    np.testing.assert_array_equal(ours(X), X + 3)
    assert repr(ours) == "<jax_cocktail.jit of Shift>"
    again = pickle.loads(pickle.dumps(jax_cocktail.jit(math.sqrt, options={"force": "stock"})))
    assert repr(again) == f"<jax_cocktail.jit of {math.sqrt!r}>"


def test_attributes_of_the_function():
    def function(x):
        return x

    function.note = "mine"
    assert jax_cocktail.jit(function).note == jax.jit(function).note == "mine"
