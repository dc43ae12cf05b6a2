"""Long reductions against stock XLA and float64, on cores and in the emulation of a GPU."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cocktail
from jax_cocktail.compiler import emit
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.utask.candidate import way
from tests.cpu.emulated import Emulation

ROWS, COLUMNS = 1100, 48


# Without sums of products: a product and a sum are rounded once or twice, as they are fused or not.
def whole(x):
    y = x - x.mean()
    return y / (1 + jnp.abs(y).mean())


def columns(x):
    y = x - x.mean(0)
    return y / (1 + jnp.abs(y).mean(0)) + x.max(0)


def rows(x):
    return x.reshape(4, -1) - jax.nn.logsumexp(x.reshape(4, -1), axis=1, keepdims=True)


def middle(x):
    y = x.reshape(2, -1, COLUMNS // 2)
    return (y - y.min(1, keepdims=True)) / (1 + y.max(1, keepdims=True)) - y.mean(1, keepdims=True)


BODIES = {"whole": whole, "columns": columns, "rows": rows, "middle": middle}


def repeated(body):
    return lambda x: jax.lax.fori_loop(0, 3, lambda _, x: body(x).reshape(x.shape).astype(x.dtype), x)


def operand(rows=ROWS, dtype=np.float32):
    return np.random.default_rng(3).standard_normal((rows, COLUMNS), np.float32).astype(dtype)


def ours(function, units=1):
    return jax_cocktail.jit(function, options={"force": "cocktail", "units": units, "strict": True})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [ROWS, 1031])  # 1031 is a prime
@pytest.mark.parametrize("body", BODIES)
def test_the_bits_are_the_same_for_any_number_of_units(body, size):
    function, x = repeated(BODIES[body]), operand(size)
    results = [np.asarray(ours(function, units)(x)) for units in (1, 2, 3, 64)]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    exact = x.astype(np.float64)
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(function)(exact))
    stock = np.abs(np.asarray(jax.jit(function)(x)) - exact).max()
    assert np.abs(results[0] - exact).max() <= max(2 * stock, 1e-6)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("body", BODIES)
def test_what_is_no_number_goes_where_stock_lets_it_go(body, value):
    function, x = BODIES[body], operand()
    x[700, 5] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result, expected = (
            np.asarray(f(x)) for f in (ours(repeated(function), 2), jax.jit(repeated(function)))
        )
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


REDUCTIONS = {
    "float16": jnp.sum,
    "bfloat16": jnp.max,
    "float64": jnp.prod,
    "int8": jnp.sum,
    "int32": jnp.min,
    "uint16": jnp.max,
    "bool": jnp.any,
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("axis", [None, 0], ids=["all", "columns"])
@pytest.mark.parametrize("dtype", REDUCTIONS)
def test_types(dtype, axis):
    random = np.random.default_rng(1)
    x = (1 + random.random((2880, 64)) / 5000) if dtype == "float64" else random.random((2880, 64)) * 100

    def function(x):
        total = REDUCTIONS[dtype](x, axis=axis).astype(x.dtype)
        return jax.lax.fori_loop(0, 2, lambda _, t: jnp.where(t > 0, t, -t) if dtype != "bool" else ~t, total)

    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(x > 99.9 if dtype == "bool" else x, dtype)
        result, expected = (np.asarray(f(x), np.float64) for f in (ours(function, 2), jax.jit(function)))
    np.testing.assert_allclose(result, expected, rtol=4e-3 if dtype == "float16" else 1e-12)


@pytest.mark.parametrize("body", BODIES)
def test_blocks_of_threads_add_parts(body, monkeypatch):
    emulation = Emulation(launches=[]).install(monkeypatch)
    function, x = repeated(BODIES[body]), operand()
    result = np.asarray(ours(function)(x))
    assert emulation.launches
    np.testing.assert_allclose(result, np.asarray(jax.jit(function)(x)), rtol=2e-5, atol=2e-5)


# -- rows or short pieces of them ----------------------------------------------------------------------------
def normalised(x):
    mean = x.mean(0)
    return (x - mean) / (1 + jnp.abs(x).mean(0)), mean


def gradients(x):
    return jax.vjp(normalised, x)[1]((jnp.sin(x), x[0]))[0]


def shares(x):
    e = jnp.exp(x)
    return e / e.sum(0)


def barriers(function, x):
    """Those of the program for two units."""
    (program,) = prepare(jax.make_jaxpr(function)(x), "test", memory_bound=True).programs
    return emit(program, candidate=way(units=2, distribute=True)).source.count("ck_wait(unit)")


def test_units_share_rows_of_what_leaves_the_cache():
    """Columns need no barrier, but a part of 32 columns would be a short piece of each row."""
    large, small, wide = (np.ones(shape, np.float32) for shape in ((16384, 64), (512, 64), (1024, 1024)))
    assert barriers(normalised, large) > 0
    assert barriers(normalised, small) == 0
    assert barriers(normalised, wide) == 0
    assert barriers(shares, large) == 0, "the exponentials would be stored between the barriers"


@pytest.mark.parametrize("function", [normalised, gradients, shares])
def test_shared_rows_give_the_bits_of_one_unit(function):
    x = np.random.default_rng(6).standard_normal((16384, 64), np.float32)
    options = {"force": "cocktail", "scope": "memory_bound", "strict": True, "reproducible": True}
    found = [
        jax.tree.leaves(jax_cocktail.jit(function, options={**options, "units": n})(x)) for n in (1, 2, 3)
    ]
    with jax.enable_x64(True):
        exact = jax.tree.leaves(jax.jit(function)(x.astype(np.float64)))
    stock = jax.tree.leaves(jax.jit(function)(x))
    for one, two, three, theirs, wanted in zip(*found, stock, exact, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)
        unit = 2 * np.finfo(np.float32).eps * np.abs(wanted).max()
        assert np.abs(one - wanted).max() <= 2 * np.abs(theirs - wanted).max() + unit


# -- rows and columns of one array ---------------------------------------------------------------------------
def gradients_of_rows(x, y):
    """With the sums that are the gradients of a scale and a shift."""
    z = x / (1 + jnp.abs(x).max(-1, keepdims=True))
    return y - y.mean(-1, keepdims=True) * z, (y * z).sum(0), y.sum(0)


def several_of_rows(x, y):
    return x - x.max(-1, keepdims=True), x.sum(-1), jnp.abs(y).sum(-1)


def parallel_loops(function, *given):
    (program,) = prepare(jax.make_jaxpr(function)(*given), "test", memory_bound=True).programs
    source = emit(program, candidate=way(units=2, distribute=True)).source
    return source.count("= unit->index;")


def test_an_array_is_read_in_one_loop_for_rows_and_columns():
    large = np.ones((8192, 192), np.float32)
    assert parallel_loops(gradients_of_rows, large, large) == 2, "with the loop that adds the parts of sums"
    assert parallel_loops(lambda x: several_of_rows(x, x), large) == 1
    assert parallel_loops(several_of_rows, large, large) == 2, "of two arrays"


@pytest.mark.parametrize("rows", [8192, 8195])  # parts of the second leave a remainder
@pytest.mark.parametrize("function", [gradients_of_rows, several_of_rows])
def test_shared_reads_give_the_bits_of_one_unit(function, rows):
    random = np.random.default_rng(8)
    given = [random.standard_normal((rows, 192), np.float32) for _ in range(2)]
    given[0][9, 1], given[1][5, 7] = np.inf, np.nan
    options = {"force": "cocktail", "scope": "memory_bound", "strict": True, "reproducible": True}
    found = [
        jax.tree.leaves(jax_cocktail.jit(function, options={**options, "units": n})(*given))
        for n in (1, 2, 3)
    ]
    for one, two, three, theirs in zip(*found, jax.tree.leaves(jax.jit(function)(*given)), strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)
        np.testing.assert_allclose(one, theirs, rtol=1e-5, atol=2e-4)
