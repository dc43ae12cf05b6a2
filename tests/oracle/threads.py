"""Finds accesses of the threads of one block that no block barrier orders.

The mesh interpreter runs the program and says which bytes every statement reads and writes. Which thread
touches an element is known of lane loops only: threads take the elements of a loop in turn, so element i of
an array belongs to one thread in all loops of that length and width. The memory plan and the run decide what
is touched; nothing is asked of the pass that inserts the barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from unittest import mock

from jax_cocktail.utask.interpreter.common import Array
from jax_cocktail.utask.ir import Statement, StitchedUTask, UOperator, UProgram
from jax_cocktail.utask.operators import KINDS
from jax_cocktail.utask.plan import MemoryPlan
from tests.oracle.memory import Cells, Clock, Memory
from tests.oracle.mesh_interpreter import simulate

ANY, FIRST = 0, 1  # threads: which one is not known; the first one
_BARRIERS = ("block_barrier", "wait")


@dataclass(frozen=True)
class Unordered:
    """Two statements of a unit that touch a byte, at least one of them writing, with no barrier between."""

    unit: int
    first: Statement | None
    second: Statement | None


@dataclass
class _Block:
    """What the threads of one block have touched since their last barrier: by byte, the thread that wrote,
    the thread that read (both ANY if several did), and the statements."""

    written: dict[int, tuple[int, Statement | None]] = field(default_factory=dict)
    read: dict[int, tuple[int, Statement | None]] = field(default_factory=dict)
    now: list[tuple[bool, int, int]] = field(default_factory=list)  # (is a write, byte, thread)
    where: Statement | None = None

    def settle(self) -> list[tuple[Statement | None, Statement | None]]:
        """Ends a statement; what it touches in conflict with those before it."""
        found = []
        for writes, byte, thread in self.now:
            for others in (self.written, self.read)[: 1 + writes]:
                other, statement = others.get(byte, (thread or FIRST, None))
                if byte in others and (other != thread or thread == ANY):
                    found.append((statement, self.where))
        for writes, byte, thread in self.now:
            others = self.written if writes else self.read
            same = others.get(byte, (thread, None))[0] == thread
            others[byte] = (thread if same else ANY, self.where)
        self.now.clear()
        return list(dict.fromkeys(found))

    def synchronise(self) -> None:
        self.written.clear()
        self.read.clear()


class _Watch:
    """Listens to a run of the mesh interpreter."""

    def __init__(self, units: int) -> None:
        self.blocks = [_Block() for _ in range(units)]
        self.threads: dict[tuple[int, int, int], int] = {}
        self.found: dict[Unordered, None] = {}

    def statement(self, unit: int, statement: Statement) -> None:
        self._settle(unit)
        if isinstance(statement, UOperator) and statement.kind in _BARRIERS:
            self.blocks[unit].synchronise()

    def touch(self, cells: Cells, clock: Clock, where: Statement | None, writes: bool) -> None:
        block = self.blocks[clock.unit]
        if where is not block.where:
            self._settle(clock.unit)
            block.where = where
        for thread, address in zip(self._owners(cells, where, writes), cells.address.ravel(), strict=True):
            if address >= 0:
                block.now += [(writes, int(address) + k, thread) for k in range(cells.width)]

    def _settle(self, unit: int) -> None:
        for first, second in self.blocks[unit].settle():
            self.found[Unordered(unit, first, second)] = None

    def _owners(self, cells: Cells, where: Statement | None, writes: bool) -> Sequence[int]:
        """The thread of every element."""
        size = cells.address.size
        if not isinstance(where, StitchedUTask):
            return [ANY] * size
        closer = where.members[-1]
        if closer.kind == "dynamic_update_slice" and closer.inputs[1].type.is_scalar:
            return [FIRST if writes else ANY] * size
        inner, length = where.members, closer.output.type.size
        if closer.kind == "reduce" and closer.output.type.is_scalar:
            inner, length = where.members[:-1], closer.inputs[0].type.size
        if size != length or size < 2 or any(KINDS[m.kind].sort == "anchor" for m in inner):
            return [ANY] * size
        return [self.threads.setdefault((length, cells.width, i), len(self.threads) + 2) for i in range(size)]


def unordered(
    program: UProgram, plan: MemoryPlan, arguments: Sequence[Array], units: int = 1
) -> tuple[Unordered, ...]:
    """What the threads of each unit do unordered in one run of a planned program."""
    watch = _Watch(units)
    touch, store = Memory.touch, Memory.store

    def reads(memory: Memory, cells: Cells, clock: Clock, where: Statement | None) -> None:
        watch.touch(cells, clock, where, writes=False)
        touch(memory, cells, clock, where)

    def writes(memory: Memory, cells: Cells, array: Array, clock: Clock, where: Statement | None) -> None:
        watch.touch(cells, clock, where, writes=True)
        store(memory, cells, array, clock, where)

    with mock.patch.object(Memory, "touch", reads), mock.patch.object(Memory, "store", writes):
        simulate(program, plan, arguments, units, observe=watch.statement)
    for unit in range(units):
        watch._settle(unit)
    return tuple(watch.found)
