"""The option `reproducible`: one program from the first call on, whatever was measured, stored or is busy."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.choice import decisions
from jax_cocktail.lowering.run import stopwatch
from tests.process import python

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

# A network whose loss is steep, so that rounding shows, and a loop with a condition on all elements.
PROGRAM = """
    import hashlib, os
    if CORES: os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:CORES])
    import jax, jax.numpy as jnp, jax_cocktail
    from jax import lax
    def train(w, xs):
        def loss(w):
            def step(h, x):
                h = jnp.tanh(h @ w + x)
                return h, jnp.sum(h ** 2)
            return jnp.sum(lax.scan(step, xs[0], xs)[1])
        return w - 0.05 * jax.grad(loss)(w)
    def newton(a):
        return lax.while_loop(lambda x: jnp.any(abs(x * x - a) > 1e-5 * a), lambda x: (x + a / x) / 2, a)
    train, newton = (jax_cocktail.jit(f, options=OPTIONS) for f in (train, newton))
    key = jax.random.key(0)
    w, xs = jax.random.normal(key, (24, 24)) / 4, jax.random.normal(key, (20, 8, 24))
    bits = hashlib.sha256()
    for step in range(12):
        w = train(w, xs)
        bits.update(bytes(memoryview(w)))
        bits.update(bytes(memoryview(newton(jnp.arange(1.0, 300.0)))))
        if step == 3: jax_cocktail.wait()
    print(bits.hexdigest())
"""


def bits(folder, options, cores=0):
    text = PROGRAM.replace("OPTIONS", repr(options)).replace("CORES", str(cores))
    environment = {"JAX_COCKTAIL_COMPILE": "background", "JAX_COCKTAIL_PLANS": "cached"}
    return python(text, JAX_COCKTAIL_CACHE_DIR=str(folder), **environment).strip()


@pytest.mark.one_jax
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the cores of a process cannot be set here")
def test_bits_stay(tmp_path):
    options = {"reproducible": True}
    first = bits(tmp_path / "one", options)
    assert bits(tmp_path / "two", options, cores=1) == first
    bits(tmp_path / "three", {"compile": "now"})  # leaves decisions
    assert bits(tmp_path / "three", options) == first


def function(x):
    return lax.fori_loop(0, 5, lambda i, a: jnp.tanh(a) * 1.25 - i, x)


def test_nothing_is_measured_or_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    for where, name in ((stopwatch, "race"), (decisions, "store"), (decisions, "load")):
        monkeypatch.setattr(where, name, lambda *_: pytest.fail("something was measured or looked up"))
    x = jnp.linspace(0, 1, 24)
    jitted = jax_cocktail.jit(function, options={"reproducible": True, "compile": "background"})
    before = jax_cocktail.cache_info()
    first = jitted(x)
    assert jax_cocktail.wait(60) and jax_cocktail.cache_info().changed_over == before.changed_over
    np.testing.assert_array_equal(first, jitted(x))
    np.testing.assert_allclose(first, jax.jit(function)(x), rtol=2e-6)
    assert "reproducible" in jax_cocktail.explain(jitted)(x).why


def test_what_it_implies():
    assert jax_cocktail.Options(reproducible=True, units=2).units == 2
    found = jax_cocktail.Options(reproducible=True, compile="background", profile="full")
    assert (found.compile, found.profile, found.units) == ("now", "off", 1)


def test_cores_do_not_choose(monkeypatch):
    """Stock XLA takes products on all cores, which the choice must not see."""
    w, x = jnp.eye(256), jnp.ones((32, 256))

    def network(w, x):
        return lax.fori_loop(0, 50, lambda i, a: jnp.tanh(a @ w), x)

    chosen = set()
    for count in (1, 2, 64):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=count: set(range(count)), raising=False)
        fresh = jax_cocktail.jit(lambda w, x: network(w, x), options={"reproducible": True, "plans": "fresh"})
        chosen.add(jax_cocktail.explain(fresh)(w, x).choice)
    assert len(chosen) == 1
