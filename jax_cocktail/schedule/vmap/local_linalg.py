"""Factorisations of small matrices and solutions of triangular systems: loops over arrays in a thread's own
memory; see `local_arrays`. Each number is computed as `register_linalg` does it, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np

from jax_cocktail.schedule.vmap.held import Held, Local, Start
from jax_cocktail.schedule.vmap.local_arrays import (
    COUNT,
    between,
    copied,
    counted,
    new_array,
    read,
    renewed,
    writable,
    write,
)
from jax_cocktail.schedule.vmap.registers import Apart, Form
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import TensorType, Value

_Row = Callable[[Value], None]
_Step = Callable[[Value, list[Value]], Sequence[Value]]
_Place = tuple[Start, Start]


@dataclass(frozen=True, slots=True)
class _Loops:
    """Loops over rows and columns of up to `n`, which write the arrays with some numbers."""

    apart: Apart
    n: int
    written: tuple[int, ...]

    def after(self, at: Value) -> Value:
        """The next position."""
        return self.apart.build.binary("add", at, self.apart.number(1, COUNT))

    def get(self, matrix: Held, *place: Start) -> Value:
        return read(self.apart, matrix, place)

    def put(self, matrix: Local, value: Value, *place: Start) -> None:
        write(self.apart, matrix, place, value)

    def minus(self, x: Value, a: Value, b: Value) -> Value:
        """x - a * b."""
        return self.apart.build.binary("sub", x, self.apart.build.binary("mul", a, b))

    def subtract(self, x: Local, place: _Place, a: Value, b: Value) -> None:
        """x[place] -= a * b."""
        self.put(x, self.minus(self.get(x, *place), a, b), *place)

    def each(self, start: Start, stop: Start, body: _Row) -> None:
        """Runs statements for each position from `start` to in front of `stop`."""

        def step(at: Value, _: list[Value]) -> Sequence[Value]:
            body(at)
            return ()

        self.fold(start, stop, (), step)

    def fold(self, start: Start, stop: Start, numbers: Sequence[Value], step: _Step) -> list[Value]:
        """Runs such statements with numbers that each step gets and gives."""
        if start == 0 and isinstance(stop, int):
            return counted(self.apart, stop, self.written, numbers, step)
        return between(self.apart, start, stop, self.written, numbers, step, max(self.n // 2, 1))


def _matrices(held: Local) -> Iterator[Local]:
    """The matrices of a stack."""
    for place in np.ndindex(held.shape[:-2]):
        offset = cast(int, held.offset) + sum(k * n for k, n in zip(place, held.strides, strict=False))
        yield replace(held, offset=offset, strides=held.strides[-2:], shape=held.shape[-2:])


def _cholesky(apart: Apart, operator: UOperator) -> Held:
    """The lower factor; NaN in all places if a pivot is not positive."""
    whole, build = writable(apart, operator.inputs[0]), apart.build
    dtype = operator.output.type.dtype
    n = whole.shape[-1]
    do = _Loops(apart, n, (whole.number,))

    def factor(a: Local) -> None:
        def column(k: Value, now: list[Value]) -> Sequence[Value]:
            def below(i: Value) -> None:
                def term(p: Value, now: list[Value]) -> Sequence[Value]:
                    return (do.minus(now[0], do.get(a, i, p), do.get(a, k, p)),)

                do.put(a, do.fold(0, k, (do.get(a, i, k),), term)[0], i, k)

            do.each(k, n, below)
            pivot = do.get(a, k, k)
            bad = apart.build.compare("le", pivot, apart.number(0, dtype))
            root = apart.build.emit("sqrt", (pivot,), TensorType(dtype))
            do.put(a, root, k, k)

            def scale(i: Value) -> None:
                do.put(a, apart.build.binary("div", do.get(a, i, k), root), i, k)
                do.put(a, apart.number(0, dtype), k, i)

            do.each(do.after(k), n, scale)
            return (apart.build.binary("or", now[0], bad),)

        (failed,) = do.fold(0, n, (apart.number(False, "bool"),), column)
        rows = build.select(failed, apart.number(n, COUNT), apart.number(0, COUNT))
        do.each(0, rows, lambda i: do.each(0, n, lambda j: do.put(a, apart.number(np.nan, dtype), i, j)))

    for each in _matrices(whole):
        factor(each)
    return renewed(apart, whole)


def _triangular_solve(apart: Apart, operator: UOperator) -> Held:
    lower, unit = bool(operator["lower"]), bool(operator["unit_diagonal"])
    left, right = operator.inputs
    held = apart.of(left)
    stack = held if isinstance(held, Local) and isinstance(held.offset, int) else copied(apart, held)
    whole = writable(apart, right, [left])
    n, columns = whole.shape[-2:]
    do = _Loops(apart, n, (whole.number,))

    def solve(a: Held, x: Local) -> None:
        def row(p: Value) -> None:
            last = apart.number(n - 1, COUNT)
            k = p if lower else apart.build.binary("sub", last, p)
            begin, end = (do.after(k), n) if lower else (0, k)

            def column(j: Start) -> None:
                found = do.get(x, k, j)
                if not unit:
                    found = apart.build.binary("div", found, do.get(a, k, k))
                    do.put(x, found, k, j)
                do.each(begin, end, lambda i: do.subtract(x, (i, j), do.get(a, i, k), found))

            if columns == 1:
                column(0)
            else:
                do.each(0, columns, column)

        do.each(0, n, row)

    for a, x in zip(_matrices(stack), _matrices(whole), strict=True):
        solve(a, x)
    return renewed(apart, whole)


def _lu(apart: Apart, operator: UOperator) -> tuple[Held, ...]:
    """Both factors in one matrix, and the rows that were exchanged; the first of the largest is the pivot."""
    whole, exchanged = writable(apart, operator.inputs[0]), operator.outputs[1].type
    pivots = new_array(apart, exchanged.dtype, exchanged.shape)
    rows, columns = whole.shape[-2:]
    do = _Loops(apart, rows, (whole.number, pivots.number))
    for matrix, place in zip(_matrices(whole), np.ndindex(exchanged.shape[:-1]), strict=True):
        offset = sum(k * n for k, n in zip(place, pivots.strides, strict=False))
        own = replace(pivots, offset=offset, strides=(1,), shape=exchanged.shape[-1:])
        step = partial(_step_of_lu, do, matrix, own, rows, columns)
        do.each(0, exchanged.shape[-1], step)
    return renewed(apart, whole), renewed(apart, pivots)


def _step_of_lu(do: _Loops, x: Local, pivots: Local, rows: int, columns: int, k: Value) -> None:
    apart, below = do.apart, do.after(k)
    dtype = do.get(x, k, k).type.dtype

    def size(i: Start) -> Value:
        return apart.build.emit("abs", (do.get(x, i, k),), TensorType(dtype))

    def compare(i: Value, now: list[Value]) -> Sequence[Value]:
        own = size(i)
        more = apart.build.compare("gt", own, now[1])
        return apart.build.select(more, i, now[0]), apart.build.select(more, own, now[1])

    best, _ = do.fold(below, rows, (k, size(k)), compare)
    do.put(pivots, best, k)

    def exchange(j: Value) -> None:
        mine, other = do.get(x, k, j), do.get(x, best, j)
        do.put(x, other, k, j)
        do.put(x, mine, best, j)

    do.each(0, columns, exchange)
    pivot = do.get(x, k, k)
    zero = apart.build.compare("eq", pivot, apart.number(0, dtype))

    def eliminate(i: Value) -> None:
        factor = apart.build.binary("div", do.get(x, i, k), pivot)
        do.put(x, factor, i, k)
        do.each(below, columns, lambda j: do.subtract(x, (i, j), factor, do.get(x, k, j)))

    do.each(below, apart.build.select(zero, apart.number(0, COUNT), apart.number(rows, COUNT)), eliminate)


LINALG_LOOPS: Mapping[str, Form] = {"cholesky": _cholesky, "lu": _lu, "triangular_solve": _triangular_solve}
