"""Programs that run in several units: barriers per iteration, equal bits, stock's answers."""

from __future__ import annotations

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.compiler import emit
from jax_cocktail.cost.price import barriers_per_iteration
from jax_cocktail.lowering.choice import variants
from jax_cocktail.lowering.edge.adapter import program as adapt
from jax_cocktail.primitives import translate
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import is_parallel, walk
from jax_cocktail_tools.models.attention import decoder
from jax_cocktail_tools.models.lstm import cell_weights, lstm
from jax_cocktail_tools.models.model import generator

UNITS = 2


def recurrent(batch, steps=8):
    random = generator("units")
    layers = (cell_weights(random, 128, 128), cell_weights(random, 128, 128))
    return lstm, (jnp.asarray(random.normal(size=(steps, batch, 128)), jnp.float32), layers)


def attention():
    random = generator("units")
    arrays = [random.normal(size=(1, 12, 32, 64)) * 0.1 for _ in range(2)]
    weights = [random.normal(size=(12, 64, 64)) * 0.1 for _ in range(4)]
    x = random.normal(size=(1, 12, 1, 64))
    return decoder(8, 16), tuple(jnp.asarray(a, jnp.float32) for a in (x, *arrays, *weights))


def greedy():
    random = generator("units")
    sizes = (1000, 128), (128, 128), (128, 1000)
    table, w, out = (jnp.asarray(random.normal(size=s) * 0.1, jnp.float32) for s in sizes)

    def decode(table, w, out):
        def step(state):
            count, token, h = state
            h = jnp.tanh(table[token] + h @ w)
            return count + 1, jnp.argmax(h @ out).astype(jnp.int32), h

        state = (0, jnp.int32(1), jnp.zeros(128))
        return lax.while_loop(lambda s: (s[0] < 20) & (s[1] != 0), step, state)

    return decode, (table, w, out)


def newton():
    def solve(x):
        return lax.fori_loop(0, 20, lambda _, y: (y + x / y) / 2, x)

    return solve, (jnp.linspace(1.0, 9.0, 4096),)


PROGRAMS = {
    "lstm, batch 1": (functools.partial(recurrent, 1), 1),
    "lstm, batch 64": (functools.partial(recurrent, 64), 0),
    "attention, 12 heads": (attention, 0),
    "greedy decoding": (greedy, 2),
    "newton per sample": (newton, 0),
}


def emitted(function, arguments):
    program = translate(adapt(jax.make_jaxpr(function)(*arguments)), "units")
    return emit(program, candidate=Candidate(units=UNITS))


@pytest.mark.parametrize("name", PROGRAMS)
def test_barriers_per_iteration(name):
    """Loops around divided work are unrolled by two where that saves a copy: two trips count as one."""
    make, expected = PROGRAMS[name]
    found = emitted(*make())
    assert found.plan.most_units >= UNITS
    loops = dict(barriers_per_iteration(found.program))
    steps = {"lstm, batch 1": 2, "greedy decoding": 2}.get(name, 1)
    assert max(loops.values(), default=0) == expected * steps


@pytest.mark.parametrize("name", PROGRAMS)
def test_answers_and_bits(monkeypatch, name):
    """Stock's answers, and the same bits whatever number of units a call gets."""
    monkeypatch.setattr(variants, "candidates", lambda programs, units, *_: (Candidate(units=UNITS),))
    function, arguments = PROGRAMS[name][0]()
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    options = {"force": "cocktail", "strict": True, "units": UNITS}
    compiled = jax_cocktail.jit(function, options=options)
    first = [np.asarray(x) for x in jax.tree.leaves(compiled(*arguments))]
    results = [None] * 4

    def call(position):
        results[position] = [np.asarray(x) for x in jax.tree.leaves(compiled(*arguments))]

    threads = [threading.Thread(target=call, args=(k,)) for k in range(len(results))]
    for thread in threads:  # they compete for the units: some calls run alone
        thread.start()
    for thread in threads:
        thread.join()
    for ours, stock in zip(first, expected, strict=True):
        np.testing.assert_allclose(ours, np.asarray(stock), rtol=2e-5, atol=2e-5)
    for result in results:
        assert all(np.array_equal(a, b) for a, b in zip(result, first, strict=True))


def gated(x, r):
    """A recurrence whose second product needs all of the first."""
    size = r.shape[0]

    def step(h, row):
        z, reset = jnp.split(jax.nn.sigmoid(row[:, : 2 * size] + h @ r[:, : 2 * size]), 2, axis=-1)
        h = (1 - z) * jnp.tanh(row[:, 2 * size :] + (reset * h) @ r[:, 2 * size :]) + z * h
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], size), x.dtype), x)[1]


@pytest.mark.parametrize("units", [2, 3])
@pytest.mark.parametrize("size", [149, 167])
def test_units_share_axes_of_odd_lengths(size, units):
    random = generator("odd")
    x = jnp.asarray(random.normal(size=(40, 1, 3 * size)), jnp.float32)
    r = jnp.asarray(random.normal(size=(size, 3 * size)) * 0.1, jnp.float32)
    found = emit(translate(adapt(jax.make_jaxpr(gated)(x, r)), "gated"), candidate=Candidate(units=units))
    products = [line for line in found.source.splitlines() if "ck_dot_fixed<" in line]
    assert products and all("kCkPanels" in line for line in products)
    assert {(s.trip_count, s.first) for s in walk(found.program.entry) if is_parallel(s)} >= {(1, units - 1)}
    options = {"force": "cocktail", "strict": True, "units": units, "profile": "off", "compile": "now"}
    ours = jax_cocktail.jit(gated, options=options)
    np.testing.assert_allclose(ours(x, r), jax.jit(gated)(x, r), rtol=1e-4, atol=1e-5)


def test_stages_and_shared_updates(monkeypatch):
    """Many lane loops (which become functions of their own) beside an update that unit 0 does alone."""
    monkeypatch.setattr(variants, "candidates", lambda programs, units, *_: (Candidate(units=UNITS),))
    random = generator("units")
    w = jnp.asarray(random.normal(size=(128, 128)) * 0.05, jnp.float32)

    def decode(w, h):
        def step(i, state):
            x, out = state
            for _ in range(20):
                a = jax.nn.softmax(jnp.tanh(x @ w + h))
                x = x + a - jnp.mean(a)
            token = jnp.argmax(x @ w).astype(jnp.int32)
            return x, lax.dynamic_update_slice(out, token[None], (i,))

        return lax.fori_loop(0, 6, step, (h, jnp.zeros(6, jnp.int32)))

    arguments = (w, jnp.asarray(random.normal(size=128), jnp.float32))
    ours = jax_cocktail.jit(decode, options={"force": "cocktail", "strict": True, "units": UNITS})(*arguments)
    for a, b in zip(ours, jax.jit(decode)(*arguments), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.one_jax
def test_long_body():
    """A chain of 2,000 operators in a loop's body."""

    def body(i, x):
        for k in range(660):
            x = jnp.sin(x) * 0.9 + k * 0.001
        return x

    x = jnp.linspace(0.0, 1.0, 64)
    ours = jax_cocktail.jit(
        lambda x: lax.fori_loop(0, 3, body, x), options={"force": "cocktail", "strict": True}
    )
    np.testing.assert_allclose(ours(x), lax.fori_loop(0, 3, body, x), rtol=1e-5, atol=1e-5)
