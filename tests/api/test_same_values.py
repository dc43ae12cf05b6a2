"""Operators that change nothing between the calls of a function: a program reads their operands."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_cocktail.lowering.edge.capture import capture


def test_copies_inside_calls():
    """A loop that reads a number and its copies has one operand for them."""

    @jax.jit
    def inner(x, n):
        again = jax.lax.stop_gradient(jnp.array(n, copy=True))
        x = jax.pure_callback(lambda x, n: x, x, x, again)  # needs the copy before the loop
        return jax.lax.while_loop(lambda s: s[1] < again, lambda s: (s[0] * n, s[1] + n), (x, n))

    arguments = jnp.ones(3), jnp.float32(2)
    found = capture(jax.jit(lambda x, n: inner(x, n)).trace(*arguments).jaxpr)
    (region,) = found.regions
    assert len(region.operands) == 2, region.operands
