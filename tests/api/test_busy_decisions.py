"""Decisions taken on a busy machine: who wins there, and what a later process makes of them."""

from __future__ import annotations

import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.choice import decisions
from jax_cocktail.lowering.choice.decisions import STOCK, Decision, Plan
from jax_cocktail.lowering.run import stopwatch
from jax_cocktail.lowering.run.stopwatch import Times
from jax_cocktail.memory import MEMORY
from jax_cocktail.report import Trial
from jax_cocktail.utask.candidate import Candidate

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it


@pytest.mark.parametrize(
    ("times", "heavy", "others", "winner", "choice"),
    [
        ((1.0, 0.5, 0.9), False, 0.5, 0, "cocktail"),
        ((1.0, 0.5, 0.495), False, 0.5, 0, "cocktail"),  # one unit wins a tie
        ((1.0, 0.5, 0.4), False, 0.5, 1, "cocktail"),
        ((1.0, 0.99, 1.5), False, 0.0, 0, "stock"),
        ((1.0, 0.9, 1.5), False, 0.5, 0, "cocktail"),
        ((1.0, 0.9, 1.5), True, 0.5, 0, "stock"),  # stock may have wanted the core that others held
        ((1.0, 0.9, 1.5), True, 0.0, 0, "cocktail"),  # nobody held it
        ((1.0, 1.5, 0.9), True, 0.5, 1, "cocktail"),  # we wanted it as well
    ],
)
def test_who_wins(times, heavy, others, winner, choice):
    plans = [Plan(Candidate(1)), Plan(Candidate(2))]
    decision = decisions.choose(plans, Times(times, others), heavy, cores=2)
    assert (decision.plan, decision.choice, decision.others) == (plans[winner], choice, others)
    assert decision.cocktail_seconds == times[1 + winner]


def test_on_a_busy_machine_units_that_come_back_are_worth_a_little():
    """The program for two units is little slower on one of them, and twice as fast when the other is free."""
    plans, times = [Plan(Candidate(1)), Plan(Candidate(2))], (1.0, 0.50, 0.54)
    for others, prices, winner in ((0.5, (2.0, 1.0), 1), (0.5, (1.0, 2.0), 0), (0.0, (2.0, 1.0), 0)):
        decision = decisions.choose(plans, Times(times, others), False, cores=2, prices=prices)
        assert decision.plan == plans[winner]


BUSY_THEN = Decision("stock", Plan(), (Trial(STOCK, 2.0), Trial("1 unit", 2.0)), others=0.6)


@pytest.mark.parametrize(
    ("second", "exact", "kept", "choice"),
    [
        (dataclasses.replace(BUSY_THEN, choice="cocktail"), False, False, "stock"),  # still busy: nothing new
        (dataclasses.replace(BUSY_THEN, others=0.0), False, False, "stock"),  # confirmed
        (dataclasses.replace(BUSY_THEN, choice="cocktail", others=0.0), False, True, "stock"),
        (dataclasses.replace(BUSY_THEN, choice="cocktail", others=0.0), True, False, "cocktail"),
    ],
)
def test_a_provisional_decision_is_settled_once(second, exact, kept, choice):
    settled = decisions.settle(BUSY_THEN, second, exact)
    assert (settled.choice, bool(settled.kept)) == (choice, kept)
    assert settled.provisional == (second.others > 0.5)


def inexact(x):
    return lax.fori_loop(0, 3, lambda i, a: jnp.sin(a) * x, x)


def exact(x):
    return lax.fori_loop(0, 3, lambda i, a: a * x + i, x)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """What each measurement finds, in place of real times, in a cache of its own; the calls are counted."""

    class Measured:
        count = 0
        choice = "stock"
        others = 0.25

    def race(runs, effort, _):
        Measured.count += 1
        ours = 1.0 if Measured.choice == "cocktail" else 4.0
        return Times((2.0, *(ours + 0.1 * n for n in range(len(runs) - 1))), Measured.others)

    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stopwatch, "race", race)
    monkeypatch.setattr(stopwatch, "runner", lambda *_: stopwatch.Compiled(None, None, 0.0))
    return Measured


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize(("run", "x"), [(inexact, jnp.ones(4)), (exact, jnp.arange(4))])
def test_a_busy_machine_is_measured_again_by_a_later_process(measured, monkeypatch, idle, run, x):
    """Floats keep their first choice, and the report says so; integers have the same bits in any case."""
    monkeypatch.setattr(stopwatch, "idle", lambda: idle)
    assert "measures again" in str(jax_cocktail.explain(jax_cocktail.jit(run))(x))
    measured.choice, measured.others = "cocktail", 0.0
    wrapped = jax_cocktail.jit(run)
    assert jax_cocktail.explain(wrapped)(x).choice == "stock"  # the same process stays with what it runs
    assert measured.count == 1
    MEMORY.decisions.clear()
    for _ in range(2):
        report = jax_cocktail.explain(jax_cocktail.jit(run))(x)
        assert measured.count == 1 + idle
        assert report.choice == ("cocktail" if idle and run is exact else "stock")
        assert ("chosen while other processes held 25%" in report.why) == (idle and run is inexact)
        assert ("measures again" in str(report)) == (not idle)
        MEMORY.decisions.clear()
    if idle:
        again = jax_cocktail.jit(run, options={"profile": "full"})
        assert jax_cocktail.explain(again)(x).choice == "cocktail"


def test_an_idle_machine_is_recognised(monkeypatch):
    for others in (0.0, 0.5):
        monkeypatch.setattr(stopwatch.Watch, "others", lambda self, others=others: others)
        assert stopwatch.idle() == (others == 0.0)


def test_the_background_measures_again(measured, monkeypatch):
    """Meanwhile, calls run what was chosen."""
    monkeypatch.setattr(stopwatch, "idle", lambda: threading.current_thread() is not threading.main_thread())
    jax_cocktail.explain(jax_cocktail.jit(exact))(jnp.arange(4))
    measured.choice, measured.others = "cocktail", 0.0
    MEMORY.decisions.clear()
    jitted = jax_cocktail.jit(exact, options={"compile": "background"})
    changed = jax_cocktail.cache_info().changed_over
    np.testing.assert_array_equal(jitted(jnp.arange(4)), jax.jit(exact)(jnp.arange(4)))
    assert jax_cocktail.wait(60)
    assert (measured.count, jax_cocktail.cache_info().changed_over - changed) == (2, 1)
    np.testing.assert_array_equal(jitted(jnp.arange(4)), jax.jit(exact)(jnp.arange(4)))
