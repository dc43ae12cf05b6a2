"""Factorisations and triangular systems: the interpreter against NumPy, and which programs are refused."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.axes import rule
from jax_cocktail.cost.work import work
from jax_cocktail.errors import VerificationError
from tests.null.operators import sample
from tests.null.programs import apply, apply_many

RANDOM = np.random.default_rng(0)


def positive(*shape):
    x = RANDOM.normal(size=shape)
    return (x @ x.swapaxes(-1, -2) + np.eye(shape[-1])).astype(np.float32)


def test_cholesky():
    a = positive(3, 5, 5)
    upper = np.triu(np.full((5, 5), np.nan, np.float32), 1)  # which nobody reads
    found = apply("cholesky", [np.tril(a) + upper], "float32[3,5,5]")
    np.testing.assert_allclose(found, np.linalg.cholesky(a), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pivot", [0, -1])
def test_a_pivot_that_is_not_positive(pivot):
    a = np.stack([np.eye(3), np.diag([1, pivot, 1])]).astype(np.float32)
    found = apply("cholesky", [a], "float32[2,3,3]")
    np.testing.assert_array_equal(found, np.stack([np.eye(3), np.full((3, 3), np.nan)]))


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (6, 3), (3, 6)])
def test_lu(rows, columns):
    a, size = RANDOM.normal(size=(rows, columns)), min(rows, columns)
    factors, pivots = apply_many("lu", [a], [f"float64[{rows},{columns}]", f"int32[{size}]"])
    lower = np.tril(factors[:, :size], -1) + np.eye(rows, size)
    assert np.abs(lower).max() <= 1
    exchanged = a.copy()
    for k, pivot in enumerate(pivots):
        exchanged[[k, pivot]] = exchanged[[pivot, k]]
    np.testing.assert_allclose(lower @ np.triu(factors[:size]), exchanged, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (6, 3), (3, 6)])
def test_qr(rows, columns):
    a, size = RANDOM.normal(size=(rows, columns)), min(rows, columns)
    factors, taus = apply_many("geqrf", [a], [f"float64[{rows},{columns}]", f"float64[{size}]"])
    q = apply("householder_product", [factors[:, :size], taus], f"float64[{rows},{size}]")
    np.testing.assert_allclose(q.T @ q, np.eye(size), atol=1e-14)
    np.testing.assert_allclose(q @ np.triu(factors[:size]), a, atol=1e-14)
    np.testing.assert_allclose(q, np.linalg.qr(a)[0], atol=1e-14)  # the signs are LAPACK's


@pytest.mark.parametrize("lower", [True, False])
def test_eigh(lower):
    a = RANDOM.normal(size=(2, 5, 5))
    types = ["float64[2,5,5]", "float64[2,5]"]
    vectors, values = apply_many("eigh", [np.tril(a) if lower else np.triu(a)], types, lower=lower)
    half = np.tril(a) if lower else np.triu(a)
    whole = half + half.swapaxes(1, 2) - half * np.eye(5)
    np.testing.assert_allclose(whole @ vectors, vectors * values[:, None], atol=1e-13)
    np.testing.assert_allclose(
        vectors.swapaxes(1, 2) @ vectors, np.broadcast_to(np.eye(5), a.shape), atol=1e-13
    )
    assert (np.diff(values) > 0).all()


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (6, 3), (3, 6)])
@pytest.mark.parametrize("full", [True, False])
def test_svd(rows, columns, full):
    a, size = RANDOM.normal(size=(rows, columns)), min(rows, columns)
    left, right = (rows, columns) if full else (size, size)
    types = [f"float64[{size}]", f"float64[{rows},{left}]", f"float64[{right},{columns}]"]
    s, u, vt = apply_many("svd", [a], types)
    np.testing.assert_allclose(u[:, :size] * s @ vt[:size], a, atol=1e-14)
    for rotation in (u.T @ u, vt @ vt.T):
        np.testing.assert_allclose(rotation, np.eye(len(rotation)), atol=1e-14)
    np.testing.assert_allclose(apply("singular_values", [a], types[0]), s, atol=1e-14)


def test_lapack_may_fail_for_one_matrix():
    a = np.stack([np.eye(3), np.full((3, 3), np.nan)])
    s, u, vt = apply_many("svd", [a], ["float64[2,3]", "float64[2,3,3]", "float64[2,3,3]"])
    for x in (s, u, vt):
        assert np.isfinite(x[0]).all() and np.isnan(x[1]).all()


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_triangular_solve(lower, unit):
    a, b = positive(2, 4, 4), RANDOM.normal(size=(2, 4, 3)).astype(np.float32)
    found = apply("triangular_solve", [a, b], "float32[2,4,3]", lower=lower, unit_diagonal=unit)
    triangle = np.tril(a) if lower else np.triu(a)
    if unit:
        triangle[:, range(4), range(4)] = 1
    np.testing.assert_allclose(triangle @ found, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "operands", "results", "message"),
    [
        ("cholesky", "float32[3,4]", "float32[3,4]", "is not square"),
        ("cholesky", "float32[4]", "float32[4]", "is no matrix"),
        ("cholesky", "bfloat16[4,4]", "bfloat16[4,4]", "does not take bfloat16"),
        ("lu", "float32[3,4]", "float32[3,4] int32[4]", "expected int32"),
        ("triangular_solve", "float32[4,4] float32[3,2]", "float32[3,2]", "the right-hand side"),
        ("eigh", "float32[3,4]", "float32[3,4] float32[3]", "is not square"),
        ("svd", "float32[4,3]", "float32[3] float32[4,4] float32[2,3]", "expected float32.3,3."),
    ],
)
def test_what_type_rules_refuse(kind, operands, results, message):
    flags = {"lower": True, "unit_diagonal": False} if kind == "triangular_solve" else {}
    flags = {"lower": True} if kind == "eigh" else flags
    with pytest.raises(VerificationError, match=message):
        sample(kind, operands, results, **flags).program()


def test_batches_and_right_hand_sides_are_independent():
    flags = {"lower": True, "unit_diagonal": False}
    solve = sample("triangular_solve", "float32[2,4,4] float32[2,4,3]", "float32[2,4,3]", **flags)
    assert [tie.inputs for tie in rule(solve.operator()).ties] == [(0, 0), (None, 2)]
    lu = sample("lu", "float32[2,4,3]", "float32[2,4,3] int32[2,3]")
    assert [tie.inputs for tie in rule(lu.operator()).ties] == [(0,)]


def test_work_is_cubic():
    small, large = (sample("cholesky", f"float32[{n},{n}]", f"float32[{n},{n}]").operator() for n in (8, 16))
    assert work(large).flops == 8 * work(small).flops
