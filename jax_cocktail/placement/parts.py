"""Parts of values: their positions, and the operators that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax_cocktail.placement.cutter import Cutter
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.ir import LoopUTask, Region, Statement
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Source, TensorType, Value


@dataclass(frozen=True, slots=True)
class Tiling:
    """How an axis becomes the trips of a parallel loop.

    `parts`: number of equal runs of the axis. `first`: the unit that runs part 0. `length`: of a part, if the
    last one may reach past the end, else 0. `across`: trips for each part; trip t of the loop is trip
    ``t % across`` of part ``t // across``. `is_rest`: the one part is the remainder after the equal ones.
    """

    parts: int
    first: int = 0
    length: int = 0
    across: int = 1
    is_rest: bool = False

    @property
    def trips(self) -> int:
        return self.parts * self.across

    @property
    def rest(self) -> Tiling:
        return Tiling(self.parts, is_rest=True)

    @property
    def reach(self) -> int:
        """The end of the last part, if it may reach past the end of the axis, else 0."""
        return self.parts * self.length

    def step(self, extent: int) -> int:
        """From one part of an axis to the next."""
        return self.length or extent // self.parts

    def size(self, extent: int) -> int:
        """Length of the part of an axis."""
        return extent % self.parts if self.is_rest else self.step(extent)


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
    """Emits the statements of one part, which the index of the loop selects: `before` the parallel loop,
    `first` in its body, then `out`."""

    def __init__(self, tiling: Tiling, fresh: FreshValues, source: Source) -> None:
        super().__init__(fresh, tiling.size)
        self.tiling = tiling
        self.source = source
        self.trip = self.index = fresh.make(INDEX)
        self.before: list[Statement] = []
        self.first: list[Statement] = []
        self._numbers: dict[int, Value] = {}
        self._starts: dict[int, Value] = {}
        if tiling.across > 1:
            across = self.number(tiling.across)
            self.index = self.at(self.first).emit("div", (self.trip, across), INDEX)

    def array(self, type_: TensorType) -> Value:
        """A new array, made before the loop."""
        return self.at(self.before).emit("empty", (), type_)

    def parallel(
        self,
        initial: Sequence[Value],
        parameters: Sequence[Value],
        written: Sequence[Value],
        outputs: Sequence[Value],
    ) -> LoopUTask:
        """The loop over parts. Each trip turns the arrays `parameters` into `written`."""
        body = Region((self.trip, *parameters), (*self.first, *self.out), tuple(written))
        arrays, trips = (tuple(initial), tuple(outputs)), self.tiling.trips
        return LoopUTask(*arrays, body, None, trips, self.source, parallel=True, first=self.tiling.first)

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
        size = self.tiling.step(extent)
        if self.tiling.is_rest:
            return self.number(size * self.tiling.parts)
        if size == 1:
            return self.index
        if size not in self._starts:
            self._starts[size] = self.at(self.first).binary("mul", self.index, self.number(size))
        return self._starts[size]

    def starts(self, value: Value, axis: int) -> tuple[Value, ...]:
        """The first position of the part of `value`, per axis."""
        start = self.start(value.type.shape[axis])
        return tuple(start if d == axis else self.number(0) for d in range(value.type.rank))

    def cut(self, value: Value, axis: int, where: list[Statement]) -> Value:
        """Reads the part of a whole value, padded with zeros past the end."""
        if value.type.shape[axis] < self.tiling.reach:
            value = self._widened(value, axis, where)
        inputs = (value, *self.starts(value, axis))
        return self.at(where).emit("dynamic_slice", inputs, self.part_type(value.type, axis))

    def _widened(self, value: Value, axis: int, where: list[Statement]) -> Value:
        """The value, padded with zeros up to the end of the last part."""
        build, none = self.at(where), (0,) * value.type.rank
        wide, zero = value.type.resized(axis, self.tiling.reach), build.constant(0, value.type.dtype)
        return build.emit("pad", (value, zero), wide, low=none, interior=none)

    def packed_part(self, packed: Packed) -> Value:
        """Reads the part of a packed value."""
        if self.tiling.is_rest:
            assert packed.rest is not None
            return packed.rest
        build, (count, *shape) = self.at(self.first), packed.parts.type.shape
        number = self.index if count == self.tiling.parts else self.trip
        inputs = (packed.parts, number, *[self.number(0)] * len(shape))
        row = build.emit("dynamic_slice", inputs, packed.parts.type.dtype, (1, *shape))
        return build.transpose(build.reshape(row, shape), [packed.order.index(d) for d in range(len(shape))])
