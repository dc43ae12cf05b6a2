"""Loops inside JAX's own primitives, which JAX traces when it lowers them: found, compiled, and placed."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import special

import jax_cocktail

KEY = jax.random.key(0)
A = jnp.exp(jax.random.normal(jax.random.key(1), (40,)))
X = A + 0.25


def gradient(function):
    return jax.grad(lambda *arguments: function(*arguments).sum())


def gamma(a):
    return jax.random.gamma(KEY, a)


def beta(x):
    return special.betainc(jnp.float32(4.5), jnp.float32(0.5), x)


CASES = {
    "gamma": (gamma, (A,)),
    "gamma, gradient": (gradient(gamma), (A,)),
    "gamma, batch": (jax.vmap(gamma), (A.reshape(8, 5),)),
    "poisson": (lambda a: jax.random.poisson(KEY, 20 * a), (A,)),
    "dirichlet": (lambda a: jax.random.dirichlet(KEY, a), (A,)),
    "gammainc": (special.gammainc, (A, X)),
    "gammainc, gradient": (gradient(special.gammainc), (A, X)),
    "gammaincc": (special.gammaincc, (A, X)),
    "betainc": (beta, (A / (1 + A),)),
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_compiled(name):
    function, arguments = CASES[name]
    ours = jax_cocktail.jit(lambda *a: function(*a), options={"force": "cocktail"})
    np.testing.assert_allclose(ours(*arguments), jax.jit(function)(*arguments), rtol=2e-4, atol=2e-5)
    report = jax_cocktail.explain(ours)(*arguments)
    assert report.captured, report
    places = [place for region in report.captured for place in region.control_flow]
    assert places and all("test_hidden_loops.py" in place for place in places)


def test_primitives_without_loops_are_left_alone():
    report = jax_cocktail.explain(jax_cocktail.jit(lambda x: special.digamma(x) + special.erf(x)))(A)
    assert report.why == "it contains no loop or branch"


def coupled(x):
    """A loop that goes on for all elements until the last one ends, as the samplers of `jax.random` do."""

    def step(state):
        i, kept, done = state
        y = jnp.sin(x * (1.0 + i)) ** 2
        return i + 1, jnp.where(y > 0.6, y, kept), done | (y > 0.6)

    state = (0, jnp.zeros_like(x), jnp.zeros(x.shape, bool))
    return lax.while_loop(lambda s: ~s[2].all() & (s[0] < 1000), step, state)[1]


SHARED = {
    "select": lambda x: jnp.where(x < 5, x, coupled(x)),
    "poisson": lambda x: jax.random.poisson(KEY, x),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_select_does_not_repeat_a_loop_that_all_share(name):
    """The work grows with the number of elements, not with its square."""
    function = SHARED[name]
    ours = jax_cocktail.jit(lambda x: function(x), options={"force": "cocktail", "units": 1})
    flops = []
    for size in (256, 1024):
        x = jax.random.uniform(KEY, (size,), minval=1.0, maxval=10.0)
        np.testing.assert_allclose(ours(x), jax.jit(function)(x), rtol=1e-5)
        flops.append(sum(region.flops for region in jax_cocktail.explain(ours)(x).captured))
    assert flops[1] < 5 * flops[0], flops


def test_strict_mode_finds_them():
    """Of a program with quotients of symbolic sizes, nothing can be compiled."""
    function = jax_cocktail.jit(lambda x: gamma(x[: x.shape[0] // 2]), options={"strict": True})
    (size,) = jax.export.symbolic_shape("n")
    with pytest.raises(jax_cocktail.StrictModeError, match="would run on stock XLA"):
        jax_cocktail.export(function)(jax.ShapeDtypeStruct((size,), jnp.float32))
