"""Memory that threads and units share: nobody reads what is not there yet, wherever arrays lie."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_cocktail.lowering.edge import gpu_call
from tests.gpu import programs
from tests.gpu.card import Card, check


@pytest.fixture
def watched(card: Card) -> Card:
    """Emulated, under the thread sanitizer."""
    if card.emulation:
        card.emulation.sanitizer = "thread"
    return card


@pytest.fixture
def little(card: Card, monkeypatch):
    """`little(bytes)`: blocks are planned with that much shared memory."""

    def limit(count: int) -> None:
        spec_of = gpu_call.spec_of
        monkeypatch.setattr(
            gpu_call,
            "spec_of",
            lambda *facts: replace(spec_of(*facts), shared_bytes=count),
        )
        if card.emulation:
            card.emulation.spec = replace(card.emulation.spec, shared_bytes=count)

    return limit


def convolutions(x, w):
    """Carried images. x: (n, 6, h, w), w: (8, 3, 3, 2), of two groups."""

    def step(_, x):
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=2)
        return jnp.tanh(0.5 * x + 0.1 * y[:, :6])

    return lax.fori_loop(0, 3, step, x)


@pytest.mark.emulated
@pytest.mark.parametrize("kibibytes", [12, 50])
def test_own_memory_that_does_not_fit(watched: Card, eager, little, kibibytes):
    """What a unit keeps for itself then lies in the workspace, and is still its own."""
    little(kibibytes << 10)
    check(watched, convolutions, programs.floats(2, 6, 9, 11), programs.floats(8, 3, 3, 2), units=3)


@pytest.mark.emulated
def test_products_that_share_scratch_memory(watched: Card, eager):
    """Products of slices, one after the other."""
    xs, u, w = programs.floats(9, 64, 48), programs.floats(48, 48), programs.floats(48, 48, seed=1)

    def program(xs, u, w):
        def step(h, x):
            h = jnp.tanh(0.1 * (x @ w + h @ u))
            return h, h[:, :3]

        return lax.scan(step, xs[0], xs)

    check(watched, program, xs, u, w, units=3)


@pytest.mark.emulated
def test_rests_beside_equal_parts(card: Card, eager):
    """Ten columns leave a rest over three parts, six do not."""

    def program(x, w, u):
        def step(_, x):
            return jnp.sin(jnp.pad(x @ w, (0, 2)) + jnp.pad(x @ u, (0, 6)))

        return lax.fori_loop(0, 3, step, x)

    check(card, program, programs.floats(12), programs.floats(12, 10), programs.floats(12, 6), units=3)


def test_large_carries(card: Card, eager):
    """More than shared memory holds, moved about in place."""
    x, rows = programs.floats(700, 90), programs.floats(5, 90)

    def program(x, rows, start):
        def step(i, state):
            x, at = state
            x = lax.dynamic_update_slice(x, rows * i, (at, jnp.int32(0)))
            return jnp.roll(x, 1, axis=0) * 0.5 + x, at + 170

        return lax.fori_loop(0, 5, step, (x, start))

    check(card, program, x, rows, np.int32(3))
