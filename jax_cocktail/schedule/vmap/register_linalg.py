"""Factorisations of small matrices, and solutions of triangular systems, written out for the numbers of one
batch element (see `registers`). The threads of a block do the same in `common_src/cocktail_linalg.h`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from jax_cocktail.schedule.vmap.held import Held, Registers
from jax_cocktail.schedule.vmap.registers import Apart, Form
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import TensorType, Value


class _Numbers:
    """Arithmetic on registers of one type."""

    def __init__(self, apart: Apart, dtype: str) -> None:
        self.apart, self.build, self.dtype = apart, apart.build, dtype

    def number(self, number: float) -> Value:
        return self.apart.number(number, self.dtype)

    def minus(self, x: Value, a: Value, b: Value) -> Value:
        """x - a * b."""
        return self.build.binary("sub", x, self.build.binary("mul", a, b))

    def over(self, a: Value, b: Value) -> Value:
        return self.build.binary("div", a, b)

    def of(self, kind: str, x: Value) -> Value:
        return self.build.emit(kind, (x,), TensorType(self.dtype))


Matrices = tuple[Registers, ...]


def _each_matrix(
    apart: Apart, operator: UOperator, make: Callable[[_Numbers, Matrices], Matrices]
) -> tuple[Held, ...]:
    """The results for each matrix of a stack. `make` gets the operands as matrices."""
    operands = [apart.registers(v) for v in operator.inputs]
    found = [apart.empty(v.type.shape) for v in operator.outputs]
    numbers = _Numbers(apart, operator.inputs[0].type.dtype)
    for place in np.ndindex(operands[0].shape[:-2]):
        results = make(numbers, tuple(each[place].copy() for each in operands))
        for whole, result in zip(found, results, strict=True):
            whole[place] = result
    return tuple(found)


def _cholesky(apart: Apart, operator: UOperator) -> tuple[Held, ...]:
    """The lower factor; NaN in all places if a pivot is not positive."""

    def make(do: _Numbers, operands: Matrices) -> Matrices:
        (a,) = operands
        n, failed = len(a), None
        for k in range(n):
            for i in range(k, n):
                for p in range(k):
                    a[i, k] = do.minus(a[i, k], a[i, p], a[k, p])
            bad = do.build.compare("le", a[k, k], do.number(0))
            failed = bad if failed is None else do.build.binary("or", failed, bad)
            a[k, k] = do.of("sqrt", a[k, k])
            for i in range(k + 1, n):
                a[i, k] = do.over(a[i, k], a[k, k])
                a[k, i] = do.number(0)
        for place in np.ndindex(a.shape):
            a[place] = do.build.select(cast(Value, failed), do.number(np.nan), cast(Value, a[place]))
        return (a,)

    return _each_matrix(apart, operator, make)


def _triangular_solve(apart: Apart, operator: UOperator) -> tuple[Held, ...]:
    lower, unit = bool(operator["lower"]), bool(operator["unit_diagonal"])

    def make(do: _Numbers, operands: Matrices) -> Matrices:
        a, x = operands
        n, columns = x.shape
        for p in range(n):
            k = p if lower else n - 1 - p
            for j in range(columns):
                x[k, j] = x[k, j] if unit else do.over(x[k, j], a[k, k])
                for i in range(k + 1, n) if lower else range(k):
                    x[i, j] = do.minus(x[i, j], a[i, k], x[k, j])
        return (x,)

    return _each_matrix(apart, operator, make)


def _lu(apart: Apart, operator: UOperator) -> tuple[Held, ...]:
    """Both factors in one matrix, and the rows that were exchanged; the first of the largest is the pivot."""

    def make(do: _Numbers, operands: Matrices) -> Matrices:
        (x,) = operands
        rows, columns = x.shape
        pivots: Registers = np.empty(min(rows, columns), object)
        for k in range(len(pivots)):
            best, largest = do.apart.number(k, "int32"), do.of("abs", x[k, k])
            for i in range(k + 1, rows):
                size = do.of("abs", x[i, k])
                more = do.build.compare("gt", size, largest)
                best = do.build.select(more, do.apart.number(i, "int32"), best)
                largest = do.build.select(more, size, largest)
            pivots[k] = best
            _exchanged(do, x, k, best)
            zero = do.build.compare("eq", x[k, k], do.number(0))
            for i in range(k + 1, rows):
                x[i, k] = do.build.select(zero, x[i, k], do.over(x[i, k], x[k, k]))
                for j in range(k + 1, columns):
                    x[i, j] = do.build.select(zero, x[i, j], do.minus(x[i, j], x[i, k], x[k, j]))
        return x, pivots

    return _each_matrix(apart, operator, make)


def _exchanged(do: _Numbers, x: Registers, k: int, best: Value) -> None:
    """Exchanges row `k` and the one with number `best`, which is not above it."""
    mine = x[k].copy()
    for i in range(k + 1, len(x)):
        this = do.build.compare("eq", best, do.apart.number(i, "int32"))
        for j in range(x.shape[1]):
            other: Any = x[i, j]
            x[i, j] = do.build.select(this, mine[j], other)
            x[k, j] = do.build.select(this, other, x[k, j])


LINALG: Mapping[str, Form] = {"cholesky": _cholesky, "lu": _lu, "triangular_solve": _triangular_solve}
