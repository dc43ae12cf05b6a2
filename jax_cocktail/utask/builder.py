"""Builds new operators: fresh results, sorted attributes, one source position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jax_cocktail.utask.ir import Attribute, Statement, UOperator
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import NOWHERE, Source, TensorType, Value

INDEX = TensorType("int64")


class Builder:
    """Appends operators to `out`. `source` is the position of all that is made from now on."""

    def __init__(
        self, fresh: FreshValues, source: Source = NOWHERE, out: list[Statement] | None = None
    ) -> None:
        self.fresh, self.source = fresh, source
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
        **attributes: Attribute,
    ) -> Value:
        """Appends an operator with one result and returns that. `type_`: of the result, or only its dtype."""
        if isinstance(type_, str):
            type_ = TensorType(type_, tuple(int(d) for d in shape))
        output = self.fresh.make(type_)
        self.define((output,), kind, inputs, **attributes)
        return output

    def define(
        self, outputs: Sequence[Value], kind: str, inputs: Sequence[Value], **attributes: Attribute
    ) -> None:
        """Appends an operator whose results have names already."""
        packed = tuple(sorted(attributes.items()))
        self.out.append(UOperator(kind, tuple(inputs), tuple(outputs), packed, self.source))

    def like(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Fresh values of the same types."""
        return tuple(self.fresh.make(v.type) for v in values)

    # -- operators that change no number -----------------------------------------------------------------
    def constant(self, array: object, dtype: str = "int64") -> Value:
        """A constant of any shape; `array` is anything NumPy understands, already of the right kind."""
        data = to_bytes(np.asarray(array), dtype)
        return self.emit("constant", (), dtype, np.asarray(array).shape, data=data)

    def broadcast(self, x: Value, shape: Sequence[int], dimensions: Sequence[int]) -> Value:
        if tuple(shape) == x.type.shape:
            return x
        return self.emit("broadcast", (x,), x.type.dtype, shape, dimensions=tuple(int(d) for d in dimensions))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return x if tuple(shape) == x.type.shape else self.emit("reshape", (x,), x.type.dtype, shape)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        order = tuple(order)
        if order == tuple(range(x.type.rank)):
            return x
        return self.emit("transpose", (x,), x.type.dtype, [x.type.shape[d] for d in order], permutation=order)

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
