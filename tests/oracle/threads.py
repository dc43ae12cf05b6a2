"""Finds accesses of the threads of one block that no block barrier orders.

The mesh interpreter runs the program and says which bytes every statement reads and writes. Which thread
touches an element is known of lane loops only: threads take the elements of a loop in turn, so element i of
an array belongs to one thread in all loops of that length and width. The memory plan and the run decide what
is touched; nothing is asked of the pass that inserts the barriers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import numpy as np

from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.arrays import Array
from jax_cocktail.utask.ir import Statement, StitchedUTask, UOperator, UProgram
from jax_cocktail.utask.operators import KINDS
from jax_cocktail.utask.plan import MemoryPlan
from tests.oracle.memory import Cells, Clock, Memory
from tests.oracle.mesh_interpreter import simulate

NOBODY, ANY, FIRST = -1, 0, 1  # threads: none; which one is not known; the first one
_BARRIERS = ("block_barrier", "wait")


@dataclass(frozen=True)
class Unordered:
    """Two statements of a unit that touch a byte, at least one of them writing, with no barrier between."""

    unit: int
    first: Statement | None
    second: Statement | None


class _Touched:
    """By byte: the thread that has touched it since the last barrier (ANY if several have), and in which
    statement."""

    def __init__(self, size: int) -> None:
        self.thread, self.statement = np.full(size, NOBODY), np.zeros(size, np.int64)

    def conflicts(self, places: Array, threads: Array) -> Array:
        """The statements that have touched these bytes by other threads."""
        others = self.thread[places]
        apart = (others != NOBODY) & ((others != threads) | (threads == ANY))
        return self.statement[places[apart]]

    def note(self, places: Array, threads: Array, statement: int) -> None:
        others = self.thread[places]
        self.thread[places] = threads
        shared = ((others != NOBODY) & (others != threads)) | (self.thread[places] != threads)
        self.thread[places[shared]] = ANY
        self.statement[places] = statement

    def forget(self) -> None:
        self.thread.fill(NOBODY)


@dataclass
class _Block:
    """What the threads of one block have touched since their last barrier, and the statement they are at:
    what it touches is compared with that of the statements before it when it ends."""

    written: _Touched
    read: _Touched
    now: list[tuple[bool, Array, Array]] = field(default_factory=list)  # (is a write, bytes, threads)
    statements: list[Statement | None] = field(default_factory=list)
    where: Statement | None = None

    def settle(self) -> list[tuple[Statement | None, Statement | None]]:
        """Ends the statement; what it touches in conflict with those before it."""
        found: dict[int, None] = {}
        for writes, places, threads in self.now:
            for others in (self.written, self.read)[: 1 + writes]:
                found |= dict.fromkeys(others.conflicts(places, threads).tolist())
        self.statements.append(self.where)
        for writes, places, threads in self.now:
            (self.written if writes else self.read).note(places, threads, len(self.statements) - 1)
        self.now.clear()
        return [(self.statements[number], self.where) for number in found]

    def synchronise(self) -> None:
        self.written.forget()
        self.read.forget()


class Watch:
    """Listens to a run of the mesh interpreter, as its observer (`statement`) and in its memory (`touch`)."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._firsts: dict[tuple[int, int], int] = {}  # of the elements of a length and width: a thread
        self._threads = FIRST + 1
        self._found: dict[Unordered, None] = {}

    @property
    def unordered(self) -> tuple[Unordered, ...]:
        for unit in self._blocks:
            self._settle(unit)
        return tuple(self._found)

    def statement(self, unit: int, statement: Statement) -> None:
        if unit in self._blocks:
            self._settle(unit)
            if isinstance(statement, UOperator) and statement.kind in _BARRIERS:
                self._blocks[unit].synchronise()

    def touch(self, size: int, cells: Cells, clock: Clock, where: Statement | None, writes: bool) -> None:
        """Notes an access of some cells of a memory of that size."""
        if clock.unit not in self._blocks:
            self._blocks[clock.unit] = _Block(_Touched(size), _Touched(size))
        block = self._blocks[clock.unit]
        if where is not block.where:
            self._settle(clock.unit)
            block.where = where
        address = cells.address.ravel()
        threads = np.repeat(self._owners(cells, where, writes)[address >= 0], cells.width)
        block.now.append((writes, cells.bytes(), threads))

    def _settle(self, unit: int) -> None:
        block = self._blocks[unit]
        if block.now:
            self._found |= {Unordered(unit, first, second): None for first, second in block.settle()}

    def _owners(self, cells: Cells, where: Statement | None, writes: bool) -> Array:
        """The thread of every element."""
        size = cells.address.size
        if not isinstance(where, StitchedUTask):
            return np.full(size, ANY)
        closer = where.members[-1]
        if closer.kind == "dynamic_update_slice" and closer.inputs[1].type.is_scalar:
            return np.full(size, FIRST if writes else ANY)
        inner, length = where.members, closer.output.type.size
        if closer.kind == "reduce" and closer.output.type.is_scalar:
            inner = tuple(m for m in where.members if m.kind != "reduce")
            length = closer.inputs[0].type.size
            if length <= BLOCK.warp_length:  # every warp reads all of it
                return np.full(size, ANY)
        if size != length or size < 2 or any(KINDS[m.kind].sort == "anchor" for m in inner):
            return np.full(size, ANY)
        if (length, cells.width) not in self._firsts:
            self._firsts[length, cells.width] = self._threads
            self._threads += length
        return self._firsts[length, cells.width] + np.arange(size)


@contextmanager
def watching() -> Iterator[Watch]:
    """Watches the run of the mesh interpreter in the block, which has to tell it of its statements."""
    watch = Watch()
    touch, store = Memory.touch, Memory.store

    def reads(memory: Memory, cells: Cells, clock: Clock, where: Statement | None) -> None:
        watch.touch(memory.bytes.size, cells, clock, where, writes=False)
        touch(memory, cells, clock, where)

    def writes(memory: Memory, cells: Cells, array: Array, clock: Clock, where: Statement | None) -> None:
        watch.touch(memory.bytes.size, cells, clock, where, writes=True)
        store(memory, cells, array, clock, where)

    with mock.patch.object(Memory, "touch", reads), mock.patch.object(Memory, "store", writes):
        yield watch


def unordered(
    program: UProgram, plan: MemoryPlan, arguments: Sequence[Array], units: int = 1
) -> tuple[Unordered, ...]:
    """What the threads of each unit do unordered in one run of a planned program."""
    with watching() as watch:
        simulate(program, plan, arguments, units, observe=watch.statement)
    return watch.unordered
