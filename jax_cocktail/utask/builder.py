"""Builds statements: operators with fresh results, sorted attributes and one source position."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from jax_cocktail.utask.ir import Attribute, Region, Statement, UOperator
from jax_cocktail.utask.sizes import integer, sized
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import NOWHERE, Source, TensorType, Value

INDEX = TensorType("int64")


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspends the cyclic garbage collector: capture and passes make many values, which hardly ever form
    cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Builder:
    """Appends operators to `out`. `source` is the position of all operators made from now on. Without
    `fresh`, it builds a program of its own."""

    def __init__(
        self,
        fresh: FreshValues | None = None,
        source: Source = NOWHERE,
        out: list[Statement] | None = None,
    ) -> None:
        self.fresh, self.source = fresh or FreshValues(), source
        self.out: list[Statement] = [] if out is None else out

    def to(self, out: list[Statement]) -> Builder:
        """A builder that appends to another list."""
        return Builder(self.fresh, self.source, out)

    def emit(
        self,
        kind: str,
        inputs: Sequence[Value],
        type_: TensorType | str,
        shape: Sequence[int] = (),
        /,
        **attributes: Attribute,
    ) -> Value:
        """Appends an operator and returns its one result. `type_`: type of the result, or only its dtype."""
        if isinstance(type_, str):
            type_ = TensorType(type_, tuple(integer(d) for d in shape))
        output = self.fresh.make(type_)
        self.define((output,), kind, inputs, **attributes)
        return output

    def emit_many(
        self,
        kind: str,
        inputs: Sequence[Value],
        results: Sequence[tuple[str, Sequence[int]]],
        /,
        **attributes: Attribute,
    ) -> tuple[Value, ...]:
        """Appends an operator with any number of results."""
        outputs = tuple(self.value(dtype, shape) for dtype, shape in results)
        self.define(outputs, kind, inputs, **attributes)
        return outputs

    def define(
        self, outputs: Sequence[Value], kind: str, inputs: Sequence[Value], /, **attributes: Attribute
    ) -> None:
        """Appends an operator whose results exist already."""
        packed = tuple(sorted(attributes.items()))
        self.out.append(UOperator(kind, tuple(inputs), tuple(outputs), packed, self.source))

    def value(self, dtype: str, shape: Sequence[int] = ()) -> Value:
        """A fresh value (a region parameter, for example)."""
        return self.fresh.make(TensorType(dtype, tuple(integer(d) for d in shape)))

    def like(self, values: Iterable[Value]) -> tuple[Value, ...]:
        return self.fresh.like(values)

    @contextmanager
    def region(self) -> Iterator[list[Statement]]:
        """Redirects statements appended inside the block to the yielded list."""
        outer, self.out = self.out, []
        try:
            yield self.out
        finally:
            self.out = outer

    def finish(self, parameters: Sequence[Value], results: Sequence[Value]) -> Region:
        """The region of everything appended."""
        return Region(tuple(parameters), tuple(self.out), tuple(results))

    # -- elements ----------------------------------------------------------------------------------------
    def binary(self, kind: str, x: Value, y: Value) -> Value:
        return self.emit(kind, (x, y), x.type)

    def compare(self, kind: str, x: Value, y: Value) -> Value:
        return self.emit(kind, (x, y), "bool", x.type.shape)

    def select(self, predicate: Value, on_true: Value, on_false: Value) -> Value:
        return self.emit("select", (predicate, on_true, on_false), on_true.type)

    def convert(self, x: Value, dtype: str) -> Value:
        return x if x.type.dtype == dtype else self.emit("convert", (x,), dtype, x.type.shape)

    # -- operators that change no number -----------------------------------------------------------------
    def constant(self, array: object, dtype: str = "int64") -> Value:
        """A constant of any shape; `array` is anything that NumPy accepts, already of the right kind."""
        data = sized(to_bytes(np.asarray(array), dtype), array)
        return self.emit("constant", (), dtype, np.asarray(array).shape, data=data)

    def full(self, number: object, dtype: str, shape: Sequence[int]) -> Value:
        """A constant with all elements equal."""
        return self.broadcast(self.constant(number, dtype), shape, ())

    def broadcast(self, x: Value, shape: Sequence[int], dimensions: Sequence[int]) -> Value:
        dimensions = tuple(int(d) for d in dimensions)
        if tuple(shape) == x.type.shape and dimensions == tuple(range(x.type.rank)):
            return x
        return self.emit("broadcast", (x,), x.type.dtype, shape, dimensions=dimensions)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return x if tuple(shape) == x.type.shape else self.emit("reshape", (x,), x.type.dtype, shape)

    def slice(
        self, x: Value, starts: Sequence[int], shape: Sequence[int], strides: Sequence[int] = ()
    ) -> Value:
        """A static slice of this shape. Missing trailing starts and strides are 0 and 1."""
        if tuple(shape) == x.type.shape:
            return x
        starts = (*starts, *(0,) * (x.type.rank - len(starts)))
        strides = (*strides, *(1,) * (x.type.rank - len(strides)))
        return self.emit("slice", (x,), x.type.dtype, shape, starts=starts, strides=strides)

    def row(self, array: Value, at: Value, zero: Value | None = None) -> Value:
        """A row of the leading axis. `zero`: the index 0, if there is one already."""
        starts, row = self._starts(array, at, zero), array.type.shape[1:]
        one = self.emit("dynamic_slice", (array, *starts), array.type.dtype, (1, *row))
        return self.emit("reshape", (one,), array.type.dtype, row)

    def put_row(self, array: Value, row: Value, at: Value, zero: Value | None = None) -> Value:
        """The array with a row of the leading axis replaced."""
        one = self.emit("reshape", (row,), row.type.dtype, (1, *row.type.shape))
        return self.emit("dynamic_update_slice", (array, one, *self._starts(array, at, zero)), array.type)

    def _starts(self, array: Value, at: Value, zero: Value | None) -> list[Value]:
        rest = array.type.rank - 1
        return [at, *[zero or self.constant(0)] * rest] if rest else [at]

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        order = tuple(order)
        if order == tuple(range(x.type.rank)):
            return x
        return self.emit("transpose", (x,), x.type.dtype, [x.type.shape[d] for d in order], permutation=order)


def beginning(wide: Value, value: Value, source: Source) -> UOperator:
    """`value` as a view of the beginning of a longer array."""
    none, ones = (0,) * value.type.rank, (1,) * value.type.rank
    return UOperator("slice", (wide,), (value,), (("starts", none), ("strides", ones)), source)


def to_bytes(array: np.ndarray, dtype: str) -> bytes:
    """Row-major little-endian bytes of `array` as `dtype` (ml_dtypes gives bfloat16)."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        nan = np.isnan(np.asarray(array, np.float32))
        return np.where(nan, np.uint16(0x7FC0), rounded).astype("<u2").tobytes()
    return np.ascontiguousarray(array).astype(np.dtype(dtype).newbyteorder("<")).tobytes()
