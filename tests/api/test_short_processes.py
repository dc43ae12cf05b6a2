"""A process that ends before the background has its program leaves enough for the next one to run it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.choice import decide, stock_xla, unfinished
from jax_cocktail.lowering.run import background, stopwatch
from jax_cocktail.memory import MEMORY
from tests.api.beside import changed
from tests.process import python

pytestmark = pytest.mark.all_candidates

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
import jax_cocktail
from jax import lax
def network(w, x):
    def step(c, x):
        z = jax.nn.sigmoid(c @ w + x)
        return z * c + (1 - z) * jnp.tanh(c @ w), jnp.exp(-c).sum()
    return lax.scan(step, x[0], x)
arguments = jnp.eye(128) / 2, jnp.linspace(0, 1, 50 * 4 * 128).reshape(50, 4, 128)
network = jax_cocktail.jit(network)
other = jax_cocktail.jit(lambda w, x: network.__wrapped__(w, x * 2))
results = network(*arguments), other(*arguments)
info = jax_cocktail.cache_info()
print(info.calls.stored, int(info.programs.stored > 0), info.compiled, flush=True)
for found, expected in zip(results[0], jax.jit(network.__wrapped__)(*arguments)):
    np.testing.assert_allclose(found, expected, rtol=1e-5)
"""


def ended(folder, **options):
    """What a process prints that ends with its first calls."""
    unset = ("JAX_COCKTAIL_PLANS", "JAX_COCKTAIL_COMPILE", "JAX_COCKTAIL_DETACH")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"JAX_COCKTAIL_CACHE_DIR": str(folder), **options}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_the_second_run_takes_the_program(tmp_path):
    assert ended(tmp_path) == ["0", "0", "0"]
    for wanted in (1, 2):  # a busy machine may capture one call only before the process has to end
        end = time.monotonic() + 120
        while not (known := len(list(tmp_path.glob("plans/call-*.json")))) >= wanted:
            assert time.monotonic() < end
            time.sleep(0.05)
        found = ended(tmp_path)
        assert int(found[0]) >= known and found[1:] == ["1", "0"]


def test_a_process_that_closes_its_streams(tmp_path):
    """It ends as without us: the thread in the background has stopped before the interpreter does."""
    options = {"COMPILE": "background", "PLANS": "cached", "DETACH": "1", "CACHE_DIR": str(tmp_path)}
    program = SCRIPT + "import sys; sys.stdout.close(); sys.stderr.close()"
    python(program, **{f"JAX_COCKTAIL_{name}": value for name, value in options.items()})


def network(w, x):
    """Stock XLA dispatches the operators of this loop."""

    def step(c, x):
        z = jax.nn.sigmoid(c @ w + x)
        return z * c + (1 - z) * jnp.tanh(c @ w), jnp.exp(-c).sum()

    return lax.scan(step, x[0], x)


ARGUMENTS = jnp.eye(128) / 2, jnp.linspace(0, 1, 50 * 4 * 128).reshape(50, 4, 128)
OPTIONS = {"compile": "background", "plans": "cached", "detach": True}


@pytest.fixture
def left(tmp_path, monkeypatch):
    """What a process leaves that ends when it would measure: programs without a decision."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    found = []
    with monkeypatch.context() as patch:
        patch.setattr(decide, "_measure", lambda *_: (found.extend(MEMORY.unfinished.values()), 1 / 0))
        with pytest.warns(jax_cocktail.CocktailWarning, match="ZeroDivisionError"):
            jax_cocktail.jit(network, options=OPTIONS)(*ARGUMENTS)
            assert jax_cocktail.wait(60)
    assert len(found) == 1 and not MEMORY.unfinished
    MEMORY.forget()
    MEMORY.counts.failed -= 1
    unfinished.finish(found[0])
    return found[0]


def times(ours, stock):
    """A race with these results."""
    return lambda runs, *_: stopwatch.Times((stock, *(ours for _ in runs[1:])))


def runs_ours(jitted):
    return "custom-call" in jitted._dispatch.call.lower(*ARGUMENTS).compile().as_text()


@contextmanager
def beside_waits(monkeypatch):
    """The background waits until the block has ended."""
    held, let_end = threading.Event(), background._let_end
    monkeypatch.setattr(background, "_let_end", lambda job: (held.wait(60), let_end(job)))
    yield
    held.set()


@pytest.mark.parametrize("ours_is_faster", [True, False])
def test_the_model_holds_until_it_is_measured(left, monkeypatch, ours_is_faster):
    monkeypatch.setattr(stopwatch, "race", times(1.0, 2.0) if ours_is_faster else times(2.0, 1.0))
    jitted, first = jax_cocktail.jit(lambda *x: network(*x), options=OPTIONS), []
    before = jax_cocktail.cache_info().compiled
    with beside_waits(monkeypatch):
        first.append(jitted(*ARGUMENTS))
        assert runs_ours(jitted)
    assert changed(lambda: None) <= 1 and runs_ours(jitted) == ours_is_faster
    second = jitted(*ARGUMENTS)
    assert jax_cocktail.cache_info().compiled == before
    report = jax_cocktail.explain(jitted)(*ARGUMENTS)
    assert (report.choice, report.now) == ("cocktail" if ours_is_faster else "stock", "")
    expected = jax.jit(network)(*ARGUMENTS)
    for results in (first[0], second):
        for found, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
    again = jax_cocktail.jit(lambda w, x: network(w, x), options=OPTIONS)
    assert changed(lambda: again(*ARGUMENTS)) == 0  # it is decided


def test_what_is_doubtful_is_asked_beside(left, monkeypatch):
    """The caller does not wait for XLA's answer."""
    asked = []
    monkeypatch.setattr(stock_xla, "has_to_ask", lambda *_: True)
    monkeypatch.setattr(stock_xla, "comparison", lambda *facts: asked.append(facts))
    monkeypatch.setattr(stopwatch, "race", times(1.0, 2.0))
    jitted = jax_cocktail.jit(lambda *x: network(*x), options=OPTIONS)
    with beside_waits(monkeypatch):
        jitted(*ARGUMENTS)
        assert "until our program is compiled" in jitted._dispatch.remark(ARGUMENTS, {})
    assert jax_cocktail.wait(60) and len(asked) == 1
    assert jax_cocktail.explain(jitted)(*ARGUMENTS).choice == "cocktail"


@pytest.mark.parametrize("option", [{"detach": False}, {"plans": "fresh"}, {"compile": "now"}])
def test_nothing_is_left(tmp_path, monkeypatch, option):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    found, measure = [], decide._measure
    keep = lambda *facts: (found.append(len(MEMORY.unfinished)), measure(*facts))[1]  # noqa: E731
    monkeypatch.setattr(decide, "_measure", keep)
    jax_cocktail.jit(lambda *x: network(*x), options=OPTIONS | option)(*ARGUMENTS)
    assert jax_cocktail.wait(60) and found == [0]


@pytest.mark.parametrize(
    ("name", "frozen", "started"), [("python3.13", False, 1), ("blender", False, 0), ("python-app", True, 0)]
)
def test_only_interpreters_are_started(left, monkeypatch, name, frozen, started):
    found = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: found.append(command) or left_process())
    monkeypatch.setattr(sys, "executable", f"/somewhere/{name}")
    monkeypatch.setattr(sys, "frozen", frozen, raising=False)
    monkeypatch.setitem(MEMORY.unfinished, left.key, left)
    unfinished._hand_over()
    assert len(found) == started


def left_process():
    class Process:
        returncode = None

    return Process()


def test_a_lock_is_no_stream(tmp_path):
    """Otherwise the process that is started would lose it."""
    program = "import os; from jax_cocktail.lowering.choice import unfinished; os.close(0)"
    program += "\nprint(unfinished._slot().fileno() > 2, unfinished._slot().fileno() > 2)"
    assert python(program, JAX_COCKTAIL_CACHE_DIR=str(tmp_path)) == "True True\n"


def test_few_processes_at_a_time(left, tmp_path, monkeypatch):
    started = []

    class Process:
        def __init__(self, command, **facts):
            assert facts["start_new_session"] and facts["env"]["JAX_PLATFORMS"] == "cpu"
            (descriptor,) = facts["pass_fds"]
            assert descriptor > 2  # it would be a stream of that process
            started.append(os.dup(descriptor))  # as the process would keep it open

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setitem(MEMORY.unfinished, left.key, left)
    for _ in range(4):
        unfinished._hand_over()
    assert len(started) == unfinished.MOST_PROCESSES
    os.close(started.pop())
    unfinished._hand_over()
    assert len(started) == unfinished.MOST_PROCESSES
    monkeypatch.setattr(unfinished, "MOST_BYTES", 10)
    os.close(started.pop())
    unfinished._hand_over()
    assert len(started) == unfinished.MOST_PROCESSES - 1
    for each in started:
        os.close(each)
