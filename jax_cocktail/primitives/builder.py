"""Builds uTask regions statement by statement; the rules' only way to make IR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import numpy as np

from jax_cocktail.utask.ir import (
    Attribute,
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
)
from jax_cocktail.utask.types import NOWHERE, Source, TensorType, Value


class Builder:
    """One per program. `source` is the position given to every statement made from now on."""

    def __init__(self) -> None:
        self._ids = count()
        self._bodies: list[list[Statement]] = [[]]
        self.source: Source = NOWHERE

    def value(self, dtype: str, shape: Sequence[int] = ()) -> Value:
        """A fresh value (a region parameter, for example)."""
        return Value(next(self._ids), TensorType(dtype, tuple(int(d) for d in shape)))

    def emit(
        self, kind: str, inputs: Sequence[Value], dtype: str, shape: Sequence[int], **attributes: Attribute
    ) -> Value:
        """Appends a one-result operator and returns its result."""
        return self.emit_many(kind, inputs, [(dtype, shape)], **attributes)[0]

    def emit_many(
        self,
        kind: str,
        inputs: Sequence[Value],
        results: Sequence[tuple[str, Sequence[int]]],
        **attributes: Attribute,
    ) -> tuple[Value, ...]:
        outputs = tuple(self.value(dtype, shape) for dtype, shape in results)
        operator = UOperator(kind, tuple(inputs), outputs, tuple(sorted(attributes.items())), self.source)
        self._bodies[-1].append(operator)
        return outputs

    @contextmanager
    def region(self) -> Iterator[list[Statement]]:
        """Statements emitted inside go to the yielded list, not to the current region."""
        body: list[Statement] = []
        self._bodies.append(body)
        try:
            yield body
        finally:
            self._bodies.pop()

    def append(self, statement: LoopUTask | BranchUTask) -> None:
        self._bodies[-1].append(statement)

    def finish(self, parameters: Sequence[Value], results: Sequence[Value]) -> Region:
        """The outermost region, once everything is emitted."""
        (body,) = self._bodies
        return Region(tuple(parameters), tuple(body), tuple(results))

    # shorthands that the rules share
    def constant(self, array: object, dtype: str) -> Value:
        """A constant of any shape; `array` is anything NumPy understands, already of the right kind."""
        data = to_bytes(np.asarray(array), dtype)
        return self.emit("constant", (), dtype, np.asarray(array).shape, data=data)

    def full(self, number: object, dtype: str, shape: Sequence[int]) -> Value:
        scalar = self.constant(number, dtype)
        return self.broadcast(scalar, shape, ()) if tuple(shape) else scalar

    def broadcast(self, x: Value, shape: Sequence[int], dimensions: Sequence[int]) -> Value:
        if tuple(shape) == x.type.shape:
            return x
        return self.emit("broadcast", (x,), x.type.dtype, shape, dimensions=tuple(int(d) for d in dimensions))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return x if tuple(shape) == x.type.shape else self.emit("reshape", (x,), x.type.dtype, shape)

    def convert(self, x: Value, dtype: str) -> Value:
        return x if x.type.dtype == dtype else self.emit("convert", (x,), dtype, x.type.shape)


def to_bytes(array: np.ndarray, dtype: str) -> bytes:
    """Row-major little-endian bytes of `array` as `dtype` (ml_dtypes gives bfloat16)."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        nan = np.isnan(np.asarray(array, np.float32))
        return np.where(nan, np.uint16(0x7FC0), rounded).astype("<u2").tobytes()
    return np.ascontiguousarray(array).astype(np.dtype(dtype).newbyteorder("<")).tobytes()
