"""What the background promises: no call is lost, none is run that should not be, and errors are told."""

from __future__ import annotations

import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import api, config
from jax_cocktail.lowering import state
from jax_cocktail.lowering.choice import stock_forms
from jax_cocktail.lowering.run import background, stopwatch
from jax_cocktail.lowering.run.dispatch import Dispatch
from jax_cocktail.memory import MEMORY
from tests.api.beside import OPTIONS, X, changed, loop

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it
TOKEN = lax.create_token()


def test_an_error_is_a_warning_and_told(monkeypatch):
    jitted = jax_cocktail.jit(loop, options=OPTIONS)
    failed = jax_cocktail.cache_info().failed
    with monkeypatch.context() as patch, pytest.warns(jax_cocktail.CocktailWarning) as told:
        patch.setattr(background, "_compiled", lambda *_: {}["a key"])
        jitted(X)
        assert jax_cocktail.wait(60)
        jitted(X[:2])
        assert jax_cocktail.wait(60)
    assert [str(each.message) for each in told] == [
        "loop: stays with stock XLA, since the compilation in the background failed: KeyError: 'a key';"
        " this is a bug, please report it with your program"
    ]
    assert told[0].filename == __file__
    assert jax_cocktail.cache_info().failed == failed + 2
    MEMORY.counts.failed = failed
    assert "failed: KeyError: 'a key'" in jax_cocktail.explain(jitted)(X).now
    np.testing.assert_array_equal(jitted(X), jax.jit(loop)(X))


@pytest.mark.parametrize("warnings_are_errors", [False, True])
def test_results_of_extended_types(warnings_are_errors):
    """A sampler returns its state, with a key."""

    def step(key, x):
        key, sub = jax.random.split(key)
        return key, loop(x + jax.random.normal(sub, x.shape)), {"keys": jax.random.split(sub, 3)}

    jitted, key = jax_cocktail.jit(step, options=OPTIONS), jax.random.key(0)
    kept = []  # results that live when the thread looks at them
    with warnings.catch_warnings():
        warnings.simplefilter("error" if warnings_are_errors else "default")
        assert changed(lambda: kept.append(jitted(key, X))) == 1
    found, expected = jitted(key, X), jax.jit(step)(key, X)
    assert jax.random.key_data(found[0]).tolist() == jax.random.key_data(expected[0]).tolist()
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    assert jax_cocktail.explain(jitted)(key, X).now == ""


def test_explain_tells_what_runs(monkeypatch):
    held, let_end = threading.Event(), background._let_end
    monkeypatch.setattr(background, "_let_end", lambda job: (held.wait(60), let_end(job)))
    jitted = jax_cocktail.jit(loop, options=OPTIONS)
    assert jax_cocktail.explain(jitted)(X).now == ""  # nothing runs yet
    jitted(X)
    report = jax_cocktail.explain(jitted)(X)
    assert (
        report.choice == "cocktail"
        and "until our program is compiled" in report.now
        and report.now in str(report)
    )
    assert jax_cocktail.explain(jitted)(X[:2]).now == ""
    held.set()
    assert jax_cocktail.wait(60)
    assert jax_cocktail.explain(jitted)(X).now == ""


def test_many_functions_wait(monkeypatch):
    """None is left behind, and all are counted."""
    held, let_end = threading.Event(), background._let_end
    monkeypatch.setattr(background, "_let_end", lambda job: (held.wait(60), let_end(job)))
    before = jax_cocktail.cache_info()
    functions = [jax_cocktail.jit(lambda x: loop(x), options=OPTIONS) for _ in range(70)]
    for each in functions:
        each(X)
    assert jax_cocktail.cache_info().waiting == 70
    held.set()
    assert jax_cocktail.wait(300)
    after = jax_cocktail.cache_info()
    assert (after.changed_over - before.changed_over, after.waiting, background._queue.kept_bytes) == (
        70,
        0,
        0,
    )


@pytest.mark.parametrize("slow", [False, True])
def test_slow_calls_are_not_timed(tmp_path, monkeypatch, slow):
    """They would run beside the program, and after its end."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(background, "SLOW_SECONDS", 0.05 if slow else 1e3)
    timed, race = [], stopwatch.race
    monkeypatch.setattr(stopwatch, "race", lambda *facts: (timed.append(True), race(*facts))[1])

    def function(x):
        return lax.fori_loop(0, 2000, lambda i, a: jnp.sin(a) + lax.cond(a[0] > 0, jnp.cos, jnp.tanh, a), x)

    jitted = jax_cocktail.jit(function, options={"compile": "background", "plans": "fresh"})
    results = jitted(jnp.ones(20_000))  # takes half a second
    assert jax_cocktail.wait(60) and results.shape == (20_000,)
    assert len(timed) == (not slow)


def test_callbacks_run_in_the_callers_threads():
    threads = []

    def host(x):
        threads.append(threading.current_thread().name)
        return np.asarray(x) * 2

    def function(x):
        return loop(jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x))

    jitted = jax_cocktail.jit(function, options={"compile": "background", "plans": "fresh"})
    for _ in range(3):
        jax.block_until_ready(jitted(X))
        assert jax_cocktail.wait(60)
    assert len(threads) == 3 and "jax_cocktail" not in threads
    assert "every run would call Python" in jax_cocktail.explain(jitted)(X).why


def test_a_call_in_a_callback_ends_for_itself(monkeypatch):
    """It runs while the call around it is compiled and run for the first time."""
    ended = []
    monkeypatch.setattr(api, "runs", lambda job, results: ended.append((job.name, results.shape)))
    inner = jax_cocktail.jit(loop, options=OPTIONS)

    def host(x):
        return np.asarray(inner(jnp.asarray(x)[:2])).sum()

    def first(x):
        return loop(x) + jax.pure_callback(host, jax.ShapeDtypeStruct((), x.dtype), x)

    def second(x):
        return first(x) + 1

    for around in (first, second):  # the call in the callback is known in the second
        outer = jax_cocktail.jit(around, options={"compile": "background", "plans": "fresh"})
        jax.block_until_ready(outer(X))
        assert jax_cocktail.wait(60)
    assert ended == [("loop", X[:2].shape), ("first", X.shape), ("second", X.shape)]
    assert not state.BEGUN and not state.FIRST_CALLS


def test_a_call_that_fails_leaves_nothing_behind():
    def fails(x):
        return loop(x) + jax.pure_callback(lambda x: 1 // 0, jax.ShapeDtypeStruct((), x.dtype), x)

    outer = jax_cocktail.jit(fails, options=OPTIONS)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        jax.block_until_ready(outer(X))
    assert jax_cocktail.wait(60)
    assert not state.BEGUN and not state.FIRST_CALLS and state.call() is None


def test_the_thread_that_works_knows_the_call_that_goes_on(monkeypatch):
    """Even if it begins before the queue has returned to the caller."""
    known, add = [], background._queue.add

    def noted(job):
        known.append(state.BEGUN.get(job.call))
        return add(job)

    monkeypatch.setattr(background._queue, "add", noted)
    jitted = jax_cocktail.jit(loop, options=OPTIONS)
    assert changed(lambda: jitted(X)) == 1
    assert len(known) == 1 and known[0] is not None


def test_blocks_of_options_that_end_in_the_wrong_order():
    """What a call and what `lower` sees of them is the same."""
    first, second = jax_cocktail.options(force="stock"), jax_cocktail.options(strict=True)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    try:
        assert bool(config.SCOPES.values) == (threading.get_ident() in config.OPEN_SCOPES)
    finally:
        config._enter(())
    assert threading.get_ident() not in config.OPEN_SCOPES


def test_what_hides_a_call_hides_it_alone():
    """JAX at work in a lowering sees no call around it, but those that it makes."""
    found = []

    def look(x):
        found.append(state.call())
        return x + 1

    seen = jax_cocktail.jit(look)
    with state.calling(state.Call("other", (), {})):
        assert state.call().marked == "other"
        seen(X)
        with state.alone():
            assert state.call() is None
            seen(X[:2])
        assert state.call().marked == "other"
    assert [each.args[0].shape for each in found] == [X.shape, X[:2].shape]
    assert all(each.number for each in found)


def test_waiting_behind_others_is_no_long_call(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(background, "SLOW_SECONDS", 0.5)
    seconds, let_end = [], background._let_end

    def slowly(job):
        time.sleep(0.6)
        let_end(job)
        seconds.append(job.seconds)

    monkeypatch.setattr(background, "_let_end", slowly)
    functions = [jax_cocktail.jit(lambda x, k=k: loop(x) + k, options=OPTIONS) for k in range(3)]
    results = [each(X) for each in functions]
    assert jax_cocktail.wait(60) and len(results) == 3
    assert len(seconds) == 3 and max(seconds[1:]) < 0.5, seconds


def test_only_the_call_itself_is_timed(tmp_path, monkeypatch):
    """A function that it calls may have the same name and the same types of arguments."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stock_forms, "LONG_SECONDS", 0.0)
    options, threads = {"compile": "background", "plans": "fresh"}, []
    inner = jax_cocktail.jit(lambda x: lax.fori_loop(0, 500, lambda i, a: jnp.sin(a) + x, x), options=options)

    def host(x):
        threads.append(threading.current_thread().name)
        return np.asarray(x)

    def called(x):
        return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), inner(inner(x)))

    outer = jax_cocktail.jit(lambda x: called(x), options={**options, "force": "stock"})
    for _ in range(2):
        jax.block_until_ready(outer(X))
        assert jax_cocktail.wait(60)
    assert len(threads) == 2 and "jax_cocktail" not in threads


@pytest.mark.parametrize("function", [lambda: lax.fori_loop(0, 9, lambda i, a: jnp.sin(a) + i, X), loop])
def test_a_call_is_timed_on_its_arguments(tmp_path, monkeypatch, function):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    timed, race = [], stopwatch.race
    monkeypatch.setattr(stopwatch, "race", lambda *facts: (timed.append(True), race(*facts))[1])
    jitted = jax_cocktail.jit(lambda *a: function(*a), options={"compile": "now", "profile": "full"})
    jitted(*([X] if function is loop else []))
    assert timed == [True]


def test_explain_of_static_arguments():
    jitted = jax_cocktail.jit(lambda x, how: loop(x, len(how)), static_argnums=1, options=OPTIONS)
    assert jax_cocktail.explain(jitted)(X, "abc").now == ""
    assert changed(lambda: [jitted(X, how) for how in ("abc", "a")]) == 2
    assert jax_cocktail.explain(jitted)(X, "abc").now == ""


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x, token: (loop(x), token), (X, TOKEN)),
        (lambda x: (loop(x), TOKEN), (X,)),
        (lambda x: TOKEN, (2.0,)),
    ],
    ids=["takes", "captures", "returns"],
)
@pytest.mark.filterwarnings("error::jax_cocktail.CocktailWarning")
def test_tokens(function, arguments):
    jitted = jax_cocktail.jit(function, options=OPTIONS)
    for _ in range(2):
        found, expected = jitted(*arguments), jax.jit(function)(*arguments)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        for ours, stock in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert type(ours) is type(stock)
            if stock is not jax.tree.leaves(expected)[-1]:
                np.testing.assert_allclose(ours, stock, rtol=1e-6)
        assert jax_cocktail.wait(60)


def test_an_error_before_the_choice_leaves_the_call_to_stock(monkeypatch):
    jitted = jax_cocktail.jit(loop, options=OPTIONS)
    monkeypatch.setattr(Dispatch, "note", lambda *_: {}["a key"])
    with pytest.warns(jax_cocktail.CocktailWarning, match="KeyError: 'a key'; this is a bug"):
        np.testing.assert_array_equal(jitted(X), jax.jit(loop)(X))
