"""Groups of neighbouring columns against stock XLA and float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.compiler import Emitted, emit
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.utask.candidate import SINGLE, Candidate, way
from tests.cpu.emulated import Emulation

Function = Callable[..., Any]
SHAPE, GROUPS = (3, 9, 8, 60), 6


def normalised(groups, axes):
    mean = groups.mean(axes, keepdims=True)
    variance = jnp.square(groups - mean).mean(axes, keepdims=True)
    return (groups - mean) * lax.rsqrt(variance + 1e-5)


def group_norm(x):
    """Channels last."""
    channels = jnp.linspace(0.5, 2, x.shape[-1]).astype(x.dtype)
    groups = x.reshape(*x.shape[:-1], GROUPS, -1)
    return normalised(groups, (1, 2, 4)).reshape(x.shape) * channels + 1 / channels


def channels_first(x):
    groups = x.reshape(x.shape[0], 3, 3, *x.shape[2:])
    return normalised(groups, (2, 3, 4)).reshape(x.shape) * jnp.linspace(1, 2, 9)[:, None, None]


def moments(x):
    """In one pass, and more than one result."""
    groups = x.reshape(-1, GROUPS, 10)
    mean, square = groups.mean((0, 2)), jnp.square(groups).mean((0, 2))
    spread = (groups - mean[:, None]) * lax.rsqrt(square - mean * mean + 0.5)[:, None]
    return jax.nn.gelu(spread).reshape(x.shape), mean, groups.max((0, 2))


def gradient(x):
    return jax.grad(lambda x: jnp.sin(group_norm(x)).sum())(x)


def heads(x):
    """Rows of a head need a table as large as the array."""
    groups = x.reshape(*x.shape[:-1], 2, -1)
    return (groups * lax.rsqrt(jnp.square(groups).mean(-1, keepdims=True) + 1e-6)).reshape(x.shape) * 2


def positions(x):
    """A table for the groups, and one for the elements of each."""
    groups, inside = jnp.arange(GROUPS, dtype=x.dtype), jnp.cos(jnp.arange(10, dtype=x.dtype))
    y = x.reshape(*x.shape[:-1], GROUPS, 10)
    return (jnp.tanh(y * groups[:, None]) + y * inside).reshape(x.shape)


BODIES = {
    "group_norm": group_norm,
    "channels_first": channels_first,
    "moments": moments,
    "gradient": gradient,
    "heads": heads,
    "positions": positions,
}


def repeated(body: Function) -> Function:
    def again(_, x):
        return jax.tree.leaves(body(x))[0].astype(x.dtype)

    return lambda x: lax.fori_loop(0, 3, again, x)


def operand(dtype=np.float32):
    return np.random.default_rng(3).normal(2, 1, SHAPE).astype(dtype)


def ours(function, units=1):
    options = {"force": "cocktail", "scope": "memory_bound", "units": units, "strict": True}
    return jax_cocktail.jit(function, options=options)


def exact(function, x):
    with jax.enable_x64(True):
        return [np.asarray(y) for y in jax.tree.leaves(jax.jit(function)(x.astype(np.float64)))]


@pytest.mark.parametrize("form", ["straight", "loop"])
@pytest.mark.parametrize("body", BODIES)
def test_results_are_as_exact_as_those_of_stock(body, form):
    function = BODIES[body] if form == "straight" else repeated(BODIES[body])
    x = operand()
    expected, stock = exact(function, x), jax.tree.leaves(jax.jit(function)(x))
    for units in (1, 3):
        results = jax.tree.leaves(ours(function, units)(x))
        for result, by_stock, right in zip(results, stock, expected, strict=True):
            allowed = max(2 * np.abs(by_stock - right).max(), 2e-6 * np.abs(right).max())
            assert np.abs(result - right).max() <= allowed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("body", ["moments", "positions", "group_norm"])
def test_types(body, dtype):
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(operand(), dtype)
        pairs = (jax.tree.leaves(f(x)) for f in (ours(BODIES[body], 2), jax.jit(BODIES[body])))
        for result, expected in zip(*pairs, strict=True):
            assert result.dtype == expected.dtype
            eps = float(jnp.finfo(expected.dtype).eps)
            error = np.abs(np.asarray(result, np.float64) - np.asarray(expected, np.float64)).max()
            assert error <= 16 * eps * float(jnp.abs(expected).max())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays_in_its_group(value):
    x = operand()
    x[1, 2, 3, 25] = value
    result, expected = (np.asarray(f(x)) for f in (ours(group_norm, 2), jax.jit(group_norm)))
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    assert np.isnan(result).sum() == 9 * 8 * 10


def test_integers():
    def function(x):
        y = x.reshape(-1, GROUPS, 10)
        return y.sum((0, 2)), y.min((0, 2)), (y // 3 - y.max()).reshape(x.shape)

    x = np.random.default_rng(5).integers(-1000, 1000, SHAPE, np.int32)
    for result, expected in zip(ours(function, 2)(x), jax.jit(function)(x), strict=True):
        np.testing.assert_array_equal(result, expected)


def emitted(function: Function, candidate: Candidate) -> Emitted:
    (program,) = prepare(jax.make_jaxpr(function)(operand()), "test", memory_bound=True).programs
    return emit(program, candidate=candidate)


@pytest.mark.parametrize("body", ["group_norm", "channels_first"])
def test_no_array_lies_between_the_passes(body):
    """Tables alone."""
    for candidate in (SINGLE, way(units=2, distribute=True)):
        found = emitted(BODIES[body], candidate)
        assert "collapse_axes" in found.fired
        assert found.plan.most_units * found.plan.own_bytes < operand().nbytes / 2
        assert found.plan.workspace_bytes < operand().nbytes / 2


def test_blocks_of_threads(monkeypatch):
    emulation = Emulation(launches=[]).install(monkeypatch)
    function, x = repeated(group_norm), operand()
    result = np.asarray(ours(function)(x))
    assert emulation.launches
    np.testing.assert_allclose(result, np.asarray(jax.jit(function)(x)), rtol=2e-5, atol=2e-5)
