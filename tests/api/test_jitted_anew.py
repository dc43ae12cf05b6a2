"""A function that is jitted again and again is compiled each time, and XLA's seconds count."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

import jax_cocktail
from jax_cocktail.lowering.choice import decisions
from jax_cocktail.lowering.run import stopwatch
from jax_cocktail.memory import MEMORY
from jax_cocktail.report import Trial
from tests.api.beside import X, changed, loop

pytestmark = pytest.mark.all_candidates
TIMES = Trial("stock XLA", 1.0, True), Trial("1 unit", 1.2, False)


@pytest.mark.parametrize(
    ("between", "saved", "ours"),
    [(3.0, 2.0, True), (12.0, 2.0, True), (14.0, 2.0, False), (3.0, 0.05, False)],
)
def test_what_pays(between, saved, ours):
    """Between two lowerings XLA compiled for 3 s; the calls took the rest, and would take a fifth more."""
    compiling = {"stock_compile_seconds": 3.0, "our_compile_seconds": 3.0 - saved}
    stock = decisions.Decision("stock", trials=TIMES, **compiling)
    assert stock.pays_anew(between) == ours
    assert not replace(stock, why="the program left by a side exit").pays_anew(between)
    assert not replace(stock, trials=()).pays_anew(between)


@pytest.fixture
def stock_is_faster(tmp_path, monkeypatch):
    """A function that was measured here: stock XLA is a little faster, and takes 30 s to compile."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        stopwatch, "race", lambda runs, *_: stopwatch.Times((1e-3, *(1.1e-3 for _ in runs[1:])))
    )
    assert changed(lambda: anew()(X)) == 0
    (key,) = (name for folder, name in MEMORY.decisions if folder == str(tmp_path))
    decision = decisions.load(key)
    assert decision is not None and decision.choice == "stock" and decision.stock_compile_seconds > 0
    assert decision.our_compile_seconds > 0
    decisions.store(key, replace(decision, stock_compile_seconds=30.0, our_compile_seconds=0.1))
    return key


def anew():
    return jax_cocktail.jit(lambda x: loop(x), options={"compile": "background", "plans": "cached"})


def test_ours_runs_what_is_jitted_anew(stock_is_faster):
    second = anew()
    assert changed(lambda: second(X)) == 0
    assert "jitted anew: XLA compiles it in 0.1 s instead of 30.0 s" in second._dispatch.remark((X,), {})
    text = second._dispatch.call.lower(X).compile().as_text()
    assert "custom-call" in text
    np.testing.assert_allclose(second(X), jax.jit(loop)(X), rtol=1e-6)
    report = jax_cocktail.explain(second)(X)
    assert report.choice == "stock" and "jitted anew" in report.now


def test_calls_inside_of_another_function_are_none(stock_is_faster):
    """JAX lowers both in no time."""
    jitted = anew()
    text = jax.jit(lambda x: jitted(x) - jitted(x)).lower(X).as_text()
    assert "jax_cocktail_cpu" not in text


def test_stock_runs_what_is_called_often(stock_is_faster):
    then, whose = MEMORY.lowered[stock_is_faster]
    MEMORY.lowered[stock_is_faster] = then - 1000.0, whose
    later = anew()
    assert changed(lambda: later(X)) == 0
    assert later._dispatch.remark((X,), {}) == ""
    assert "custom-call" not in later._dispatch.call.lower(X).compile().as_text()
