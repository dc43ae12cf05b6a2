"""Packed factors in the order of tensor cores, emulated, against products of float64."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from tests.cpu.emulated import Emulation
from tests.null.grids import EagerGrids

STEPS = 3


def array(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def plain(x, w, tanh=jnp.tanh, loop=lax.fori_loop):
    return loop(0, STEPS, lambda _, h: tanh(h @ w), x)


def gated(x, w, tanh=jnp.tanh, loop=lax.fori_loop):
    """Columns of four gates, which a unit needs together."""

    def step(_, carry):
        (h, c), n = carry, x.shape[1]
        y = tanh(h @ w)
        i, f, g, o = (y[:, k * n : (k + 1) * n] for k in range(4))
        c = f * c + i * g
        return o * tanh(c), c

    return loop(0, STEPS, step, (x, x))[0]


def three_gates(x, w, tanh=jnp.tanh, loop=lax.fori_loop):
    """As many columns of a unit as no whole blocks have: the last one has zeros."""

    def step(_, h):
        y, n = tanh(h @ w), x.shape[1]
        r, z, c = (y[:, k * n : (k + 1) * n] for k in range(3))
        return r * h + z * c

    return loop(0, STEPS, step, x)


def summed(x, w, tanh=jnp.tanh, loop=lax.fori_loop):
    """The products of an input and of the state, among other terms."""
    (w, u), start = w, np.zeros((x.shape[0], w[0].shape[1]), x.dtype)
    return loop(0, STEPS, lambda i, h: tanh((x[:, i] @ w + 0.5) + h @ u - 0.25), start)


def summed_gates(x, w, tanh=jnp.tanh, loop=lax.fori_loop):
    """The same of three gates; the lines of the input are longer than those of the state."""
    (w, u), start = w, np.zeros((x.shape[0], w[0].shape[0]), x.dtype)

    def step(t, carry):
        (h, c), n = carry, w.shape[0]
        y = tanh(x[:, t, :n] @ w + h @ u)
        f, i, o = (y[:, k * n : (k + 1) * n] for k in range(3))
        c = f * c + i
        return o * tanh(c), c

    return loop(0, STEPS, step, (start, start))[0]


def host_loop(low, high, body, value):
    for i in range(low, high):
        value = body(i, value)
    return value


def weights(dtype, depth, columns, seed=2):
    return (array(seed, depth, columns) / np.sqrt(depth)).astype(dtype)


def two_weights(*sizes):
    return weights(*sizes), weights(*sizes, seed=3)


CASES = {
    "plain": (plain, array(1, 20, 64), weights(np.float32, 64, 64)),
    "whole runs of gates": (gated, array(1, 20, 32), weights(np.float32, 32, 128)),
    "gates together": (gated, array(1, 20, 48), weights(np.float32, 48, 192)),
    "columns and zeros": (plain, array(1, 20, 176), weights(np.float32, 176, 176)),
    "gates and zeros": (three_gates, array(1, 20, 48), weights(np.float32, 48, 144)),
    "a sum": (summed, array(1, 20, STEPS, 64), two_weights(np.float32, 64, 64)),
    "a sum of gates": (summed_gates, array(1, 20, STEPS, 52), two_weights(np.float32, 48, 144)),
    "a half sum": (summed, array(1, 20, STEPS, 64, dtype=jnp.bfloat16), two_weights(jnp.bfloat16, 64, 64)),
    "half": (plain, array(1, 20, 64, dtype=jnp.bfloat16), weights(jnp.bfloat16, 64, 64)),
}


def check(monkeypatch, case, kernels=("ck_resident", "ck_portable"), ordered=True, **how):
    function, x, w = CASES[case]
    limits = EagerGrids(last=True, has_grids=False)  # divides columns, not rows
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: limits)
    emulation = Emulation(launches=[], distribute=False, **how).install(monkeypatch)
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True, "units": 4})
    wide = jax.tree.map(lambda v: v.astype("d"), (x, w))
    expected = partial(function, tanh=np.tanh, loop=host_loop)(*wide)
    for emulation.seed, emulation.kernel in enumerate(kernels):
        error = np.abs(np.asarray(ours(x, w), "d") - expected).max()
        assert error < (0.05 if x.dtype != np.float32 else 4e-3 if ordered else 2e-6)
    for emitted, _, _ in emulation.launches:
        assert ("kCkDotPacked" in emitted.source) == ordered
        assert ("ck_dot_sum" in emitted.source) == (ordered and "sum" in case)


@pytest.mark.parametrize("case", CASES)
def test_equals_float64(case, monkeypatch):
    check(monkeypatch, case)


def test_exact_products_keep_their_order(monkeypatch):
    with jax.default_matmul_precision("highest"):
        check(monkeypatch, "plain", ordered=False)


@pytest.mark.parametrize("case", ["gates together", "gates and zeros", "a sum of gates"])
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_nothing_else_is_touched(case, sanitizer, monkeypatch):
    check(monkeypatch, case, ("ck_resident",), sanitizer=sanitizer)
