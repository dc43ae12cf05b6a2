"""What depends on the environment alone is computed once: outside of the calls, and on no tape."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.primitives.jaxprs import equations_in
from jax_cocktail.recursion.task import RECURSION, row_bytes
from tests.recursion_compare import COMPILERS, check
from tests.recursion_python import by_python, floats, like, total, unrolled, widened

SIZE = 4
BELOW = np.array([[1, 2, 5], [3, 5, 5], [5, 4, 5], [5, 5, 5], [5, 5, 5]], np.int32)  # 5: no child
OPERANDS = (floats(5, SIZE), floats(SIZE, 2 * SIZE, scale=0.5))


def children(recursive):
    """Multiplies with slices of weights: one in every call, one for each child in a scan."""

    def run(x, weights, root):
        @recursive(out_like=like(weights, (SIZE,)), max_depth=8, max_calls=8)
        def node(self, k):
            def add(found, child):
                there = lambda: self(child) @ weights[:, SIZE:].T  # noqa: E731
                return found + lax.cond(child == len(BELOW), lambda: jnp.zeros_like(found), there), None

            found, _ = lax.scan(add, jnp.zeros(SIZE, weights.dtype), jnp.asarray(BELOW)[k])
            return jnp.tanh(found + x[k] @ weights[:, :SIZE])

        return node(root)

    return run


def scaled(recursive):
    """Every call computes the same function of an array that it closes over."""

    def run(x, weights, root):
        @recursive(out_like=like(weights, (SIZE,)), max_depth=8, max_calls=8)
        def node(self, k):
            scale = jnp.exp(weights[:, :SIZE])
            return lax.cond(k > 3, lambda: x[k], lambda: jnp.sin(self(k + 1) @ scale) + x[k])

        return node(root)

    return run


def unsafe(recursive):
    """A side that does not run has an infinite derivative."""

    def run(x, weights, root):
        zero = weights[0] * 0

        @recursive(out_like=like(weights, (2 * SIZE,)), max_depth=8, max_calls=8)
        def node(self, k):
            def inner():
                return lax.cond(k > 9, lambda: jnp.sqrt(zero), lambda: self(k + 1) + weights[1])

            return lax.cond(k > 3, lambda: jnp.tile(x[k], 2), inner)

        return node(root)

    return run


def gradient(make, recursive):
    return jax.value_and_grad(lambda *given: total(make(recursive)(*given)), (0, 1))


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("make", [children, scaled, unsafe], ids=lambda make: make.__name__)
def test_gradients(make, compiler):
    given = (*OPERANDS, np.int32(0))
    expected = by_python(lambda: gradient(make, unrolled)(*widened(given)))
    check(COMPILERS[compiler](gradient(make, jax_cocktail.recursive))(*given), expected, 1e-4)


def tape_of(make):
    """The bytes that each call saves for the derivative."""
    jaxpr = jax.make_jaxpr(gradient(make, jax_cocktail.recursive))(*OPERANDS, np.int32(0))
    tasks = [e.params["task"] for e in equations_in(jaxpr) if e.primitive.name == RECURSION]
    (forward,) = [task for task in tasks if task.row_results]
    return row_bytes(forward.row_results)


@pytest.mark.parametrize(("make", "most"), [(children, 128), (scaled, 64)], ids=["children", "scaled"])
def test_the_tape_has_nothing_of_the_environment(make, most):
    assert tape_of(make) <= most
