"""Products that a loop repeats with a packed matrix: results against stock XLA and NumPy, for all units."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.device.tuning import FACTORS

STEPS, HIDDEN = FACTORS.reads + 3, 128


def cell(x, h, w, u, b):
    """Gates whose columns are apart, as in recurrent networks, and the product itself."""
    both = x @ w + h @ u + b
    i, f = jnp.split(both, 2, axis=-1)
    h = jax.nn.sigmoid(f) * h + jax.nn.sigmoid(i) * jnp.tanh(f)
    return h, both.sum()


def recurrent(xs, h, w, u, b):
    return lax.scan(lambda h, x: cell(x, h, w, u, b), h, xs)


def operands(rows, dtype, hidden=HIDDEN):
    r = np.random.default_rng(rows)
    shapes = (STEPS, rows, hidden), (rows, hidden), (hidden, 2 * hidden), (hidden, 2 * hidden), (2 * hidden,)
    return [jnp.asarray(r.standard_normal(s) * (0.5 if len(s) < 3 else 1) / 8, dtype) for s in shapes]


def reference(xs, h, w, u, b):
    xs, h, w, u, b = (np.asarray(a, np.float64) for a in (xs, h, w, u, b))
    sums = []
    for x in xs:
        both = x @ w + h @ u + b
        i, f = np.split(both, 2, axis=-1)
        h = h / (1 + np.exp(-f)) + np.tanh(f) / (1 + np.exp(-i))
        sums.append(both.sum())
    return h, np.array(sums)


def ours(function, units=2):
    return jax_cocktail.jit(function, options={"force": "cocktail", "units": units})


@pytest.mark.parametrize("rows", [12, 13, 33, 64, 101])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_recurrent_cells(rows, dtype):
    with jax.enable_x64(dtype == "float64"):
        given = operands(rows, dtype)
        found, stock = ours(recurrent, 1)(*given), jax.jit(recurrent)(*given)
        for a, b, exact in zip(found, stock, reference(*given), strict=True):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            error, theirs = np.abs(a - exact).max(), np.abs(b - exact).max()
            floor = {"float32": 1e-5, "float64": 1e-13, "bfloat16": 0.05}[dtype] * max(1, np.abs(exact).max())
            assert error <= max(2 * theirs, floor)


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize(("rows", "hidden"), [(1, 129), (2, 100), (5, 150), (9, 131)])
def test_few_rows_and_odd_columns(rows, hidden, units):
    given = operands(rows, "float32", hidden)
    found, stock = ours(recurrent, units)(*given), jax.jit(recurrent)(*given)
    for a, b, exact in zip(found, stock, reference(*given), strict=True):
        error, theirs = (np.abs(np.asarray(x, np.float64) - exact).max() for x in (a, b))
        assert error <= max(2 * theirs, 1e-5 * max(1, np.abs(exact).max()))


@pytest.mark.parametrize("rows", [26, 64])
def test_bits_do_not_depend_on_units(rows):
    def states(xs, h, w, u, b):
        return lax.scan(lambda h, x: (cell(x, h, w, u, b)[0], None), h, xs)[0]

    given = operands(rows, "float32")
    first, second = (ours(states, units)(*given) for units in (1, 2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, reference(*given)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_spoils_only_what_reads_it(bad):
    xs, h, w, u, b = operands(32, "float32")
    u = u.at[5, 70].set(bad)
    found, stock = ours(recurrent)(xs, h, w, u, b), jax.jit(recurrent)(xs, h, w, u, b)
    for a, e in zip(found, stock, strict=True):
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(e))
        np.testing.assert_allclose(a, e, rtol=2e-3, atol=2e-4)


def test_the_matrix_is_a_result_too():
    """And a batch of rows on two axes."""

    def function(x, w):
        def step(y, _):
            return jnp.tanh(y @ w)[..., :HIDDEN], None

        return lax.scan(step, x, None, length=STEPS)[0], w

    r = np.random.default_rng(0)
    x = jnp.asarray(r.standard_normal((3, 20, HIDDEN)), jnp.float32)
    w = jnp.asarray(r.standard_normal((HIDDEN, 2 * HIDDEN)) / 16, jnp.float32)
    found, stock = ours(function)(x, w), jax.jit(function)(x, w)
    np.testing.assert_allclose(found[0], stock[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[1], w)


def test_gradients():
    given = operands(32, "float32")

    def loss(*arguments):
        return (recurrent(*arguments)[0] ** 2).sum()

    found, stock = ours(jax.grad(loss, (1, 3)))(*given), jax.jit(jax.grad(loss, (1, 3)))(*given)
    for a, b in zip(found, stock, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def test_integers_are_not_packed():
    r = np.random.default_rng(0)
    x, w = (jnp.asarray(r.integers(-9, 9, s), jnp.int32) for s in ((16, HIDDEN), (HIDDEN, 2 * HIDDEN)))

    def function(x, w):
        return lax.scan(lambda y, _: ((y @ w)[:, :HIDDEN] % 17, None), x, None, length=STEPS)[0]

    np.testing.assert_array_equal(ours(function)(x, w), jax.jit(function)(x, w))


@pytest.mark.filterwarnings("error")  # it compiles
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "bfloat16"])
def test_a_matrix_that_lies_in_panels_already(dtype):
    width = FACTORS.panel_bytes // jnp.dtype(dtype).itemsize
    r = np.random.default_rng(1)
    x, w = (jnp.asarray(r.integers(-3, 4, s), dtype) for s in ((5, 9), (4, 9, width)))

    def function(x, w):
        def step(total, _):
            return total + jnp.einsum("mk,bkn->mbn", x + total[:, 0, :9], w), None

        return lax.scan(step, jnp.zeros((5, 4, width), dtype), None, length=2)[0]

    np.testing.assert_array_equal(ours(function, 1)(x, w), jax.jit(function)(x, w))
