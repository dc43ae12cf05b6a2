"""The first call of a large function runs whichever program is compiled first."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cocktail
from jax_cocktail.cost.vector import Comparison
from jax_cocktail.lowering import state
from jax_cocktail.lowering.run import background, first_call
from jax_cocktail.memory import MEMORY
from tests.api.beside import OPTIONS, X, changed, loop

pytestmark = pytest.mark.all_candidates


class Stock:
    """What XLA compiles for first calls: it waits until `released`, and raises `error` if there is one."""

    def __init__(self, patch):
        self.released, self.begun, self.error = threading.Event(), threading.Event(), None
        self.compiled, self._patch = 0, patch

    def is_first(self):
        """The background lets the calls end before it begins."""
        self._patch.setattr(state, "FIRST_CALL_SECONDS", 60.0)
        self.released.set()


@pytest.fixture
def stock(monkeypatch):
    """Every function is large, and calls need not end soon."""
    monkeypatch.setattr(first_call, "LARGE", 0)
    monkeypatch.setattr(state, "FIRST_CALL_SECONDS", 0.05)
    made, compile_now = Stock(monkeypatch), jax.stages.Lowered.compile

    def compiles(lowered, *facts, **more):
        if threading.current_thread().name == "jax_cocktail XLA":
            made.begun.set()
            assert made.released.wait(60)
            made.compiled += 1
            if made.error is not None:
                raise made.error
        return compile_now(lowered, *facts, **more)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compiles)
    yield made
    made.released.set()


def fresh(**more):
    return jax_cocktail.jit(lambda x: loop(x), options=OPTIONS | more)


def test_ours_is_ready_first(stock):
    jitted = fresh()
    first = jitted(X)  # returns, although stock XLA has not compiled it
    assert stock.begun.is_set() and stock.compiled == 0
    assert "custom-call" in jitted._dispatch.call.lower(X).compile().as_text()
    np.testing.assert_allclose(first, jax.jit(loop)(X), rtol=2e-6)
    np.testing.assert_array_equal(first, jitted(X))
    assert jitted._dispatch.remark((X,), {}) == "" and jax_cocktail.wait(60)


def test_stock_is_ready_first(stock):
    stock.is_first()
    jitted = fresh()
    assert changed(lambda: jitted(X)) == 1
    assert stock.compiled == 1
    np.testing.assert_allclose(jitted(X), jax.jit(loop)(X), rtol=2e-6)
    np.testing.assert_allclose(jitted(X[:2]), jax.jit(loop)(X[:2]), rtol=2e-6)  # by a router
    assert jax_cocktail.wait(60) and stock.compiled == 2


def test_nothing_is_compiled_twice(stock):
    """JAX finds what the other thread has compiled."""
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    stock.is_first()
    jax.block_until_ready(fresh(force="stock")(X))
    compiled.clear()
    jitted = fresh()
    assert changed(lambda: jitted(X)) == 1
    jitted(X)
    assert len(compiled) == 2  # as it came, and with our calls


def test_the_model_prefers_stock(stock, monkeypatch):
    """Nothing is timed: stock XLA is not ready."""
    monkeypatch.setattr(Comparison, "favours_stock", lambda self: True)
    jitted, results = fresh(force="auto"), []
    call = threading.Thread(target=lambda: results.append(jitted(X)))
    call.start()
    assert stock.begun.wait(60) and jax_cocktail.wait(60)
    assert call.is_alive() and not results
    stock.released.set()
    call.join(60)
    np.testing.assert_array_equal(results[0], jax.jit(loop)(X))


def test_errors_of_xla(stock, monkeypatch):
    def fails(job):
        raise RuntimeError("ours fails, too")

    monkeypatch.setattr(background, "_change_over", fails)
    stock.error = jax.errors.JaxRuntimeError("XLA has no memory")
    stock.released.set()
    failed = MEMORY.counts.failed
    with pytest.warns(jax_cocktail.CocktailWarning, match="ours fails"):
        with pytest.raises(jax.errors.JaxRuntimeError, match="no memory"):
            fresh()(X)
        assert jax_cocktail.wait(60)
    MEMORY.counts.failed = failed


@pytest.mark.parametrize("setting", [lambda: jax.enable_x64(True), lambda: jax.debug_nans(True)])
def test_settings_of_the_callers_thread(stock, setting):
    stock.is_first()
    with setting():
        jitted = fresh()
        assert changed(lambda: jitted(X * 1.5)) == 1
        np.testing.assert_allclose(jitted(X * 1.5), jax.jit(loop)(X * 1.5), rtol=2e-6)


def test_small_functions_are_compiled_as_they_come(monkeypatch):
    monkeypatch.setattr(first_call, "first_call", lambda *_: pytest.fail("it was divided"))
    assert changed(lambda: fresh()(X)) == 1
    assert first_call.is_large(jax.make_jaxpr(lambda x: sum(jnp.sin(x * i) for i in range(100)))(X))
    assert not first_call.is_large(jax.make_jaxpr(loop)(X))


def test_a_function_that_closes_over_a_tracer(stock):
    """JAX lowers something else than it is asked to."""
    stock.released.set()

    def outer(w):
        inner = jax_cocktail.jit(lambda x: loop(x * w), options=OPTIONS)
        return inner(X).sum()

    expected = jax.grad(lambda w: loop(X * w).sum())(1.5)
    for _ in range(2):
        np.testing.assert_allclose(jax.grad(outer)(1.5), expected, rtol=1e-3)
        assert jax_cocktail.wait(60)


def test_two_threads(stock):
    jitted, results, errors = fresh(), [], []

    def work():
        try:
            results.append(jitted(X))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    stock.released.set()
    for each in threads:
        each.join(60)
    assert jax_cocktail.wait(60) and not errors and len(results) == 4
    for each in (*results, jitted(X)):
        np.testing.assert_allclose(each, jax.jit(loop)(X), rtol=2e-6)


def test_donated_arguments(stock):
    jitted = jax_cocktail.jit(lambda x: loop(x), donate_argnums=0, options=OPTIONS)
    x = jnp.array(X)
    first = jitted(x)
    assert stock.compiled == 0 and x.is_deleted()
    np.testing.assert_allclose(first, jax.jit(loop)(X), rtol=2e-6)
