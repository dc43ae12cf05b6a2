"""Programs that are built beside the caller: stock XLA runs calls until they change over."""

from __future__ import annotations

import gc
import io
import os
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import jax_cocktail
from jax_cocktail.build import command, progress
from jax_cocktail.lowering.run import background, kept, stopwatch
from jax_cocktail.lowering.state import BEGUN, in_state
from jax_cocktail.memory import MEMORY
from tests.api import beside
from tests.api.beside import OPTIONS, X, changed, loop
from tests.process import python

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it


@pytest.fixture(autouse=True)
def idle():
    """Nothing is left over from another test."""
    MEMORY.warned.clear()
    failed = jax_cocktail.cache_info().failed
    yield
    assert jax_cocktail.wait(60)
    assert jax_cocktail.cache_info().failed == failed


def calls_of_ours(jitted, *args, **kwargs):
    """The number of our custom calls in what runs now."""
    return jitted._dispatch.call.lower(*args, **kwargs).as_text().count("jax_cocktail_cpu")


def test_changes_over_and_is_traced_once():
    traces = []

    def function(x):
        traces.append(threading.get_ident())
        return loop(x)

    jitted = jax_cocktail.jit(function, options=OPTIONS)
    expected = jax.jit(loop)(X)
    assert changed(lambda: np.testing.assert_array_equal(jitted(X), expected)) == 1  # as stock XLA says it
    np.testing.assert_allclose(jitted(X), expected, rtol=2e-6)
    assert calls_of_ours(jitted, X) == 1
    assert traces == [threading.get_ident()]


def test_the_caller_waits_if_it_asks_for_it():
    jitted = jax_cocktail.jit(loop, options={**OPTIONS, "compile": "now"})
    assert changed(lambda: jitted(X)) == 0
    assert calls_of_ours(jitted, X) == 1


def test_a_measured_decision(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    jitted = jax_cocktail.jit(loop, options={"compile": "background"})
    count = changed(lambda: jitted(X))
    report = jax_cocktail.explain(jitted)(X)
    assert report.trials
    assert count == (report.choice == "cocktail") == calls_of_ours(jitted, X)


def test_what_stays_with_stock_changes_nothing():
    jitted = jax_cocktail.jit(lambda x: x + 1, options=OPTIONS)
    assert changed(lambda: jitted(X)) == 0
    assert jitted._dispatch.call is jitted._dispatch.base


def test_donated_and_mutable_arguments_are_copied(monkeypatch):
    jobs, let_end = [], background._let_end
    monkeypatch.setattr(background, "_let_end", lambda job: (jobs.append(job.args), let_end(job)))

    def function(state, table):
        return lax.fori_loop(0, 4, lambda i, a: a * 0.5 + table[i], state)

    ours = jax_cocktail.jit(function, donate_argnums=0, options={"compile": "background", "plans": "fresh"})
    table = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected = jax.jit(function)(X[0], table)
    state = X[0] + 0
    found = ours(state, table)
    table[:] = np.nan  # a run of the background on it would not compare
    assert state.is_deleted()
    assert jax_cocktail.wait(60)
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    ((kept_state, kept_table),) = jobs
    np.testing.assert_array_equal(kept_state, X[0])
    np.testing.assert_array_equal(kept_table, np.arange(24).reshape(4, 6))


def test_a_call_that_fails_keeps_no_work(monkeypatch):
    monkeypatch.setattr(background._queue, "add", lambda job: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        jax_cocktail.jit(loop, options={**OPTIONS, "strict": True})(X)
    assert not BEGUN


def test_a_limit_to_what_is_copied(monkeypatch):
    monkeypatch.setattr(kept, "MOST_BYTES", 10)
    jitted = jax_cocktail.jit(loop, options=OPTIONS)
    assert changed(lambda: jitted(np.asarray(X))) == 1
    np.testing.assert_allclose(jitted(np.asarray(X)), jax.jit(loop)(X), rtol=2e-6)


def test_signatures_change_over_one_by_one():
    def function(x, *, scale, power=1):
        for _ in range(power):
            x = loop(x, scale["s"])
        return x

    jitted = jax_cocktail.jit(function, static_argnames="power", options=OPTIONS)
    arguments = [
        {"x": X, "scale": {"s": 1.25}},
        {"x": X[:2], "scale": {"s": 1.25}},
        {"x": X[:2], "scale": {"s": jnp.float32(1.25)}},
        {"x": X, "scale": {"s": 1.25}, "power": 2},
        {"x": X, "scale": {"s": 1.5}, "power": 3},
    ]
    plain = jax.jit(function, static_argnames="power")
    for number, each in enumerate(arguments):
        assert changed(lambda each=each: jitted(**each)) == 1, number
        for known in arguments[: number + 1]:
            np.testing.assert_allclose(jitted(**known), plain(**known), rtol=1e-5)
    routes = jitted._dispatch._functions.values()
    assert len(routes) == 2
    sizes = [each._cache_size() for each in routes]
    assert changed(lambda: [jitted(**each) for each in arguments]) == 0
    assert sizes == [each._cache_size() for each in routes]  # everybody knows his way


def test_strict_raises_at_the_first_call():
    def function(x):
        def body(i, a):
            io_callback(print, None, i, ordered=True)
            return a + 1

        return lax.fori_loop(0, 3, body, x)

    jitted = jax_cocktail.jit(function, options={**OPTIONS, "strict": True})
    with pytest.raises(jax_cocktail.StrictModeError):
        jitted(X)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())])
def test_transformed_calls_are_compiled_at_once(transform):
    jitted = jax_cocktail.jit(loop, options=OPTIONS)
    assert changed(lambda: transform(jitted)(X)) == 0
    text = jax.jit(transform(jitted)).lower(X).as_text()
    assert "jax_cocktail_cpu" in text


@pytest.mark.parametrize(
    "setting",
    [
        lambda: jax.enable_x64(True),
        lambda: jax.default_matmul_precision("highest"),
        lambda: jax.set_mesh(jax.make_mesh((1,), ("axis",))),
    ],
)
def test_settings_of_the_callers_thread(setting):
    jitted = jax_cocktail.jit(lambda x: loop(x @ x.T, 0.5), options=OPTIONS)
    with setting():
        assert changed(lambda: jitted(X)) == 1
        size = jitted._dispatch.call._cache_size()
        np.testing.assert_allclose(jitted(X), jax.jit(lambda x: loop(x @ x.T, 0.5))(X), rtol=2e-6)
        assert jitted._dispatch.call._cache_size() <= size + 1


def test_a_lost_trace_is_made_by_the_caller(monkeypatch):
    jitted = jax_cocktail.jit(lambda x: loop(x, 0.75), options=OPTIONS)
    monkeypatch.setattr(background, "_let_end", lambda job: jax.clear_caches())
    assert changed(lambda: jitted(X)) == 0
    assert "the next call compiles what is chosen" in jitted._dispatch.remark((X,), {})
    assert changed(lambda: jitted(X)) == 1
    np.testing.assert_allclose(jitted(X), jax.jit(loop)(X, 0.75), rtol=2e-6)
    assert calls_of_ours(jitted, X) == 1 and jitted._dispatch.remark((X,), {}) == ""


@pytest.mark.parametrize("clear", [lambda jitted: jitted.clear_cache(), lambda jitted: jax.clear_caches()])
def test_what_is_cleared_meanwhile_does_not_come_back(monkeypatch, clear):
    scale = 0.5
    jitted = jax_cocktail.jit(lambda x: loop(x, scale), options=OPTIONS)
    traced = background._is_traced
    monkeypatch.setattr(background, "_is_traced", lambda job: (clear(jitted), traced(job))[1])
    assert changed(lambda: jitted(X)) == 0
    scale = 0.25
    monkeypatch.undo()
    np.testing.assert_allclose(jitted(X), jax.jit(loop)(X, 0.25), rtol=2e-6)


def test_a_cleared_signature_is_not_exchanged():
    jitted = jax_cocktail.jit(loop, options=OPTIONS)
    dispatch = jitted._dispatch
    signature, before = dispatch.note((X,), {}, dispatch.call), dispatch.generation
    fresh = dispatch.successor(signature)
    jitted.clear_cache()
    dispatch.note((X,), {}, dispatch.call)
    assert not dispatch.switch(signature, fresh, before)
    assert dispatch.call is dispatch.base is not fresh
    assert dispatch.switch(signature, dispatch.successor(signature), dispatch.generation)


def test_a_call_after_clear_cache_has_a_job_of_its_own(monkeypatch):
    scale, held, let_end = 0.5, threading.Event(), background._let_end
    monkeypatch.setattr(background, "_let_end", lambda job: (held.wait(60), let_end(job)))
    jitted = jax_cocktail.jit(lambda x: loop(x, scale), options=OPTIONS)
    jitted(X)
    scale = 0.25
    jitted.clear_cache()

    def again():
        jitted(X)
        held.set()

    assert changed(again) == 1
    np.testing.assert_allclose(jitted(X), jax.jit(loop)(X, 0.25), rtol=2e-6)


class Shaped:
    """A static argument that looks like an array."""

    shape = (3, 4)


def test_static_arguments_are_told_by_value():
    jitted = jax_cocktail.jit(lambda x, s: loop(x, len(s.shape)), static_argnums=1, options=OPTIONS)
    assert changed(lambda: [jitted(X, each) for each in (Shaped(), Shaped())]) == 2


def test_what_has_not_changed_over_stays_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    options = {**OPTIONS, "plans": "cached"}
    assert changed(lambda: jax_cocktail.jit(loop, options=options)(X)) == 1
    jitted = jax_cocktail.jit(lambda *a: loop(*a), options=options)
    assert changed(lambda: jitted(X)) == 0  # it is at hand
    base = jitted._dispatch.base
    assert changed(lambda: jitted(X[:2])) == 1
    assert jitted._dispatch.base is base


def test_no_thread_can_be_started(monkeypatch):
    def fails(thread):
        raise RuntimeError("can't start new thread")

    jitted = jax_cocktail.jit(lambda x: loop(x, 0.125), options=OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        jitted(X)
        assert not jax_cocktail.wait(60) and jax_cocktail.cache_info().waiting == 1
    assert changed(lambda: jitted(X[:2])) == 2


def test_a_busy_program_makes_a_decision_provisional(monkeypatch):
    ended = threading.Event()

    def work():
        a, product = jnp.ones((300, 300)), jax.jit(lambda a: a @ a)
        while not ended.is_set():
            product(a).block_until_ready()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with in_state(beside=True):
            busy = stopwatch.race([lambda: None, lambda: None]).others
    finally:
        ended.set()
        thread.join()
    assert busy >= stopwatch.BUSY


def test_without_a_compiler_it_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    jitted = jax_cocktail.jit(loop, options=OPTIONS)
    with pytest.warns(jax_cocktail.CocktailWarning, match="runs on stock XLA") as told:
        assert changed(lambda: jitted(X)) == 0
    assert told[0].filename == beside.__file__  # the line of the loop
    assert "failed: the compiler of $CXX" in jax_cocktail.explain(jitted)(X).now
    MEMORY.counts.failed -= 1
    np.testing.assert_array_equal(jitted(X), jax.jit(loop)(X))


def test_several_threads():
    jitted = [jax_cocktail.jit(lambda x, n=n: loop(x, 1 + n / 8), options=OPTIONS) for n in range(3)]
    failures = []

    def work():
        for _ in range(50):
            for n, each in enumerate(jitted):
                if not np.allclose(each(X), expected[n], rtol=1e-5):
                    failures.append(n)

    expected = [np.asarray(jax.jit(loop)(X, 1 + n / 8)) for n in range(3)]
    threads = [threading.Thread(target=work) for _ in range(4)]
    assert changed(lambda: [t.start() for t in threads] and [t.join() for t in threads]) == 3
    work()
    assert not failures


def test_wait_gives_up_in_time(monkeypatch):
    held = threading.Event()
    monkeypatch.setattr(background, "_let_end", lambda job: held.wait(60))
    jitted = jax_cocktail.jit(loop, options=OPTIONS)
    jitted(X)
    assert not jax_cocktail.wait(0.05)
    held.set()
    assert jax_cocktail.wait(60)


def test_the_line_on_the_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.0)
    with progress.line(lambda: "compiling f") as tell:
        tell()
    assert terminal.getvalue() == "\r\x1b[Kjax_cocktail: compiling f, 0 s\r\x1b[K"


def test_compilers_have_low_priority(tmp_path):
    show = ["/bin/sh", "-c", "sleep 0.3; nice"]
    with command.low_priority():
        low = command.run(show, {}, 10.0).output
    assert (low.strip(), command.run(show, {}, 10.0).output.strip()) == ("19", "0")


PROGRAM = """
    import jax, jax.numpy as jnp, jax_cocktail
    from jax import lax

    @jax_cocktail.jit
    def function(x):
        return lax.fori_loop(0, 7, lambda i, a: jnp.sin(a) * {scale} + i, x)

    function(jnp.ones(64)).block_until_ready()
"""
SHOWN = "info = jax_cocktail.cache_info(); print(info.changed_over, info.calls.stored, info.compiled)"
BESIDE = {
    "JAX_COCKTAIL_COMPILE": "background",
    "JAX_COCKTAIL_PLANS": "cached",
    "JAX_COCKTAIL_FORCE": "cocktail",
}


def test_the_next_process_need_not_change_over(tmp_path):
    program = PROGRAM.format(scale=1.1) + f"\n    jax_cocktail.wait(); {SHOWN}\n"
    environment = {**BESIDE, "JAX_COCKTAIL_CACHE_DIR": str(tmp_path)}
    assert python(program, **environment).split() == ["1", "0", "1"]
    assert python(program, **environment).split() == ["0", "1", "0"]


SLOW = """#!/bin/sh
case "$*" in *--version*) exec c++ "$@";; esac
echo $$ >"$MARK.new"; mv "$MARK.new" "$MARK"; sleep 100
"""
QUIET = """
    import functools, warnings
    warnings.showwarning = functools.partial(print, "warned")
"""
UNTIL_IT_COMPILES = """
    import os, time
    while not os.path.exists(os.environ["MARK"]):
        time.sleep(0.01)
"""


def test_a_process_that_ends_early(tmp_path):
    """It leaves no compiler behind, and a cache that works, and warns of nothing."""
    compiler, mark = tmp_path / "slow++", tmp_path / "mark"
    compiler.write_text(SLOW)
    compiler.chmod(0o755)
    environment = {**BESIDE, "JAX_COCKTAIL_CACHE_DIR": str(tmp_path / "cache")}
    python("import jax_cocktail.api", **environment)  # builds the runtime library
    started = f"\n    import os; os.environ['CXX'] = {str(compiler)!r}\n    function(jnp.ones"
    program = PROGRAM.format(scale=1.2).replace("\n    function(jnp.ones", started)
    start = time.monotonic()
    assert python(QUIET + program + UNTIL_IT_COMPILES, MARK=str(mark), **environment) == ""
    assert time.monotonic() - start < 60
    assert not running(int(mark.read_text()))
    program = PROGRAM.format(scale=1.2) + f"\n    jax_cocktail.wait(); {SHOWN}\n"
    assert python(program, **environment).split()[0] == "1"


def running(process):
    """Whether it still runs after a moment."""
    for _ in range(50):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True


def test_a_forked_child_has_its_own_background(tmp_path):
    text = (
        PROGRAM.format(scale=1.3)
        + """
    import os, sys
    child = os.fork()
    if child == 0:
        os._exit(0 if jax_cocktail.wait(10) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), jax_cocktail.wait(60))
    """
    )
    assert python(text, JAX_COCKTAIL_CACHE_DIR=str(tmp_path), **BESIDE).split() == ["0", "True"]


def test_nothing_keeps_a_function_alive():
    def made():
        table = jnp.ones((64, 64))
        return jax_cocktail.jit(lambda x: loop(x) + table[0, :6], options=OPTIONS), weakref.ref(table)

    jitted, table = made()
    for x in (X, X[:2], X[:2]):
        jitted(x)
        assert jax_cocktail.wait(60)
    assert len(jitted._dispatch._functions) == 2
    gc.collect()
    gc.disable()
    try:
        del jitted
        assert table() is None
    finally:
        gc.enable()
