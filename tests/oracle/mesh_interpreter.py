"""Runs a planned program unit by unit on simulated memory, and finds missing barriers (design, section 4).

Where the interpreter computes on whole values, this one does what emitted code does: values lie in the slots
of the memory plan, views are strides, updates are in place, joins copy. Units are coroutines that stop at
`wait` and in exchanges; threads, and luck, play no part. Outside parallel loops every unit runs every
statement, but what writes shared memory is left to unit 0; trips of the outermost parallel loops are dealt
out in turn, from the loop's first unit on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jax_cocktail.errors import VerificationError
from jax_cocktail.utask.arrays import Array
from jax_cocktail.utask.exchange import blocks_of
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    walk,
)
from jax_cocktail.utask.layout import dense
from jax_cocktail.utask.plan import MemoryPlan, Slot, scratch_bytes
from jax_cocktail.utask.types import ITEM_SIZE, Value
from tests.oracle.exchange import TaggedWords, own, part, parts
from tests.oracle.group import Traced, check_lanes, evaluate_member, needed_members, sources
from tests.oracle.interpreter.run import EVALUATE
from tests.oracle.memory import Cells, Clock, Memory, Race, address_of, make_memory

Order = Sequence[int] | np.random.Generator | None  # of the units between barriers; None: 0, 1, 2 ...
Observer = Callable[[int, Statement], None]  # (unit, what it runs next)
SHARED = frozenset({"workspace", "output", "input"})
WARP = 32  # threads that take a run of trips, where threads share a loop


@dataclass(frozen=True, slots=True)
class MeshRun:
    """Results of a program, and what went wrong on the way."""

    results: list[Array]
    races: tuple[Race, ...]


def run_mesh(
    program: UProgram,
    plan: MemoryPlan,
    arguments: Sequence[Array],
    units: int,
    *,
    order: Order = None,
    drop_barrier: int | None = None,
    on_race: str = "raise",
) -> list[Array]:
    """The results of a stitched, planned, synchronised program on `units` units.

    `drop_barrier`: leave out that barrier, in the order of the text. `on_race`: "raise" a RaceError, or go on
    with "poison" in what was read too early.
    """
    raises = on_race == "raise"
    return simulate(
        program, plan, arguments, units, order=order, drop_barrier=drop_barrier, raises=raises
    ).results


def simulate(
    program: UProgram,
    plan: MemoryPlan,
    arguments: Sequence[Array],
    units: int,
    *,
    order: Order = None,
    drop_barrier: int | None = None,
    raises: bool = False,
    observe: Observer = lambda unit, statement: None,
) -> MeshRun:
    """As `run_mesh`, with all races. A program for one unit is run by one, whatever `units` says.
    `observe` is called before every statement, and with its loop before every iteration, of every unit."""
    if drop_barrier is not None:
        program = without_barrier(program, drop_barrier)
    count = max(min(units, plan.most_units), 1)
    memory = make_memory(program, plan, arguments, count, raises)
    team: list[_Unit] = []
    words = TaggedWords(program, count)
    for number in range(count):
        team.append(_Unit(number, program, plan, memory, team, words, arguments, observe))
    with np.errstate(all="ignore"):
        _take_turns(team, order)
    outside = Clock(0, 0, 1 + max(unit.clock.arrives for unit in team))  # the caller sees everything
    results = [
        memory.load(_dense_cells(memory, value, Slot("output", position)), outside)
        for position, value in enumerate(program.entry.results)
    ]
    return MeshRun(results, tuple(memory.races))


def _take_turns(team: Sequence[_Unit], order: Order) -> None:
    """Lets every unit run to its next wait, in turn, until all are done."""
    running = {unit.clock.unit: unit.program_text() for unit in team}
    while running:
        before = [unit.passed for unit in team]
        alive = list(running)
        if isinstance(order, np.random.Generator):
            order.shuffle(alive)
        elif order is not None:
            alive.sort(key=list(order).index)
        for number in alive:
            if next(running[number], "done") == "done":
                del running[number]
        stuck = before == [unit.passed for unit in team]
        if stuck and len(alive) == len(running):
            if team[0].memory.races:
                return  # poison led the units different ways
            raise VerificationError(
                f"units {sorted(running)} wait for ever; every unit must run every barrier: print the program"
                " after the pass that inserts barriers"
            )


# -- barriers ------------------------------------------------------------------------------------------------
def barrier_count(program: UProgram) -> int:
    """Barriers in the text of a program: pairs of arrive and wait."""
    return sum(_is_barrier(statement, "wait") for statement in walk(program.entry))


def without_barrier(program: UProgram, number: int) -> UProgram:
    """The program without its n-th wait, in the order of the text, and the arrive that belongs to it."""
    if not 0 <= number < barrier_count(program):
        raise ValueError(f"barrier {number} of {barrier_count(program)}")
    return replace(program, entry=_without(program.entry, number)[0])


def _without(region: Region, number: int) -> tuple[Region, int]:
    """The region without that barrier, and how many are left to count (negative: it is gone)."""
    body: list[Statement | None] = list(region.body)
    ranks = {"arrive": 0, "wait": 0}
    for position, statement in enumerate(region.body):
        if isinstance(statement, LoopUTask):
            condition = statement.condition
            if condition is not None:
                condition, number = _without(condition, number)
            inner, number = _without(statement.body, number)
            body[position] = replace(statement, condition=condition, body=inner)
        elif isinstance(statement, BranchUTask):
            branches = []
            for branch in statement.branches:
                inner, number = _without(branch, number)
                branches.append(inner)
            body[position] = replace(statement, branches=tuple(branches))
        elif _is_barrier(statement, "wait"):
            if number == 0:
                arrives = [p for p, s in enumerate(region.body) if _is_barrier(s, "arrive")]
                body[position] = body[arrives[ranks["wait"]]] = None
            ranks["wait"] += 1
            number -= 1
    return replace(region, body=tuple(s for s in body if s is not None)), number


def _is_barrier(statement: Statement, kind: str) -> bool:
    return isinstance(statement, UOperator) and statement.kind == kind


# -- one unit ------------------------------------------------------------------------------------------------
def _dense_cells(memory: Memory, value: Value, slot: Slot, unit: int = 0) -> Cells:
    return Cells(value, address_of(dense(value), memory.base(slot, unit), ITEM_SIZE[value.type.dtype]))


class _Unit:
    """One unit: its registers, its run-time pointers, and how far it has come."""

    def __init__(
        self,
        number: int,
        program: UProgram,
        plan: MemoryPlan,
        memory: Memory,
        team: Sequence[_Unit],
        words: TaggedWords,
        arguments: Sequence[Array],
        observe: Observer,
    ) -> None:
        self.clock, self.observe = Clock(number), observe
        self.program, self.plan, self.memory, self.team = program, plan, memory, team
        self.words, self.sent, self.received = words, 0, 0
        parameters = zip(program.entry.parameters, arguments, strict=True)
        self.registers = {v: np.asarray(a) for v, a in parameters if v.type.is_scalar}
        self.pointers: dict[Value, int] = {}  # dynamic_slice -> first byte
        self.alone = False  # in a parallel loop: nobody else runs these statements
        self.where: Statement | None = None

    @property
    def passed(self) -> tuple[int, ...]:
        """How far it has come among the others."""
        return self.clock.arrives, self.clock.waits, self.sent, self.received

    def program_text(self) -> Iterator[str]:
        """Runs the program; yields where it has to wait."""
        yield from self._region(self.program.entry)
        self.where = None
        if self.clock.unit == 0:
            self._store_results()

    def _store_results(self) -> None:
        for position, value in enumerate(self.program.entry.results):
            slot = Slot("output", position)
            if not value.type.is_scalar and value.type.size:
                layout = self.plan.layouts[value]
                if layout.is_whole and self.plan.slots[layout.root] == slot:
                    continue
            self._store(_dense_cells(self.memory, value, slot), self._read(value))

    # -- memory ------------------------------------------------------------------------------------------
    def _cells(self, value: Value) -> Cells:
        layout = self.plan.layouts[value]
        if layout.base == layout.root:
            base = self.memory.base(self.plan.slots[layout.root], self.clock.unit)
        else:
            base = self.pointers[layout.base]
        return Cells(value, address_of(layout, base, ITEM_SIZE[value.type.dtype]))

    def _trace(self, value: Value) -> Traced:
        """A value, with the memory that it lies in; nothing counts as read yet."""
        if value.type.is_scalar:
            return Traced(self.registers[value])
        cells = self._cells(value)
        return Traced(self.memory.load(cells, self.clock), (cells,))

    def _touch(self, cells: Cells) -> None:
        self.memory.touch(cells, self.clock, self.where)

    def _read(self, value: Value) -> Array:
        """A value, all of it read."""
        traced = self._trace(value)
        for cells in traced.cells:
            self._touch(cells)
        return traced.array

    def _store(self, cells: Cells, array: Array) -> None:
        self.memory.store(cells, array, self.clock, self.where)

    def _define(self, value: Value, array: Array) -> None:
        if value.type.is_scalar:
            self.registers[value] = array
        elif self._writes(value):
            self._store(self._cells(value), array)

    def _shares(self, value: Value) -> bool:
        """True if this is code that all units run and the value lies where all of them see it."""
        if self.alone or value.type.is_scalar or not value.type.size:
            return False
        return self.plan.slots[self.plan.layouts[value].root].space in SHARED

    def _writes(self, value: Value) -> bool:
        """True if writing the array is this unit's work."""
        return self.clock.unit == 0 or not self._shares(value)

    def _same_place(self, a: Value, b: Value) -> bool:
        """True if two arrays are one buffer, each of them all of it."""
        x, y = self.plan.layouts[a], self.plan.layouts[b]
        unit, slots = self.clock.unit, self.plan.slots
        starts = {self.memory.base(slots[layout.root], unit) for layout in (x, y)}
        return x.is_whole and y.is_whole and len(starts) == 1

    def _transfer(self, sources: Sequence[Value], targets: Sequence[Value]) -> None:
        """Parallel copy: every target gets its source's value from before any target changed."""
        moves = [
            (source, target)
            for source, target in zip(sources, targets, strict=True)
            if target.type.is_scalar
            or (target.type.size and not self._same_place(source, target) and self._writes(target))
        ]
        arrays = [self._read(source) for source, _ in moves]
        for (_, target), array in zip(moves, arrays, strict=True):
            self._define(target, array)

    # -- control flow ------------------------------------------------------------------------------------
    def _region(self, region: Region) -> Iterator[str]:
        for statement in region.body:
            self.where = statement
            self.observe(self.clock.unit, statement)
            if isinstance(statement, LoopUTask):
                yield from self._loop(statement)
            elif isinstance(statement, BranchUTask):
                yield from self._branch(statement)
            elif isinstance(statement, StitchedUTask):
                self._group(statement)
            elif statement.kind == "arrive":
                self._arrive()
            elif statement.kind == "wait":
                while any(unit.clock.arrives <= self.clock.waits for unit in self.team):
                    yield "waits"
                self.clock.waits += 1
            elif statement.kind == "exchange":
                yield from self._exchange(statement)
            elif statement.is_element:
                self._view(statement)
            else:
                self._anchor(statement)

    def _arrive(self) -> None:
        if self.clock.arrives != self.clock.waits:
            raise VerificationError(
                f"unit {self.clock.unit} arrives at a barrier and has not waited for the last one; arrive and"
                " wait alternate: print the program after the pass that inserts barriers"
            )
        self.clock.arrives += 1

    def _exchange(self, exchange: UOperator) -> Iterator[str]:
        """Sends the parts that this unit has written, and receives everybody's."""
        unit, units = self.clock.unit, len(self.team)
        self.sent += 1
        for value, blocks in zip(exchange.inputs, blocks_of(exchange), strict=True):
            cells = self._cells(value)
            for number in own(blocks, unit, units):
                place = part(blocks, number)
                self._touch(replace(cells, address=cells.address[place]))
        arrays = [self._trace(value).array for value in exchange.inputs]
        self.words.send(exchange, unit, self.sent, arrays)
        while not self.words.arrived(exchange, self.sent):
            yield "receives"
        received = self.words.received(exchange, self.sent)
        for value, blocks, array in zip(exchange.outputs, blocks_of(exchange), received, strict=True):
            cells = self._cells(value)
            self._store(replace(cells, address=cells.address[parts(blocks)]), array)
        self.received += 1

    def _loop(self, loop: LoopUTask) -> Iterator[str]:
        self._transfer(loop.initial, loop.carried)
        if loop.condition is None:
            yield from self._trips(loop)
        while loop.condition is not None:
            self._alias(loop.condition.parameters, loop.carried)
            yield from self._region(loop.condition)
            if not self.registers[loop.condition.results[0]]:
                break
            yield from self._trip(loop)
        self._alias(loop.outputs, loop.carried)

    def _trips(self, loop: LoopUTask) -> Iterator[str]:
        trips, outer = loop.trip_count or 0, self.alone
        assert loop.index is not None
        dealt = loop.parallel and not outer
        self.alone = outer or loop.parallel
        run = WARP if loop.level == "thread" else 1  # trips that go to one unit together
        for trip in range(trips):
            if dealt and (loop.first + trip // run) % len(self.team) != self.clock.unit:
                continue
            self.registers[loop.index] = np.asarray(trip, np.int64)
            yield from self._trip(loop)
        self.alone = outer

    def _trip(self, loop: LoopUTask) -> Iterator[str]:
        self.observe(self.clock.unit, loop)
        yield from self._region(loop.body)
        self.where = loop
        self._transfer(loop.body.results, loop.carried)

    def _alias(self, values: Sequence[Value], others: Sequence[Value]) -> None:
        """One-element values that are one register; arrays are one buffer by plan."""
        for value, other in zip(values, others, strict=True):
            if value.type.is_scalar:
                self.registers[value] = self.registers[other]

    def _branch(self, branch: BranchUTask) -> Iterator[str]:
        chosen = min(max(int(self.registers[branch.selector]), 0), len(branch.branches) - 1)
        region = branch.branches[chosen]
        yield from self._region(region)
        self.where = branch
        self._transfer(region.results, branch.outputs)

    # -- work --------------------------------------------------------------------------------------------
    def _view(self, operator: UOperator) -> None:
        """Costs nothing, but for constants in registers and the pointer of a dynamic_slice."""
        value = operator.output
        if value.type.is_scalar:
            operands = [self._read(v) for v in operator.inputs]
            self.registers[value] = np.asarray(EVALUATE[operator.kind](operator, operands))
        elif operator.kind == "dynamic_slice" and value.type.size:
            source, *starts = operator.inputs
            place = self._window(self._cells(source), [self.registers[s] for s in starts], value)
            self.pointers[value] = int(place.flat[0])

    def _window(self, whole: Cells, starts: Sequence[Array], part: Value) -> Array:
        """Addresses of a part of an array, moved inside where it sticks out."""
        place = []
        for start, n, size in zip(starts, whole.address.shape, part.type.shape, strict=True):
            first = min(max(int(start), 0), n - size)
            place.append(slice(first, first + size))
        return whole.address[tuple(place)]

    def _anchor(self, operator: UOperator) -> None:
        if not all(self._writes(value) for value in operator.outputs):
            return
        if not any(value.type.size for value in operator.outputs):
            return
        if operator.kind in ("copy", "dynamic_update_slice", "scatter"):
            self._transfer(operator.inputs[:1], operator.outputs)
            if operator.kind == "copy":
                return
            operator = replace(operator, inputs=(operator.output, *operator.inputs[1:]))
            if operator.kind == "dynamic_update_slice":
                self._group(StitchedUTask((operator,), operator.inputs, operator.outputs))
                return
        self._spoil_scratch(operator)
        result = EVALUATE[operator.kind](operator, [self._read(value) for value in operator.inputs])
        results = result if isinstance(result, tuple) else (result,)
        for value, array in zip(operator.outputs, results, strict=True):
            self._define(value, np.asarray(array))
        self._spoil_scratch(operator)

    def _spoil_scratch(self, operator: UOperator) -> None:
        """Nothing may lie where an operator works, neither its operands nor its results."""
        size = scratch_bytes(operator)
        if size:
            slot = Slot(self.plan.scratch_space, self.plan.scratch_offset)
            self.memory.spoil(slot, size, self.clock.unit)

    def _group(self, group: StitchedUTask) -> None:
        """Reads what this unit's results need, then writes them."""
        if not any(v.type.is_scalar for v in group.outputs) and not all(map(self._writes, group.outputs)):
            return
        outputs = [v for v in group.outputs if v.type.is_scalar or (v.type.size and self._writes(v))]
        members = needed_members(group, outputs)
        updates = {m.output: m for m in members if m.kind == "dynamic_update_slice"}
        arrays = {v: m for v, m in updates.items() if not v.type.is_scalar}
        for value, update in arrays.items():
            self._transfer(update.inputs[:1], (value,))
        values = {v: self._trace(v) for v in group.inputs if any(v in sources(m) for m in members)}
        for member in members:
            if member.output not in arrays:
                if member.output in updates:  # of one element
                    values[member.inputs[0]] = self._trace(member.inputs[0])
                results = evaluate_member(member, values, self._touch)
                values.update(zip(member.outputs, results, strict=True))
        stores = []
        for value in outputs:
            source, target = value, None if value.type.is_scalar else self._cells(value)
            if value in arrays and target is not None:
                _, source, *starts = arrays[value].inputs
                target = replace(
                    target, address=self._window(target, [values[s].array for s in starts], source)
                )
            stores.append((value, target, values[source]))
            for cells in values[source].cells:
                self._touch(cells)
        check_lanes([(target, traced) for _, target, traced in stores])
        for value, target, traced in stores:
            if target is None:
                self.registers[value] = traced.array
            else:
                self._store(target, traced.array)
