"""One element of each row, chosen by a label: its value and its gradient, against stock XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

FORCED = {"scope": "memory_bound", "force": "cocktail", "strict": True, "profile": "off"}
MODES = ("fill", "clip")


def chosen(x, labels, mode):
    """Of a function of `x` that only the chosen elements need."""
    y = jnp.tanh(x - x.max(-1, keepdims=True)) * x
    return jnp.take_along_axis(y, labels[:, None], axis=-1, mode=mode)[:, 0], x.sum(-1)


def loss(x, labels, mode):
    return -jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], axis=-1, mode=mode).mean()


def gradient(x, labels, mode):
    return jax.value_and_grad(loss)(x, labels, mode)


def one_hot(x, labels, mode):
    """Rows of zeros that are updated, and read twice."""
    scattered = jnp.zeros_like(x).at[jnp.arange(x.shape[0]), labels].add(2.0, mode="drop")
    return x * scattered, scattered.sum(-1)


def updated(x, labels, mode):
    """The array from which elements are taken changes in every trip."""

    def step(n, x):
        taken = jnp.take_along_axis(jnp.sin(x), labels[:, None], axis=-1, mode=mode)
        return x.at[:, n].set(taken[:, 0])

    return lax.fori_loop(0, 4, step, x)


def operands(rows, columns):
    random = np.random.default_rng(5)
    labels = random.integers(0, columns, rows).astype(np.int32)
    labels[:6] = 0, columns - 1, columns, -1, -columns - 3, 5 * columns  # some of no column
    return random.standard_normal((rows, columns), np.float32), labels


@pytest.mark.parametrize("shape", [(7, 40), (512, 700)], ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", [chosen, gradient, one_hot, updated])
def test_results_are_those_of_stock(function, mode, shape):
    given = operands(*shape)
    stock = jax.jit(function, static_argnums=2)(*given, mode)
    found = [
        jax_cocktail.jit(function, static_argnums=2, options={**FORCED, "units": units})(*given, mode)
        for units in (1, 2, 3)
    ]
    for wanted, one, two, three in zip(*map(jax.tree.leaves, (stock, *found)), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)
