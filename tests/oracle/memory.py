"""Memory of the mesh interpreter: bytes in numbered places, poison, and who touched what when.

All buffers lie in one array of bytes; each unit's own memory is there once per unit. For every byte and unit
is kept how many barriers the unit had arrived at when it last read and last wrote the byte: an access is
ordered before another unit's iff a barrier stands between, arrive after the one and wait before the other
(a vector clock as in FastTrack, PLDI'09, with the barriers as the only events).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

import numpy as np

from jax_cocktail.errors import VerificationError
from jax_cocktail.utask.arrays import Array, numpy_dtype
from jax_cocktail.utask.ir import Statement, UOperator, UProgram, walk
from jax_cocktail.utask.layout import Layout
from jax_cocktail.utask.plan import MemoryPlan, Slot
from jax_cocktail.utask.printer import print_statement
from jax_cocktail.utask.types import ITEM_SIZE, Shape, Value

POISON = np.uint16(0x7FFD)  # repeated: a quiet NaN in every float type, an odd number in every integer type
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses of one byte, at least one of them a write, with no barrier between.

    `statement`: that of the access seen second (None: copying results out); `value`: what it accessed;
    `units`: first and second unit; `accesses`: "read" or "write" of each.
    """

    statement: Statement | None
    value: Value
    units: tuple[int, int]
    accesses: tuple[str, str]

    def __str__(self) -> str:
        where = "the copies of results" if self.statement is None else print_statement(self.statement)
        (first, second), (one, two) = self.units, self.accesses
        return f"unit {second} {two}s {self.value} with no barrier after unit {first}'s {one}, in\n{where}"


class RaceError(VerificationError):
    """A barrier is missing. `race` says where."""

    def __init__(self, race: Race) -> None:
        self.race = race
        super().__init__(f"{race}\ntry: print the program after the pass that inserts barriers")


@dataclass(slots=True)
class Clock:
    """A unit, and how many barriers it has arrived at and waited for."""

    unit: int
    arrives: int = 0
    waits: int = 0


@dataclass(frozen=True, slots=True)
class Cells:
    """Where elements of `value` lie: their first bytes (-1: not in memory)."""

    value: Value
    address: Array

    @property
    def width(self) -> int:
        return ITEM_SIZE[self.value.type.dtype]

    def bytes(self) -> Array:
        """Every byte of the elements that are in memory."""
        first = self.address[self.address >= 0].reshape(-1, 1)
        return cast(Array, (first + np.arange(self.width)).reshape(-1))


@dataclass(slots=True)
class Memory:
    """`start`: first byte of each (space, index, unit); `reads`, `writes`: [unit, byte] -> arrives, or -1."""

    bytes: Array
    start: Mapping[tuple[str, int, int], int]
    reads: Array
    writes: Array
    raises: bool
    races: dict[Race, None] = field(default_factory=dict)

    def base(self, slot: Slot, unit: int) -> int:
        if slot.space in ("own", "private", "thread"):  # its threads take turns
            return self.start[slot.space, 0, unit] + slot.index
        if slot.space == "workspace":
            return self.start["workspace", 0, 0] + slot.index
        return self.start[slot.space, slot.index, 0]

    # -- access ------------------------------------------------------------------------------------------
    def load(self, cells: Cells, clock: Clock) -> Array:
        """The elements; poison where another unit has written and no barrier stands between. Notes nothing:
        what of it is really used is known later (`touch`)."""
        places = cells.address[..., np.newaxis] + np.arange(cells.width)
        raw = self.bytes[places]
        stale = self._conflicts(self.writes, places, clock).any(axis=(0, -1))
        if stale.any():
            raw[stale] = _poison(cells.width)
        return _typed(raw, cells.value.type.dtype, cells.address.shape)

    def touch(self, cells: Cells, clock: Clock, where: Statement | None) -> None:
        """Notes a read."""
        places = cells.bytes()
        self._report(self.writes, places, clock, cells.value, where, ("write", "read"))
        self.reads[clock.unit, places] = clock.arrives

    def store(self, cells: Cells, array: Array, clock: Clock, where: Statement | None) -> None:
        places = cells.bytes()
        self._report(self.writes, places, clock, cells.value, where, ("write", "write"))
        self._report(self.reads, places, clock, cells.value, where, ("read", "write"))
        self.writes[clock.unit, places] = clock.arrives
        self.bytes[places] = _raw(array, cells.value.type.dtype, cells.address.shape)

    def spoil(self, slot: Slot, size: int, unit: int) -> None:
        """Leaves poison in some bytes."""
        begin = self.base(slot, unit)
        _fill(self.bytes, begin, _poison(size).tobytes())

    # -- races -------------------------------------------------------------------------------------------
    def _conflicts(self, touched: Array, places: Array, clock: Clock) -> Array:
        """[unit, ...]: True where another unit's last touch is before no barrier that `clock` has passed."""
        found = cast(Array, touched[:, places] >= clock.waits)
        found[clock.unit] = False
        return found

    def _report(
        self,
        touched: Array,
        places: Array,
        clock: Clock,
        value: Value,
        where: Statement | None,
        accesses: tuple[str, str],
    ) -> None:
        for other in np.flatnonzero(self._conflicts(touched, places, clock).any(axis=-1)):
            race = Race(where, value, (int(other), clock.unit), accesses)
            if self.raises:
                raise RaceError(race)
            self.races[race] = None


def make_memory(
    program: UProgram, plan: MemoryPlan, arguments: Sequence[Array], units: int, raises: bool
) -> Memory:
    """Operands and constants are in place, everything else is poison."""
    sizes: dict[tuple[str, int, int], int] = {("workspace", 0, 0): plan.workspace_bytes}
    sizes.update({("own", 0, unit): plan.own_bytes for unit in range(units)})
    sizes.update({("private", 0, unit): plan.private_bytes for unit in range(units)})
    sizes.update({("thread", 0, unit): plan.thread_bytes for unit in range(units)})
    taken = {result: operand for operand, result in plan.aliases}
    for position, value in enumerate(program.entry.parameters):
        sizes["input", position, 0] = value.type.nbytes
    for position, value in enumerate(program.entry.results):
        if position not in taken:
            sizes["output", position, 0] = value.type.nbytes
    constants = [s for s in walk(program.entry) if isinstance(s, UOperator) and s.kind == "constant"]
    for constant in constants:
        sizes["constant", constant.output.id, 0] = constant.output.type.nbytes
    start: dict[tuple[str, int, int], int] = {}
    total = 0
    for key, size in sizes.items():
        start[key] = total
        total += -(-size // ALIGNMENT) * ALIGNMENT
    start.update({("output", result, 0): start["input", operand, 0] for result, operand in taken.items()})
    content = np.full(total // 2, POISON).view(np.uint8)
    for position, array in enumerate(arguments):
        _fill(content, start["input", position, 0], np.ascontiguousarray(array).tobytes())
    for constant in constants:
        _fill(content, start["constant", constant.output.id, 0], constant.data)
    never = np.full((units, total), -1, np.int64)
    return Memory(content, start, never, never.copy(), raises)


def _fill(content: Array, begin: int, data: bytes) -> None:
    content[begin : begin + len(data)] = np.frombuffer(data, np.uint8)


def address_of(layout: Layout, base: int, width: int) -> Array:
    """First byte of every element of a view that counts from `base`."""
    return base + width * (layout.offset + _steps(layout.shape, layout.strides))


@lru_cache(maxsize=4096)
def _steps(shape: Shape, strides: tuple[int, ...]) -> Array:
    """Distance of every element from the first one, in elements."""
    steps = np.zeros(shape, np.int64)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        along = [1] * len(shape)
        along[axis] = size
        steps += (np.arange(size) * stride).reshape(along)
    return steps


def _poison(width: int) -> Array:
    return np.full(max(width // 2, 1), POISON).view(np.uint8)[:width]


def _typed(raw: Array, dtype: str, shape: Shape) -> Array:
    """Elements from their bytes in the last axis."""
    if dtype == "bool":
        return cast(Array, raw[..., 0] != 0)
    return np.ascontiguousarray(raw).view(numpy_dtype(dtype)).reshape(shape)


def _raw(array: Array, dtype: str, shape: Shape) -> Array:
    typed = np.ascontiguousarray(np.broadcast_to(array, shape), numpy_dtype(dtype))
    return typed.reshape(-1).view(np.uint8)
