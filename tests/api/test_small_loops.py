"""Loops that stock XLA compiles to one kernel on a CPU: the cost model knows them, and promises no gain."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.cost.small_loops import is_one_kernel
from jax_cocktail.device.host import SERVER
from jax_cocktail.lowering import adapter
from jax_cocktail.primitives import translate
from jax_cocktail.utask.ir import LoopUTask


def repeated(step):
    return lambda x: lax.fori_loop(0, 50, lambda _, y: step(y), x)


def newton(a):
    return lax.while_loop(lambda x: jnp.any(abs(x * x - a) > 1e-5 * a), lambda x: (x + a / x) / 2, a)


def scanned(xs):
    return lax.scan(lambda h, x: (jnp.tanh(h + x), h), jnp.zeros(xs.shape[1]), xs)


def nested(x):
    return lax.fori_loop(0, 9, lambda i, x: lax.fori_loop(0, 9, lambda j, y: y * 0.5 + j, x) + i, x)


def branching(x):
    return lax.fori_loop(0, 9, lambda i, x: lax.cond(i % 2 == 0, jnp.sin, jnp.cos, x), x)


CASES = {
    "sine of 8": (repeated(jnp.sin), jnp.ones(8)),
    "sine of 400": (repeated(jnp.sin), jnp.ones(400)),
    "softmax of 4": (repeated(jax.nn.softmax), jnp.ones(4)),
    "softmax of 100": (repeated(jax.nn.softmax), jnp.ones(100)),
    "newton of 3": (newton, jnp.full(3, 9.0)),
    "newton of 200": (newton, jnp.full(200, 9.0)),
    "scan of 4": (scanned, jnp.ones((30, 4))),
    "scan of 100": (scanned, jnp.ones((30, 100))),
    "product of 64": (repeated(lambda x: jnp.tanh(jnp.outer(x, x) @ x)), jnp.ones(64)),
    "nested": (nested, jnp.ones(20)),
    "branching": (branching, jnp.ones(20)),
}


@pytest.mark.parametrize("name", CASES)
def test_xla_does_so(name):
    function, x = CASES[name]
    compiled = jax.jit(function).lower(x).compile().as_text()
    program = translate(adapter.program(jax.make_jaxpr(function)(x)), "p")
    (loop,) = (s for s in program.entry.body if isinstance(s, LoopUTask))
    found = is_one_kernel(loop, SERVER.stock.small_loop)
    assert found == ('xla_cpu_small_call="true"' in compiled)


def test_nothing_is_promised():
    """Where nothing is measured, stock XLA keeps such a loop."""
    for name in ("sine of 8", "newton of 3", "scan of 4"):
        function, x = CASES[name]
        small = jax_cocktail.jit(function, options={"profile": "off", "compile": "now"})
        assert jax_cocktail.explain(small)(x).choice == "stock"


def test_xla_counts_it_as_one_kernel():
    function, x = CASES["sine of 8"]
    small = jax_cocktail.jit(function, options={"force": "cocktail"})
    (region,) = jax_cocktail.explain(small, stock=True)(x).captured
    assert region.stock.kernels < 5
