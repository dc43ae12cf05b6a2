"""Counted loads and stores: what programs must at least touch, what they touch, and what was predicted."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.traffic.count import count
from jax_cocktail.codegen.traffic import Traffic, traffic
from jax_cocktail.compiler import emit
from jax_cocktail.lowering.edge.capture import capture
from jax_cocktail.primitives import translate
from jax_cocktail.utask.candidate import SINGLE, way

N = 64 << 10  # elements


def counted(function: Callable[..., jax.Array], *arguments: np.ndarray, units: int = 1) -> Traffic:
    closed = jax.make_jaxpr(function)(*arguments)
    (region,) = capture(closed).regions
    values = [arguments[closed.jaxpr.invars.index(operand)] for operand in region.operands]
    program = translate(region.program, "counted", tuple(range(len(region.operands))))
    candidate = SINGLE if units == 1 else way(units=units, distribute=True)
    emitted = emit(program, candidate=candidate)
    found = count(emitted, values, units)
    predicted = traffic(emitted.program, emitted.plan, units)
    for memory in {name for unit in found.units for name in unit if name != "other"}:
        assert predicted.total(memory) == found.total(memory), memory
    (result,) = found.results
    np.testing.assert_allclose(result, jax.jit(function)(*arguments), rtol=1e-5, atol=1e-5)
    return found


def repeated(step: Callable[[jax.Array], jax.Array], trips: int) -> Callable[[jax.Array], jax.Array]:
    return lambda x: jax.lax.fori_loop(0, trips, lambda _, x: step(x), x)


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((N // 256, 256), np.float32)


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("trips", [1, 5])
def test_an_elementwise_body_loads_and_stores_its_state_once(x: np.ndarray, trips: int, units: int) -> None:
    found = counted(repeated(lambda x: jnp.tanh(x) * 0.5 + x, trips), x, units=units)
    moved = found.total("operand", "result", "workspace", "own")
    assert moved.loaded == moved.stored
    around = moved.loaded // x.nbytes - trips  # copies: one unit may write over its operand
    assert moved.loaded % x.nbytes == 0 and around in ((0, 1) if units == 1 else (0, 2))
    shares = [sum(moved.bytes for name, moved in unit.items() if name != "other") for unit in found.units]
    assert len(shares) == units and max(shares) <= 1.05 * moved.bytes / units


def test_a_slice_loads_its_part_alone(x: np.ndarray) -> None:
    def rows(x: jax.Array, ks: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 8, lambda n, total: total + x[ks[n]], jnp.zeros(x.shape[1]))

    found = counted(rows, x, np.arange(8, dtype=np.int32))
    assert 8 * x[0].nbytes <= found.total("operand").loaded <= 9 * x[0].nbytes


def test_what_a_program_does_not_take_is_refused(x: np.ndarray) -> None:
    closed = jax.make_jaxpr(repeated(jnp.tanh, 2))(x)
    (region,) = capture(closed).regions
    with pytest.raises(ValueError, match="the program takes"):
        count(emit(translate(region.program, "counted", (0,))), [x[1:]])


# -- the simulated cache -------------------------------------------------------------------------------------
def far(trips: int, rows: int, cached: int, units: int = 1) -> tuple[float, float]:
    """Bytes that were loaded and stored behind the caches, over those of the array of each trip."""
    x = np.ones((rows, 256), np.float32)
    (region,) = capture(jax.make_jaxpr(repeated(jnp.tanh, trips))(x)).regions
    program = translate(region.program, "counted", (0,))
    candidate = SINGLE if units == 1 else way(units=units, distribute=True)
    found = count(emit(program, candidate=candidate), [x], units, cached=cached)
    moved = found.far.total("operand", "result", "workspace", "own")
    return moved.loaded / x.nbytes, moved.stored / x.nbytes


@pytest.mark.parametrize("units", [1, 2])
def test_a_small_array_moves_once(units: int) -> None:
    loaded, stored = far(5, 64, 256 << 10, units)
    assert 1 <= loaded <= 2 and 1 <= stored <= 2  # two arrays, if one unit may not write over its operand


def test_what_leaves_the_cache_moves_in_every_trip() -> None:
    loaded, stored = far(5, 512, 64 << 10)
    assert 5 <= loaded <= 6 and 5 <= stored <= 6


def test_rows_that_a_cache_keeps_move_once() -> None:
    """Three passes load them; the last one has to wait for the sum of squares."""

    def scaled(x: jax.Array) -> jax.Array:
        y = x - x.mean(-1, keepdims=True)
        return y / (1 + (y * y).mean(-1, keepdims=True))

    x = np.random.default_rng(2).standard_normal((1, 1024, 1000), np.float32)
    (region,) = capture(jax.make_jaxpr(lambda xs: jax.lax.map(scaled, xs))(x)).regions
    found = count(emit(translate(region.program, "counted", (0,))), [x])
    assert found.total("operand").loaded == 3 * x.nbytes
    assert found.far.total("operand").loaded == x.nbytes
    assert found.far.total("result").stored == x.nbytes
    assert count(emit(translate(region.program, "counted", (0,))), [x], cached=0).far.total().bytes == 0
