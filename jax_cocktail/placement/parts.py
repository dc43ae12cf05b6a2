"""Parts of values: their types, their places, and the operators that read them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from jax_cocktail.utask.ir import Attribute, Statement, UOperator
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import ITEM_SIZE, Source, TensorType, Value

INDEX = TensorType("int64")


def part_type(type_: TensorType, axis: int, parts: int) -> TensorType:
    """The type of one of `parts` equal runs along `axis`."""
    shape = type_.shape
    assert shape[axis] % parts == 0, f"{type_} does not fall into {parts} parts along axis {axis}"
    return TensorType(type_.dtype, (*shape[:axis], shape[axis] // parts, *shape[axis + 1 :]))


def constant_parts(operator: UOperator, axis: int, parts: int) -> list[bytes]:
    """The data of every part of a constant."""
    type_, data = operator.output.type, cast(bytes, operator["data"])
    row = prod(type_.shape[axis:]) * ITEM_SIZE[type_.dtype]
    run = row // parts
    rows = range(0, len(data), row)
    return [b"".join(data[r + i * run : r + (i + 1) * run] for r in rows) for i in range(parts)]


class Emitter:
    """Statements of a parallel loop over `parts`: `before` it, `first` in its body, and the rest, `out`."""

    def __init__(self, parts: int, fresh: FreshValues, source: Source) -> None:
        self.parts = parts
        self.fresh = fresh
        self.source = source
        self.index = fresh.make(INDEX)
        self.before: list[Statement] = []
        self.first: list[Statement] = []
        self.out: list[Statement] = []
        self._numbers: dict[int, Value] = {}
        self._starts: dict[int, Value] = {1: self.index}

    def emit(self, kind: str, inputs: Sequence[Value], type_: TensorType, **attributes: Attribute) -> Value:
        return self.emit_to(self.out, kind, inputs, type_, **attributes)

    def emit_to(
        self,
        where: list[Statement],
        kind: str,
        inputs: Sequence[Value],
        type_: TensorType,
        **attributes: Attribute,
    ) -> Value:
        value = self.fresh.make(type_)
        where.append(UOperator(kind, tuple(inputs), (value,), tuple(sorted(attributes.items())), self.source))
        return value

    def number(self, n: int) -> Value:
        """An int64 constant."""
        if n not in self._numbers:
            data = n.to_bytes(8, "little", signed=True)
            self._numbers[n] = self.emit_to(self.first, "constant", (), INDEX, data=data)
        return self._numbers[n]

    def zero(self) -> Value:
        return self.number(0)

    def start(self, size: int) -> Value:
        """The first position of the part, for parts of `size`."""
        if size not in self._starts:
            factor = self.number(size)
            self._starts[size] = self.emit_to(self.first, "mul", (self.index, factor), INDEX)
        return self._starts[size]

    def starts(self, value: Value, axis: int) -> tuple[Value, ...]:
        """Where the part of `value` starts, per axis."""
        start = self.start(value.type.shape[axis] // self.parts)
        return tuple(start if d == axis else self.zero() for d in range(value.type.rank))

    def cut(self, value: Value, axis: int, where: list[Statement]) -> Value:
        """Reads the part of a whole value."""
        inputs = (value, *self.starts(value, axis))
        return self.emit_to(where, "dynamic_slice", inputs, part_type(value.type, axis, self.parts))

    def packed_part(self, packed: Value) -> Value:
        """Reads the part of an array whose first axis counts the parts."""
        dtype, (_, *shape) = packed.type.dtype, packed.type.shape
        inputs = (packed, self.index, *[self.zero()] * len(shape))
        row = self.emit_to(self.first, "dynamic_slice", inputs, TensorType(dtype, (1, *shape)))
        return self.emit_to(self.first, "reshape", (row,), TensorType(dtype, tuple(shape)))
