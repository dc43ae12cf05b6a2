"""Cases of dense linear algebra."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import linalg

from tests.case import Maker, Table, array

_TOLERANCE = {"float32": 1e-4, "float64": 1e-12}
_FLAGS = ("left_side", "lower", "transpose_a", "unit_diagonal")


def add_linalg(table: Table) -> None:
    for dtype, tolerance in _TOLERANCE.items():
        add = partial(table.add, "linalg", dtype=dtype, tolerance=tolerance)
        for shape in ((1, 1), (2, 3, 3), (9, 9), (2, 37, 37)):
            add(f"cholesky_{shape}", jnp.linalg.cholesky, _positive(dtype, shape))
        add("cholesky_pivots", linalg.cholesky, lambda _, dtype=dtype: _bad(dtype))
        for shape in ((5, 5), (2, 7, 3), (3, 7), (2, 1, 4), (4, 1)):
            add(f"lu_{shape}", linalg.lu, array(dtype, shape))
        for shape in ((5, 5), (2, 7, 3), (3, 7), (1, 4), (2, 4, 1)):
            add(f"qr_{shape}", _qr, array(dtype, shape))
        add("qr_singular", _reflectors, lambda _, dtype=dtype: _singular(dtype))
        add("lu_singular", linalg.lu, lambda _, dtype=dtype: _singular(dtype))
        for columns in (1, 6):
            operands = _positive(dtype, (2, 5, 5)), array(dtype, (2, 5, columns))
            add(f"triangular_solve_{columns}", _triangular, *operands)
        for shape in ((1, 2), (9, 3), (2, 6, 1)):
            *diagonals, b = (array(dtype, size) for size in (*[shape[:-1]] * 3, shape))
            add(f"tridiagonal_solve_{shape}", linalg.tridiagonal_solve, *diagonals, b)
        add("solve", jnp.linalg.solve, _positive(dtype, (6, 6)), array(dtype, (6,)))


def _positive(dtype: str, shape: tuple[int, ...]) -> Maker:
    """Well-conditioned matrices that are positive definite."""

    def make(generator: np.random.Generator) -> np.ndarray:
        x = generator.normal(size=shape)
        return (x @ x.swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1])).astype(dtype)

    return make


def _bad(dtype: str) -> np.ndarray:
    """Matrices with pivots that are negative, zero, infinite and NaN."""
    a = np.tile(np.eye(4), (5, 1, 1)) * 2 + 0.5
    a[:4, 2, 2] = [-1, 0, np.inf, np.nan]
    a[4, 3, 1] = np.nan
    return a.astype(dtype)


def _singular(dtype: str) -> np.ndarray:
    """Columns of norm 5, 10 and 15: what a reflection leaves of them is exactly zero, however it rounds.
    A reflector of a remainder that is not zero would be a matter of chance."""
    rows = [[3.0, 6.0, 9.0], [4.0, 8.0, 12.0], [0.0, 0.0, 0.0]]
    return np.stack([rows, np.zeros((3, 3)), np.outer([3.0, 4.0, 0.0], np.ones(3))]).astype(dtype)


def _qr(a: Any) -> list[Any]:
    return [jnp.linalg.qr(a, mode=mode) for mode in ("reduced", "complete", "raw", "r")]


def _reflectors(a: Any) -> Any:
    return jnp.linalg.qr(a, mode="raw")


def _triangular(a: Any, b: Any) -> list[Any]:
    """Every form of a triangular system."""
    forms = [dict(zip(_FLAGS, flags, strict=True)) for flags in itertools.product([True, False], repeat=4)]
    return [
        linalg.triangular_solve(a, b if f["left_side"] else lax.transpose(b, (0, 2, 1)), **f) for f in forms
    ]
