"""Calls under an eager `grad` or `vmap` wait for no compiler: they change over as a whole."""

from __future__ import annotations

import gc
import logging
import os
import threading
import warnings
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.cost.vector import Comparison
from jax_cocktail.lowering.choice import choose, survey
from jax_cocktail.lowering.run import background, first_call, tickets
from jax_cocktail.lowering.state import STATE
from jax_cocktail.memory import MEMORY
from tests.api.beside import changed

pytestmark = pytest.mark.all_candidates
OPTIONS = {"force": "cocktail", "compile": "background", "plans": "cached"}
X = jnp.linspace(0.1, 1, 24).reshape(4, 6)


def loss(x, weights):
    def step(carried, each):
        carried = jnp.tanh(carried * weights["w"]) + each
        return carried, jnp.sum(carried**2)

    return jnp.sum(lax.scan(step, x[0], x)[1])


WEIGHTS = {"w": jnp.linspace(0.5, 1.5, 6)}
MANY = jnp.stack([X, X + 1, X - 1])
TRANSFORMS = {
    "grad": lambda f: jax.grad(f)(X, WEIGHTS),
    "grad of the weights": lambda f: jax.grad(f, argnums=1)(X, WEIGHTS),
    "value_and_grad": lambda f: jax.value_and_grad(f, argnums=(0, 1))(X, WEIGHTS),
    "vmap": lambda f: jax.vmap(f, in_axes=(0, None))(MANY, WEIGHTS),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f), in_axes=(0, None))(MANY, WEIGHTS),
    "grad of vmap": lambda f: jax.grad(lambda many: jax.vmap(lambda x: f(x, WEIGHTS))(many).sum())(MANY),
    "jvp": lambda f: jax.jvp(lambda x: f(x, WEIGHTS), (X,), (X,)),
    "hessian": lambda f: jax.hessian(lambda w: f(X, {"w": w}))(WEIGHTS["w"]),
    "linearize": lambda f: jax.linearize(lambda x: f(x, WEIGHTS), X)[1](X),
    "by name": lambda f: jax.grad(lambda x: f(weights=WEIGHTS, x=x))(X),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))


@pytest.fixture
def planners(monkeypatch):
    """The names of the threads that have planned something."""
    found, make = [], survey.survey

    def planned(*facts):
        found.append(threading.current_thread().name)
        return make(*facts)

    monkeypatch.setattr(survey, "survey", planned)
    return found


def fresh(function=loss, **more):
    return jax_cocktail.jit(lambda x, weights: function(x, weights), options=OPTIONS | more)


def ours(call):
    """How many calls are lowered to our programs in this thread because of a call."""
    before = STATE.ours
    call()
    return STATE.ours - before


@pytest.mark.parametrize("name", TRANSFORMS)
def test_nobody_waits(folder, planners, name):
    transform, jitted = TRANSFORMS[name], fresh()
    expected = transform(jax.jit(loss))
    found = []
    assert changed(lambda: found.append(transform(jitted))) == 1
    assert set(planners) == {"jax_cocktail"}
    assert ours(lambda: found.append(transform(jitted))) >= 1  # at hand
    assert changed(lambda: found.append(transform(jitted))) == 0
    assert ours(lambda: transform(jitted)) == 0  # nothing is lowered any more
    for each in found:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), each, expected)
    again = fresh()
    assert changed(lambda: transform(again)) == 0  # it runs our programs from the first call on
    assert set(planners) == {"jax_cocktail"}


def test_each_transformation_changes_over_once(folder):
    jitted = fresh()
    calls = [lambda: jax.grad(jitted)(X, WEIGHTS), lambda: jax.grad(jitted)(X[:2], WEIGHTS)]
    calls += [lambda: jax.grad(jitted, argnums=1)(X, WEIGHTS), lambda: TRANSFORMS["vmap"](jitted)]
    assert [changed(call) for call in calls] == [1, 1, 1, 1]
    assert changed(lambda: [call() for call in calls]) == 0
    assert ours(lambda: [call() for call in calls]) == 0
    assert changed(lambda: jitted(X, WEIGHTS)) == 1  # a plain call is another one


def test_what_stock_runs_faster_is_not_lowered_again(folder, monkeypatch):
    monkeypatch.setattr(Comparison, "favours_stock", lambda self: True)
    traced = []

    def counted(x, weights):
        traced.append(True)
        return loss(x, weights)

    jitted = fresh(counted, force="auto")
    assert changed(lambda: jax.grad(jitted)(X, WEIGHTS)) == 0
    count = len(traced)
    assert changed(lambda: jax.grad(jitted)(X, WEIGHTS)) == 0
    assert len(traced) == count <= 2


def test_an_outer_jit_is_told_of_the_wait(folder, planners, monkeypatch, caplog):
    """It is lowered once, to our programs: the caller waits, and hears about it."""
    monkeypatch.setattr(choose, "LONG_SECONDS", 0.0)
    jitted = fresh()
    jax.grad(jitted)(X, WEIGHTS)  # leaves a ticket, which is not that of the outer function
    assert jax_cocktail.wait(60)
    planners.clear()
    with caplog.at_level(logging.WARNING, "jax_cocktail"):
        assert ours(lambda: jax.jit(jax.grad(lambda x: jitted(x, WEIGHTS) * 2.5))(X * 2)) >= 1
        again = fresh(lambda x, weights: loss(x, weights) + 1)
        assert ours(lambda: jax.jit(jax.grad(again))(X, WEIGHTS)) >= 1
    assert "MainThread" in planners
    assert "a jax_cocktail.jit of the outer function" in caplog.text


def test_an_error_is_told_once(folder, monkeypatch):
    def fails(*facts):
        raise jax_cocktail.UnsupportedError("nobody can", "a place")

    jitted = fresh()
    failed = jax_cocktail.cache_info().failed
    with monkeypatch.context() as patch, pytest.warns(jax_cocktail.CocktailWarning) as told:
        patch.setattr(survey, "survey", fails)
        assert changed(lambda: jax.grad(jitted)(X, WEIGHTS)) == 0
        assert changed(lambda: jax.grad(jitted)(X, WEIGHTS)) == 0
    assert len(told) == 1 and "stays with stock XLA" in str(told[0].message)
    assert "nobody can" in str(told[0].message) and told[0].filename == __file__
    MEMORY.counts.failed = failed


def test_static_arguments(folder):
    def function(x, count, weights):
        return lax.fori_loop(0, count, lambda i, c: jnp.tanh(c * weights["w"]), x).sum()

    jitted = jax_cocktail.jit(function, static_argnums=1, options=OPTIONS)
    for count in (2, 3):
        expected = jax.grad(function)(X, count, WEIGHTS)
        assert changed(lambda count=count: jax.grad(jitted)(X, count, WEIGHTS)) == 1
        for _ in range(2):
            np.testing.assert_allclose(jax.grad(jitted)(X, count, WEIGHTS), expected, rtol=1e-5)


def test_what_is_cleared_is_lowered_again(folder):
    scale = 1.0
    jitted = fresh(lambda x, weights: scale * loss(x, weights))
    first = jax.grad(jitted)(X, WEIGHTS)
    assert jax_cocktail.wait(60)
    scale = 2.0
    jitted.clear_cache()
    np.testing.assert_allclose(jax.grad(jitted)(X, WEIGHTS), 2 * first, rtol=1e-5)
    assert jax_cocktail.wait(60)
    np.testing.assert_allclose(jax.grad(jitted)(X, WEIGHTS), 2 * first, rtol=1e-5)


def test_sizes_of_batches_are_told_apart(folder):
    jitted = fresh()
    for many in (MANY, MANY[:2]):
        assert changed(lambda many=many: jax.vmap(jitted, in_axes=(0, None))(many, WEIGHTS)) == 1
    swapped = jnp.moveaxis(MANY, 0, 1)
    assert changed(lambda: jax.vmap(jitted, in_axes=(1, None))(swapped, WEIGHTS)) == 1


def test_a_part_that_is_met_later(folder):
    """The gradient after many values: the call changes over once more."""
    jitted, expected = fresh(), jax.grad(loss)(X, WEIGHTS)
    assert changed(lambda: jax.vjp(lambda x: jitted(x, WEIGHTS), X)) == 1
    assert changed(lambda: jax.vjp(lambda x: jitted(x, WEIGHTS), X)) == 0
    assert changed(lambda: jax.grad(jitted)(X, WEIGHTS)) == 1
    assert ours(lambda: jax.grad(jitted)(X, WEIGHTS)) == 2
    assert changed(lambda: jax.grad(jitted)(X, WEIGHTS)) == 0
    np.testing.assert_allclose(jax.grad(jitted)(X, WEIGHTS), expected, rtol=2e-5, atol=1e-6)


def test_options_of_xla(folder):
    options = {"xla_cpu_enable_fast_min_max": True}
    try:
        jax.grad(jax.jit(loss, compiler_options=options))(X, WEIGHTS)
    except ValueError:
        pytest.skip("this jax takes no such options under grad")
    jitted = jax_cocktail.jit(lambda x, w: loss(x, w), options=OPTIONS, compiler_options=options)
    assert changed(lambda: jax.grad(jitted)(X, WEIGHTS)) == 1
    assert ours(lambda: jax.grad(jitted)(X, WEIGHTS)) == 2
    assert changed(lambda: jax.grad(jitted)(X, WEIGHTS)) == 0


@pytest.mark.skipif(os.name != "posix" or not hasattr(os, "geteuid"), reason="about folders of POSIX systems")
def test_a_cache_folder_that_cannot_be_written(tmp_path, monkeypatch):
    place = tmp_path / "file"
    place.write_text("no folder", encoding="utf-8")
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(place))
    jitted = fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the cache is not used
        assert changed(lambda: jax.grad(jitted)(X, WEIGHTS)) == 1
        assert ours(lambda: jax.grad(jitted)(X, WEIGHTS)) == 2


def test_a_static_argument_that_cannot_be_hashed(folder):
    jitted = jax_cocktail.jit(lambda x, names: loss(x, WEIGHTS), static_argnums=1, options=OPTIONS)
    jax.grad(jitted)(X, ("a",))
    assert jax_cocktail.wait(60)
    with pytest.raises(ValueError, match="hash"):
        jax.grad(jitted)(X, ["a"])


def test_many_signatures(folder, monkeypatch):
    """They come again and again, and are compiled once."""
    monkeypatch.setattr(tickets, "MOST_TICKETS", 6)
    jitted = fresh()
    sizes = [X[:, :1 + n % 6] for n in range(6)]
    for _ in range(2):
        for x in sizes:
            jax.grad(jitted)(x, {"w": WEIGHTS["w"][: x.shape[1]]})
        assert jax_cocktail.wait(60)
    for x in sizes:
        assert ours(lambda x=x: jax.grad(jitted)(x, {"w": WEIGHTS["w"][: x.shape[1]]})) == 0


def test_threads(folder):
    jitted, expected, errors = fresh(), jax.grad(loss)(X, WEIGHTS), []

    def work():
        try:
            for _ in range(10):
                np.testing.assert_allclose(jax.grad(jitted)(X, WEIGHTS), expected, rtol=2e-5, atol=1e-6)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert jax_cocktail.wait(60) and not errors
    np.testing.assert_allclose(jax.grad(jitted)(X, WEIGHTS), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("vmapped", [True, False])
def test_another_wrapper_in_a_callback(folder, monkeypatch, vmapped):
    """What a callback compiles is no part of the call that waits for it, whatever the names."""
    monkeypatch.setattr(first_call, "LARGE", 0)

    def function(jit):
        halved = jit(lambda y: lax.fori_loop(0, 3, lambda _, c: c / 2, y))
        inner = jax.jit(lambda y: halved(y) + 1)
        kind = jax.ShapeDtypeStruct(MANY.shape[vmapped:], MANY.dtype)
        called = partial(jax.pure_callback, lambda y: np.asarray(inner(y)), kind, vmap_method="broadcast_all")
        return jit(lambda x: called(x))

    def called(jit):
        return (jax.vmap if vmapped else lambda f: f)(function(jit))(MANY)

    expected = called(jax.jit)
    for _ in range(2):
        np.testing.assert_array_equal(called(lambda f: jax_cocktail.jit(f, options=OPTIONS)), expected)
        assert jax_cocktail.wait(60)


def test_errors_have_no_context(folder):
    def fails(x):
        raise KeyError(x)

    def function(x):
        kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(fails, kind, loss(x, WEIGHTS) + x, vmap_method="sequential")

    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(jax.vmap(jax_cocktail.jit(function, options=OPTIONS))(MANY))
    assert not isinstance(raised.value.__context__, tickets.Transformed)


def test_a_wrapper_dies_with_its_tickets(folder):
    def function(x, weights):
        return loss(x, weights)

    jitted = jax_cocktail.jit(function, options=OPTIONS)
    jax.grad(jitted)(X, WEIGHTS)
    assert jax_cocktail.wait(60)
    gone = weakref.ref(function)
    del jitted, function
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("option", [{"compile": "now"}, {"plans": "fresh"}])
def test_who_wants_to_wait_waits(folder, planners, option):
    jitted = fresh(**option)
    assert ours(lambda: jax.grad(jitted)(X, WEIGHTS)) >= 1
    assert set(planners) == {"MainThread"} and len(background._queue) == 0


def test_transformations_of_a_leaf():
    found = []

    def look(x):
        found.append(tickets.transformations(x))
        return x * 2.0

    jax.grad(look)(1.0)
    jax.vmap(look)(X)
    jax.jit(jax.grad(look))(1.0)
    jax.eval_shape(look, X)
    look(X)
    assert len(found[0]) == len(found[1]) == 1
    assert found[2:] == [None, None, ()]
