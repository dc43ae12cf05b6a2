"""Matrices that stay in registers while a loop runs: which ones, and equal results on the emulator."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from tests.cpu.emulated import Emulation


def array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


H, W, V = array(1, 2, 32), array(2, 32, 32) / 6, array(3, 3, 32, 32) / 6


def constant(h, w):
    return lax.fori_loop(0, 9, lambda _, h: jnp.tanh(h @ w), h)


def left(h, w):
    return lax.fori_loop(0, 9, lambda _, x: jnp.tanh(w @ x), h[0])


def two(h, w):
    """Slices of one matrix: two different ones."""
    return lax.fori_loop(0, 9, lambda _, h: jnp.tanh(h @ w[0]) + jnp.sin(h @ w[1]), h)


def three(h, w):
    """Three products with one left operand; the results of two of them are rows of arrays."""

    def step(i, carry):
        h, one, two = carry
        one = lax.dynamic_update_slice_in_dim(one, (h @ w[0])[None], i, 0)
        two = lax.dynamic_update_slice_in_dim(two, (h @ w[1])[None], i, 0)
        return jnp.tanh(h @ w[2] + one.sum(0) - two[3]), one, two

    one, two = jnp.zeros((9, *h.shape)), jnp.ones((9, *h.shape))
    return sum(jnp.sum(x, 0) for x in lax.fori_loop(0, 9, step, (h[None], one[:, None], two[:, None]))[1:])


def one_array(h, w):
    """The second product writes into the array that the first one has written to."""

    def step(i, rows):
        x = jnp.tanh(rows[:2])
        rows = lax.dynamic_update_slice_in_dim(rows, x @ w[0], i % 5, 0)
        return lax.dynamic_update_slice_in_dim(rows, x @ w[1], i % 5, 0)

    return lax.fori_loop(0, 9, step, jnp.tile(h, (3, 1)))


def nested(h, w):
    def outer(i, h):
        return lax.fori_loop(0, 4, lambda _, h: jnp.tanh(h @ w[i]), h) + h @ w[0]

    return lax.fori_loop(0, 3, outer, h)


def changing(h, w):
    return lax.fori_loop(0, 9, lambda i, c: (jnp.tanh(c[0] @ c[1]), c[1] * 0.9), (h, w))[0]


def by_step(h, w):
    return lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ w[i]), jnp.tanh(h))


def brief(h, w):
    return lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h @ w), h)


# function, weights, how many matrices are held, how many of them one call multiplies
CASES = {
    "constant": (constant, W, 1, 1),
    "left": (left, W, 1, 1),
    "two": (two, V, 2, 2),
    "three": (three, V, 3, 3),
    "one_array": (one_array, V, 2, 1),
    "nested": (nested, V, 1, 1),
    "changing": (changing, W, 0, 0),
    "by_step": (by_step, V, 0, 0),
    "brief": (brief, W, 0, 0),
}


@pytest.mark.parametrize("units", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_held(monkeypatch, name, units):
    function, weights, count, together = CASES[name]
    emulation = Emulation(launches=[], distribute=False).install(monkeypatch)
    options = {"force": "cocktail", "strict": True, "units": units}
    with jax.default_matmul_precision("highest"):
        ours = jax_cocktail.jit(function, options=options)
        expected = jax.jit(function)(H, weights)
        for emulation.kernel in ("ck_resident", "ck_portable"):
            np.testing.assert_allclose(ours(H, weights), expected, rtol=2e-5, atol=2e-6)
    source = emulation.launches[0][0].source
    assert len(re.findall(r"CkDotHeld<", source)) == count, source
    calls = [re.findall(r"ck_held<[^>]*>\((k\d+),", line) for line in source.splitlines()]
    assert len({name for names in calls for name in names}) == count
    assert max(map(len, calls)) == together
