"""The precision of products is what was asked of JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.gpu import programs
from tests.gpu.card import Card

STEPS, ROWS, INNER = 3, 32, 40
TF32 = 2.0**-10  # relative error of two factors rounded to 10 bits of mantissa


def products(x, w):
    """x: (steps, rows, inner), w: (inner, inner). Every product in a step of its own."""
    return lax.scan(lambda n, x: (n + 1, x @ w), 0, x)[1]


def arguments(dtype=np.float32):
    x, w = programs.floats(STEPS, ROWS, INNER), programs.floats(INNER, INNER)
    return x.astype(dtype), w.astype(dtype)


def bounds(x, w):
    """The exact products, and the sums of the sizes of what they add up."""
    x, w = (np.asarray(a).astype(np.float64) for a in (x, w))
    return x @ w, abs(x) @ abs(w)


@pytest.mark.emulated
def test_default(card: Card, eager):
    """At least as good as TF32; stock's rounding of factors, no worse."""
    x, w = arguments()
    exact, size = bounds(x, w)
    assert (abs(np.asarray(card.jit(products)(x, w)) - exact) <= TF32 * size).all()


@pytest.mark.emulated
@pytest.mark.parametrize("precision", ["highest", "float32"])
def test_exact(card: Card, eager, precision):
    x, w = arguments()
    exact, size = bounds(x, w)
    with jax.default_matmul_precision(precision):
        found = np.asarray(card.jit(products)(x, w))
    assert (abs(found - exact) <= INNER * 2.0**-24 * size).all()


@pytest.mark.emulated
def test_precision_of_one_product(card: Card, eager):
    """What an operator asks for counts more than the default."""

    def program(x, w):
        return lax.scan(lambda n, x: (n, jnp.matmul(x, w, precision=lax.Precision.HIGHEST)), 0, x)[1]

    x, w = arguments()
    exact, size = bounds(x, w)
    assert (abs(np.asarray(card.jit(program)(x, w)) - exact) <= INNER * 2.0**-24 * size).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_halves(card: Card, eager, dtype):
    """Products of 16-bit floats are summed in 32 bits and rounded once."""
    x, w = arguments(dtype)
    exact, size = bounds(x, w)
    found = np.asarray(card.jit(products)(x, w))
    assert found.dtype == dtype
    rounding = float(jnp.finfo(dtype).eps) / 2 * abs(exact) + INNER * 2.0**-23 * size
    assert (abs(found.astype(np.float64) - exact) <= rounding).all()
