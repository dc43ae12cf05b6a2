"""Parts of values: their positions, and the operators that read them."""

from __future__ import annotations

from dataclasses import dataclass

from jax_cocktail.placement.cutter import Cutter
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.ir import Statement
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Source, Value


@dataclass(frozen=True, slots=True)
class Packed:
    """Dense copies of the parts of a value.

    `parts`: all copies; the first axis counts the parts, or the trips that read them. `rest`: the remainder
    of the axis. `order`: the value's axes in the order in which a part holds them.
    """

    parts: Value
    rest: Value | None = None
    order: tuple[int, ...] = ()


class Emitter(Cutter):
    """Emits the statements of one part: `before` the parallel loop, `first` in its body, then `out`.

    The index of the loop selects the part. If `is_rest`, the part is the remainder after `parts` equal parts.
    `length` is that of every part; the last one may reach past the end of the axis and is padded with zeros.
    With several trips `across` each part, trip t of the loop is trip ``t % across`` of part ``t // across``.
    """

    def __init__(
        self,
        parts: int,
        fresh: FreshValues,
        source: Source,
        is_rest: bool = False,
        length: int = 0,
        across: int = 1,
    ) -> None:
        super().__init__(fresh)
        self.parts = parts
        self.source = source
        self.is_rest = is_rest
        self.length = length
        self.across = across
        self.trip = self.index = fresh.make(INDEX)
        self.before: list[Statement] = []
        self.first: list[Statement] = []
        self._numbers: dict[int, Value] = {}
        self._starts: dict[int, Value] = {}
        if across > 1:
            self.index = self.at(self.first).emit("div", (self.trip, self.number(across)), INDEX)

    def size(self, extent: int) -> int:
        if self.length:
            return self.length
        return extent % self.parts if self.is_rest else extent // self.parts

    def at(self, where: list[Statement]) -> Builder:
        """A builder that appends to one of the lists."""
        return Builder(self.fresh, self.source, where)

    def number(self, n: int) -> Value:
        """An int64 constant."""
        if n not in self._numbers:
            self._numbers[n] = self.at(self.first).constant(n)
        return self._numbers[n]

    def start(self, extent: int) -> Value:
        """The first position of the part of an axis."""
        size = self.length or extent // self.parts
        if size not in self._starts:
            self._starts[size] = self._start(size)
        return self._starts[size]

    def _start(self, size: int) -> Value:
        if self.is_rest:
            return self.number(size * self.parts)
        if size == 1:
            return self.index
        return self.at(self.first).emit("mul", (self.index, self.number(size)), INDEX)

    def starts(self, value: Value, axis: int) -> tuple[Value, ...]:
        """The first position of the part of `value`, per axis."""
        start = self.start(value.type.shape[axis])
        return tuple(start if d == axis else self.number(0) for d in range(value.type.rank))

    def cut(self, value: Value, axis: int, where: list[Statement]) -> Value:
        """Reads the part of a whole value, padded with zeros past the end."""
        if self.length and value.type.shape[axis] < self.length * self.parts:
            value = self._widened(value, axis, where)
        inputs = (value, *self.starts(value, axis))
        return self.at(where).emit("dynamic_slice", inputs, self.part_type(value.type, axis))

    def _widened(self, value: Value, axis: int, where: list[Statement]) -> Value:
        """The value, padded with zeros up to the end of the last part."""
        build, none = self.at(where), (0,) * value.type.rank
        wide = value.type.resized(axis, self.length * self.parts)
        zero = build.constant(0, value.type.dtype)
        return build.emit("pad", (value, zero), wide, low=none, interior=none)

    def packed_part(self, packed: Packed) -> Value:
        """Reads the part of a packed value."""
        if self.is_rest:
            assert packed.rest is not None
            return packed.rest
        build, (count, *shape) = self.at(self.first), packed.parts.type.shape
        number = self.index if count == self.parts else self.trip
        inputs = (packed.parts, number, *[self.number(0)] * len(shape))
        row = build.emit("dynamic_slice", inputs, packed.parts.type.dtype, (1, *shape))
        return build.transpose(build.reshape(row, shape), [packed.order.index(d) for d in range(len(shape))])
