"""First calls have precedence over what is built beside them."""

from __future__ import annotations

import time

import jax.numpy as jnp
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering import state
from jax_cocktail.lowering.choice import survey, variants
from jax_cocktail.lowering.run import background
from jax_cocktail.lowering.state import BEGUN
from tests.api.beside import OPTIONS, X, loop

pytestmark = pytest.mark.all_candidates


def test_the_first_run_has_precedence(monkeypatch):
    ready, let_end = [], background._let_end

    def noted(job):
        let_end(job)
        ready.append([reference().is_ready() for reference in job.results])

    monkeypatch.setattr(background, "_let_end", noted)
    jitted = jax_cocktail.jit(
        lambda x: (lax.fori_loop(0, 3000, lambda i, a: jnp.sin(a) + x, x), x), options=OPTIONS
    )
    results = jitted(jnp.ones(20_000))  # takes a few tenths of a second
    assert jax_cocktail.wait(60)
    assert ready == [[True, True]], results
    assert not BEGUN


@pytest.mark.parametrize("lowers", [False, True])
def test_another_first_call_has_precedence(monkeypatch, lowers):
    """Work that has begun gives way to a function that is traced and compiled, and goes on afterwards."""
    steps, going = [], background.go_on

    def noted():
        going()
        steps.append(time.monotonic())

    for module in (survey, variants):
        monkeypatch.setattr(module, "go_on", noted)
    jitted, traced = jax_cocktail.jit(loop, options=OPTIONS), []
    jitted(X)
    while not steps:
        time.sleep(0.001)

    def slow(x):
        traced.append(time.monotonic())
        time.sleep(0.5)
        traced.append(time.monotonic())
        return loop(x)

    other = jax_cocktail.jit(slow, options=OPTIONS)
    (other.lower if lowers else other)(X)
    assert jax_cocktail.wait(60)
    begin, end = traced
    assert sum(begin < step < end for step in steps) <= 1  # which had begun
    assert max(steps) > end and "jax_cocktail_cpu" in jitted._dispatch.call.lower(X).as_text()
    assert not state.FIRST_CALLS


def test_who_waits_has_no_precedence(monkeypatch):
    monkeypatch.setattr(state, "FIRST_CALL_SECONDS", 60.0)
    jitted, waited = jax_cocktail.jit(loop, options=OPTIONS), []
    jitted(X)

    def waits(x):
        waited.append(jax_cocktail.wait(30))
        return loop(x)

    jax_cocktail.jit(waits, options=OPTIONS)(X)
    assert waited == [True]
