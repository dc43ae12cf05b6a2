"""Factorisations of matrices and triangular systems in NumPy, in float64, one row after the other. LAPACK's
are NumPy's, in the type of the operand: the signs of vectors depend on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from jax_cocktail.utask.arrays import Array
from jax_cocktail.utask.ir import UOperator
from tests.oracle.interpreter.common import Evaluate, doubled, rounded


def _each(function: Callable[..., tuple[Array, ...]]) -> Evaluate:
    """Applies a function of an operator and float64 matrices to the matrices of a batch."""

    def apply(operator: UOperator, operands: Sequence[Array]) -> tuple[Array, ...]:
        results = tuple(np.empty(v.type.shape, v.type.dtype) for v in operator.outputs)
        with np.errstate(all="ignore"):
            for at in np.ndindex(*operands[0].shape[:-2]):
                found = function(operator, *(doubled(x[at]) for x in operands))
                for whole, part in zip(results, found, strict=True):
                    whole[at] = rounded(part, whole.dtype)
        return results

    return apply


def _cholesky(_: UOperator, a: Array) -> tuple[Array]:
    factor = np.tril(a)
    for k in range(len(a)):
        factor[k:, k] -= factor[k:, :k] @ factor[k, :k]
        if factor[k, k] <= 0:
            return (np.full_like(a, np.nan),)
        factor[k:, k] /= np.sqrt(factor[k, k])
    return (factor,)


def _lu(_: UOperator, a: Array) -> tuple[Array, Array]:
    """Partial pivoting; the first of several largest elements is the pivot."""
    factors = a.copy()
    pivots = np.zeros(min(a.shape), np.int32)
    for k in range(len(pivots)):
        best = k
        for row in range(k + 1, len(a)):
            best = row if abs(factors[row, k]) > abs(factors[best, k]) else best
        pivots[k] = best
        factors[[k, best]] = factors[[best, k]]
        if factors[k, k] != 0:
            factors[k + 1 :, k] /= factors[k, k]
            factors[k + 1 :, k + 1 :] -= np.outer(factors[k + 1 :, k], factors[k, k + 1 :])
    return factors, pivots


def _geqrf(_: UOperator, a: Array) -> tuple[Array, Array]:
    """Householder reflections, with LAPACK's signs."""
    factors, taus = a.copy(), np.zeros(min(a.shape))
    for k in range(len(taus)):
        first, below = factors[k, k], factors[k + 1 :, k].copy()
        if not below.any():
            continue
        end = -np.copysign(np.linalg.norm(factors[k:, k]), first)
        taus[k] = (end - first) / end
        vector = np.concatenate([[1], below / (first - end)])
        factors[k:, k + 1 :] -= taus[k] * np.outer(vector, vector @ factors[k:, k + 1 :])
        factors[k, k], factors[k + 1 :, k] = end, vector[1:]
    return factors, taus


def _householder_product(_: UOperator, a: Array, taus: Array) -> tuple[Array]:
    product = np.eye(*a.shape)
    for k in reversed(range(len(taus))):
        vector = np.concatenate([[1], a[k + 1 :, k]])
        product[k:] -= taus[k] * np.outer(vector, vector @ product[k:])
    return (product,)


def _triangular_solve(operator: UOperator, a: Array, b: Array) -> tuple[Array]:
    solution, order = b.copy(), range(len(a))
    for k in order if operator["lower"] else reversed(order):
        rest = slice(k + 1, None) if operator["lower"] else slice(k)
        solution[k] /= 1 if operator["unit_diagonal"] else a[k, k]
        solution[rest] -= np.outer(a[rest, k], solution[k])
    return (solution,)


def _by_lapack(function: Callable[[UOperator, Array], Sequence[Array]]) -> Evaluate:
    """Applies a function to a batch of matrices. Results are NaN for a matrix for which LAPACK fails."""

    def apply(operator: UOperator, operands: Sequence[Array]) -> tuple[Array, ...]:
        results = tuple(np.full(v.type.shape, np.nan, v.type.dtype) for v in operator.outputs)
        for at in np.ndindex(*operands[0].shape[:-2]):
            with suppress(np.linalg.LinAlgError):
                for whole, part in zip(results, function(operator, operands[0][at]), strict=True):
                    whole[at] = part
        return results

    return apply


def _eigh(operator: UOperator, a: Array) -> Sequence[Array]:
    values, vectors = np.linalg.eigh(a, "L" if operator["lower"] else "U")
    return vectors, values


def _svd(operator: UOperator, a: Array) -> Sequence[Array]:
    full = operator.outputs[1].type.shape[-1] + operator.outputs[2].type.shape[-2] > 2 * min(a.shape)
    left, values, right = np.linalg.svd(a, full_matrices=full)
    return values, left, right


LINALG: dict[str, Evaluate] = {
    "cholesky": _each(_cholesky),
    "eigh": _by_lapack(_eigh),
    "geqrf": _each(_geqrf),
    "householder_product": _each(_householder_product),
    "lu": _each(_lu),
    "singular_values": _by_lapack(lambda _, a: [np.linalg.svd(a, compute_uv=False)]),
    "svd": _by_lapack(_svd),
    "triangular_solve": _each(_triangular_solve),
}
