"""Derives the barriers between units of a planned program (COCKTAILER, section 4), as `hazards` describes.

    write x; z = f(a); read x     ->     write x; arrive; z = f(a); wait; read x

Every access to shared memory has a performer: unit 0, all units, or the units tile by tile. The *arrive* of a
barrier directly follows the last access of the conflict, so that a unit works on while others are late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from jax_cocktail.analysis.parallel import AxisRange, AxisRanges, Digit, block_access, scalar_constants
from jax_cocktail.cost.work import waits
from jax_cocktail.errors import VerificationError
from jax_cocktail.schedule.sync.hazards import (
    ALL,
    FIRST,
    WAIT,
    Access,
    Band,
    Line,
    Performer,
    State,
    Synchroniser,
)
from jax_cocktail.utask.exchange import blocks_of
from jax_cocktail.utask.guard import stopping_branch
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    is_a,
    is_parallel,
)
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.types import ITEM_SIZE, Value


def barriers(program: UProgram, plan: MemoryPlan) -> UProgram:
    """Inserts `arrive` and `wait`. Returns its argument if the program has no units or needs no barrier."""
    return program if plan.most_units <= 1 else _Barriers(plan, program).run(program)


class Crossings:
    """Tells of a planned program where a value goes from units to others. `program` may have its barriers
    already."""

    def __init__(self, program: UProgram, plan: MemoryPlan) -> None:
        self._barriers = _Barriers(plan, program)

    def between(self, writer: Statement, reader: Statement, value: Value) -> bool:
        """True if a barrier of all units must stand between two statements because of a value that one of
        them stores and the other one reads: units read what others have stored. Both are parallel loops, or
        statements outside of them. What a join copies, unit 0 stores."""
        barriers = self._barriers
        if barriers.plan.most_units <= 1 or (writer is reader and is_parallel(writer)):
            return False
        places = list(barriers.whole(value, True, FIRST))
        meets = [(a.space, a.begin) for a in places]
        if not meets:
            return False
        stores = [a for a in barriers.known_accesses(writer) if a.write and (a.space, a.begin) in meets]
        loads = [a for a in barriers.known_accesses(reader) if not a.write and (a.space, a.begin) in meets]
        return any(a.conflicts(b) for a in stores or places for b in loads)


class _Barriers(Synchroniser):
    def __init__(self, plan: MemoryPlan, program: UProgram) -> None:
        super().__init__(plan, WAIT, alone=FIRST)
        self.constants = scalar_constants(program.entry)

    # -- regions -----------------------------------------------------------------------------------------
    def enters(self, statement: Statement) -> bool:
        return super().enters(statement) and not is_parallel(statement)

    def nested(self, statement: Statement, line: Line, position: int, own: State) -> tuple[Statement, State]:
        """One barrier before a loop is preferred to one in every iteration."""
        after, left = super().nested(statement, line, position, own)
        if isinstance(after, LoopUTask) and line.state and waits(after):
            once, rest = self.inside(statement, own)
            if waits(once) < waits(after):
                line.insert(position, line.state.values())
                return once, rest
        return after, left

    def back(self, loop: LoopUTask, body: Region, middle: State, tail: Iterable[Access], out: State) -> State:
        """Without the accesses of the case that ends the loop."""
        position = stopping_branch(loop)
        if position is None:
            return out
        branch = loop.body.body[position]
        behind = body.body[next(k for k, s in enumerate(body.body) if s.outputs == branch.outputs) :]
        if any(is_a(s, WAIT.kind) for s in behind):
            return out
        assert isinstance(branch, BranchUTask)
        onward = replace(branch, branches=branch.branches[1:] * 2)
        statements = (*loop.body.body[:position], onward, *loop.body.body[position + 1 :])
        return self.region(replace(loop.body, body=statements), middle, tail)[1]

    # -- accesses ----------------------------------------------------------------------------------------
    def accesses(self, statement: Statement) -> Iterator[Access]:
        if isinstance(statement, LoopUTask):
            if statement.parallel:
                yield from self._parts(statement)
            else:
                yield from self.transfer(statement.initial, statement.carried)
        elif isinstance(statement, StitchedUTask):
            yield from self._group(statement)
        elif is_a(statement, "exchange"):
            yield from self._exchange(statement)
        elif isinstance(statement, UOperator) and self.works(statement):
            yield from self._work(statement, statement.inputs)

    def _work(
        self,
        statement: UOperator | StitchedUTask,
        operands: Iterable[Value],
        updates: Mapping[Value, UOperator] | None = None,
    ) -> Iterator[Access]:
        """Unit 0 alone computes shared arrays; every unit computes scalars for itself. `updates`: operators
        that write only a part of a result."""
        scalars = any(v.type.is_scalar for v in statement.outputs)
        alone = not scalars and any(self.shared(v) for v in statement.outputs)
        for value in operands:
            yield from self.whole(value, False, FIRST if alone else ALL)
        for value in statement.outputs:
            update = (updates or {}).get(value)
            yield from self.whole(value, True, FIRST, self._updated(update) if update is not None else ())

    def _updated(self, update: UOperator) -> tuple[Band, ...]:
        """The part of an array that an update at constant starts writes."""
        layout = self.layouts.get(update.output)
        if layout is None or not layout.is_whole:
            return ()
        _, new, *starts = update.inputs
        found = []
        for axis, (start, n) in enumerate(zip(starts, update.output.type.shape, strict=True)):
            size = new.type.shape[axis]
            if size < n and start in self.constants:
                first = min(max(self.constants[start], 0), n - size)
                found.append(self._band(update.output, axis, first, first + size))
        return tuple(found)

    def _band(self, value: Value, axis: int, first: int, last: int) -> Band:
        """Positions `first` to `last` of an axis."""
        step = self.layouts[value].strides[axis] * ITEM_SIZE[value.type.dtype]
        return (step * value.type.shape[axis], step * first, step * last)

    def _group(self, group: StitchedUTask) -> Iterator[Access]:
        """An array that is updated in place is not read."""
        updates = [m for m in group.members if m.kind == "dynamic_update_slice"]
        used = {v for m in group.members for v in (m.inputs[1:] if m in updates else m.inputs)}
        for update in updates:
            yield from self.transfer(update.inputs[:1], update.outputs)
        last = {u.output: u for u in updates if u.inputs[0] not in {v.output for v in updates}}
        yield from self._work(group, (v for v in group.inputs if v in used), last)

    def _parts(self, loop: LoopUTask) -> Iterator[Access]:
        written = {v for pair in zip(loop.outputs, loop.carried, strict=True) for v in pair}
        for initial, carried in zip(loop.initial, loop.carried, strict=True):
            if carried.type.size and not self.same(initial, carried):
                raise VerificationError(
                    f"a parallel loop at {loop.source} starts from {initial}, which lies elsewhere than"
                    f" {carried}; start from an explicit copy"
                )
        for value, runs in block_access(loop, self.constants).items():
            if value in self.layouts:
                kind = ("part" if loop.level == "unit" else loop.level, loop.first, loop.trip_count or 0)
                performer = self._performer(value, runs, kind)
                bands: tuple[Band, ...] = ()
                if runs is not None and performer != ALL:
                    ends = ((r, min(r.end, value.type.shape[r.axis])) for r in runs)
                    bands = tuple(self._band(value, r.axis, r.begin, end) for r, end in ends)
                yield from self.whole(value, False, performer, bands)
                if value in written:
                    yield from self.whole(value, True, performer, bands)

    def _exchange(self, exchange: UOperator) -> Iterator[Access]:
        """Every unit reads its own tile; tagged words order no other access."""
        for value, blocks in zip(exchange.inputs, blocks_of(exchange), strict=True):
            runs = (AxisRange(blocks.axis, blocks.size, Digit(1, blocks.parts)),)
            performer = self._performer(value, runs, ("part", blocks.first, blocks.parts))
            yield from self.whole(value, False, performer)
        for value in exchange.outputs:
            yield from self.whole(value, True, ALL)

    def _performer(self, value: Value, runs: AxisRanges | None, kind: Performer) -> Performer:
        """`kind`: what runs the trips, the first of it, and the number of trips."""
        layout = self.layouts[value]
        if runs is None or not layout.is_whole:
            return ALL
        found = kind
        for run in runs:
            step = layout.strides[run.axis] * ITEM_SIZE[value.type.dtype]
            found += (run.begin, run.digit.every, run.digit.count, run.size, step, value.type.shape[run.axis])
        return found

    # -- memory ------------------------------------------------------------------------------------------
    def whole(
        self, value: Value, write: bool, performer: Performer = ALL, bands: tuple[Band, ...] = ()
    ) -> Iterator[Access]:
        """Nothing unless units share the memory and may write it."""
        if value in self.layouts and self.plan.place(value).space in ("workspace", "output"):
            yield from super().whole(value, write, performer, bands or self._shown(value))

    def _shown(self, value: Value) -> tuple[Band, ...]:
        """The part of its buffer that a slice at constant starts shows."""
        layout = self.layouts[value]
        if layout.is_whole or layout.base != layout.root:
            return ()
        found = []
        width, steps = ITEM_SIZE[value.type.dtype], list(zip(layout.shape, layout.strides, strict=True))
        period = 1
        for n in reversed(layout.root.type.shape):
            period *= n
            inside = [(m - 1) * step for m, step in steps if m > 1 and abs(step) < period]
            low = layout.offset % period + sum(min(0, reach) for reach in inside)
            high = layout.offset % period + sum(max(0, reach) for reach in inside) + 1
            repeats = all(step % period == 0 for m, step in steps if m > 1 and abs(step) >= period)
            if repeats and low >= 0 and high <= period:
                found.append((width * period, width * low, width * high))
        return tuple(found)
