"""Derives the barriers of a planned program from the accesses to shared memory (COCKTAILER, section 4).

    write x; z = f(a); read x     ->     write x; arrive; z = f(a); wait; read x

Every access to shared memory has a performer: unit 0, all units, or the units tile by tile. Two accesses to
overlapping memory conflict if one of them writes and different units perform them. A barrier is inserted as
late as possible: before the first statement in conflict with an access since the last barrier. In a straight
line this gives the fewest barriers. Its *arrive* directly follows the last access of the conflict, so that a
unit works on while others are late.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from jax_cocktail.analysis.parallel import Digit, Run, Runs, block_access, scalar_constants
from jax_cocktail.cost.work import waits
from jax_cocktail.errors import VerificationError
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
    operators_in,
    regions_of,
)
from jax_cocktail.utask.layout import Layout
from jax_cocktail.utask.plan import MemoryPlan, Slot
from jax_cocktail.utask.types import ITEM_SIZE, Value

ROUNDS = 4  # over a loop body, until the accesses that cross its back edge no longer change

ALL = ("all",)
FIRST = ("unit 0",)
Performer = tuple[str | int, ...]  # ALL, FIRST, or "part" and the division of memory into tiles
Band = tuple[int, int, int]  # (period, first, end): bytes `first` to `end` of every `period` bytes


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes `begin` to `end` of a shared space. With equal performers, the same unit touches the same bytes.
    `bands`: each covers all bytes touched, counted from `begin`."""

    space: str
    begin: int
    end: int
    write: bool
    performer: Performer
    bands: tuple[Band, ...] = ()

    def conflicts(self, other: Access) -> bool:
        if not (self.write or other.write) or self.space != other.space:
            return False
        if self.end <= other.begin or other.end <= self.begin:
            return False
        if self.performer == other.performer == FIRST or self._beside(other):
            return False
        return self.performer != other.performer or self.performer == ALL or self.begin != other.begin

    def _beside(self, other: Access) -> bool:
        """True for disjoint rows or columns of one array."""
        pairs = ((a, b) for a in self.bands for b in other.bands if self.begin == other.begin)
        return any(a[0] == b[0] and (a[2] <= b[1] or b[2] <= a[1]) for a, b in pairs)


def synchronise(program: UProgram, plan: MemoryPlan) -> UProgram:
    """Inserts `arrive` and `wait`. Returns its argument if the program has no units or needs no barrier."""
    if plan.most_units <= 1:
        return program
    deriver = _Deriver(plan, scalar_constants(operators_in(program.entry)))
    entry, _ = deriver.region(program.entry, {}, deriver.results(program.entry.results))
    return replace(program, entry=entry) if _has_waits(entry) else program


State = dict[Access, int]  # access not yet covered by a barrier -> position in the region; -1: before it


@dataclass(slots=True)
class _Barrier:
    """`arrive` and `wait` precede the statements at these positions."""

    arrive: int
    wait: int


class _Line:
    """The barriers found so far in one region. They do not overlap: arrive, wait, arrive, wait."""

    def __init__(self, state: State) -> None:
        self.state = dict.fromkeys(state, -1)
        self.floor = 0  # the earliest position of a new `arrive`
        self.barriers: list[_Barrier] = []

    def begin(self, position: int, accesses: Iterable[Access]) -> None:
        """Inserts a barrier before a statement whose accesses conflict with earlier ones."""
        by_space: dict[str, list[Access]] = {}
        for access in accesses:
            by_space.setdefault(access.space, []).append(access)
        if not by_space:
            return
        state = ((a, at) for a, at in self.state.items() if a.space in by_space)
        self.meet(position, [at for a, at in state if any(map(a.conflicts, by_space[a.space]))])

    def meet(self, position: int, hit: Collection[int]) -> None:
        """Inserts a barrier before the statement at `position` and after those at `hit`, if any."""
        if not hit:
            return
        if self.barriers and max(hit) < self.barriers[-1].wait:  # reuse the last one, with a later arrive
            self.barriers[-1].arrive = max(self.barriers[-1].arrive, max(hit) + 1)
        else:
            self.barriers.append(_Barrier(max(self.floor, max(hit) + 1), position))
            self.floor = position
        self.state = {a: at for a, at in self.state.items() if at >= self.barriers[-1].arrive}

    def add(self, position: int, accesses: Iterable[Access]) -> None:
        self.state.update(dict.fromkeys(accesses, position))

    def woven(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        before: list[list[Statement]] = [[] for _ in range(len(body) + 1)]
        for barrier in self.barriers:
            before[barrier.arrive].append(_ARRIVE)
            before[barrier.wait].append(_WAIT)
        out = [s for position, statement in enumerate(body) for s in (*before[position], statement)]
        return (*out, *before[len(body)])


_NONE: Mapping[Value, UOperator] = {}
_ARRIVE = UOperator("arrive", (), ())
_WAIT = UOperator("wait", (), ())


class _Deriver:
    def __init__(self, plan: MemoryPlan, constants: Mapping[Value, int]) -> None:
        self.plan = plan
        self.constants = constants
        self.layouts: Mapping[Value, Layout] = plan.layouts
        self._accesses: dict[int, tuple[Statement, list[Access]]] = {}  # by the statement's id()

    # -- regions -----------------------------------------------------------------------------------------
    def region(self, region: Region, state: State, tail: Iterable[Access]) -> tuple[Region, State]:
        """The region with its barriers, and the accesses open after it. `tail`: copies at its end."""
        line = _Line(state)
        body: list[Statement] = []
        for position, statement in enumerate(region.body):
            accesses = self._known(statement)
            inside = isinstance(statement, LoopUTask | BranchUTask) and not _is_parallel(statement)
            line.begin(position, accesses)
            if inside:
                own = dict.fromkeys(accesses, position)
                after, left = self._nested(statement, line.state | own)
                if isinstance(after, LoopUTask) and line.state and waits(after):
                    once, rest = self._nested(statement, own)
                    if waits(once) < waits(after):  # one barrier before the loop saves one per iteration
                        line.meet(position, line.state.values())
                        after, left = once, rest
                line.state = dict.fromkeys(left, position)
                if any(_has_waits(r) for r in regions_of(after)):
                    line.floor = position + 1
                body.append(after)
            else:
                line.add(position, accesses)
                body.append(statement)
        tail = list(tail)
        line.begin(len(region.body), tail)
        line.add(len(region.body), tail)
        return replace(region, body=line.woven(tuple(body))), line.state

    def _nested(self, statement: Statement, state: State) -> tuple[Statement, State]:
        if isinstance(statement, LoopUTask):
            return self._loop(statement, state)
        assert isinstance(statement, BranchUTask)
        branches: list[Region] = []
        left: State = {}
        for region in statement.branches:
            tail = self._transfer(region.results, statement.outputs)
            after, out = self.region(region, state, tail)
            branches.append(after)
            left |= out
        return replace(statement, branches=tuple(branches)), left

    def _loop(self, loop: LoopUTask, state: State) -> tuple[Statement, State]:
        """Walks the loop until the accesses on its back edge settle: `ends` reach the condition, `around` the
        body."""
        tail = tuple(self._transfer(loop.body.results, loop.carried))
        around: State = {}
        ends: State = {}
        for turn in range(2 * ROUNDS):
            condition, middle = loop.condition, {**state, **around}
            last = {**middle, **ends}
            if condition is not None:
                condition, last = self.region(condition, last, ())
                middle = last if _has_waits(condition) else self.region(loop.regions[0], middle, ())[1]
            body, out = self.region(loop.body, middle, tail)
            back = self._back(loop, body, middle, tail, out)
            if out.keys() <= ends.keys() and back.keys() <= around.keys():
                break
            settled = turn < ROUNDS
            around, ends = (back, out) if settled else ({**around, **back}, {**ends, **out})
        else:
            raise VerificationError(
                f"what crosses the back edge of a loop at {loop.source} does not settle in {2 * ROUNDS}"
                " rounds; a fault of the barrier pass, report it with the program"
            )
        leaves = last if loop.condition is not None else out
        if loop.condition is None and not loop.trip_count:
            leaves = state
        return replace(loop, condition=condition, body=body), leaves

    def _back(
        self, loop: LoopUTask, body: Region, middle: State, tail: Iterable[Access], out: State
    ) -> State:
        """The accesses of `out` that are open when another iteration follows: without those of the case that
        ends the loop."""
        position = stopping_branch(loop)
        if position is None:
            return out
        branch = loop.body.body[position]
        behind = body.body[next(k for k, s in enumerate(body.body) if s.outputs == branch.outputs) :]
        if any(isinstance(s, UOperator) and s.kind == "wait" for s in behind):
            return out
        assert isinstance(branch, BranchUTask)
        onward = replace(branch, branches=branch.branches[1:] * 2)
        statements = (*loop.body.body[:position], onward, *loop.body.body[position + 1 :])
        return self.region(replace(loop.body, body=statements), middle, tail)[1]

    # -- accesses ----------------------------------------------------------------------------------------
    def _known(self, statement: Statement) -> list[Access]:
        """The accesses of a statement, cached because loops are walked several times."""
        if id(statement) not in self._accesses:
            self._accesses[id(statement)] = statement, list(self.accesses(statement))
        return self._accesses[id(statement)][1]

    def accesses(self, statement: Statement) -> Iterator[Access]:
        """The accesses of a statement itself; of a loop or branch, those before its regions."""
        if isinstance(statement, LoopUTask):
            if statement.parallel:
                yield from self._parts(statement)
            else:
                yield from self._transfer(statement.initial, statement.carried)
        elif isinstance(statement, StitchedUTask):
            yield from self._group(statement)
        elif isinstance(statement, UOperator) and statement.kind == "exchange":
            yield from self._exchange(statement)
        elif isinstance(statement, UOperator) and self._works(statement):
            yield from self._work(statement, statement.inputs)

    def _work(
        self,
        statement: UOperator | StitchedUTask,
        operands: Iterable[Value],
        updates: Mapping[Value, UOperator] = _NONE,
    ) -> Iterator[Access]:
        """Unit 0 alone computes shared arrays; every unit computes scalars for itself. `updates`: operators
        that write only a part of a result."""
        scalars = any(v.type.is_scalar for v in statement.outputs)
        alone = not scalars and any(self._shared(v) for v in statement.outputs)
        for value in operands:
            yield from self._whole(value, False, FIRST if alone else ALL)
        for value in statement.outputs:
            bands = self._updated(updates[value]) if value in updates else ()
            yield from self._whole(value, True, FIRST, bands)

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
            yield from self._transfer(update.inputs[:1], update.outputs)
        last = {u.output: u for u in updates if u.inputs[0] not in {v.output for v in updates}}
        yield from self._work(group, (v for v in group.inputs if v in used), last)

    def _works(self, operator: UOperator) -> bool:
        """False for views, `empty` and constants: they touch no memory."""
        if not operator.outputs or operator.kind in ("empty", "constant"):
            return False
        layout = self.layouts.get(operator.outputs[0])
        return layout is None or layout.root == operator.outputs[0]

    def _transfer(self, sources: tuple[Value, ...], targets: tuple[Value, ...]) -> Iterator[Access]:
        for source, target in zip(sources, targets, strict=True):
            if target in self.layouts and target.type.size and not self._same(source, target):
                performer = FIRST if self._shared(target) else ALL
                yield from self._whole(source, False, performer)
                yield from self._whole(target, True, performer)

    def results(self, values: tuple[Value, ...]) -> list[Access]:
        """The copies of results that are not computed in place."""
        found: list[Access] = []
        for position, value in enumerate(values):
            if value not in self.layouts or not value.type.size:
                continue
            layout = self.layouts[value]
            if not (layout.is_whole and self.plan.slots[layout.root] == Slot("output", position)):
                found += self._whole(value, False, FIRST)
                found.append(Access(f"output {position}", 0, value.type.nbytes, True, FIRST))
        return found

    def _parts(self, loop: LoopUTask) -> Iterator[Access]:
        written = {v for pair in zip(loop.outputs, loop.carried, strict=True) for v in pair}
        for initial, carried in zip(loop.initial, loop.carried, strict=True):
            if carried.type.size and not self._same(initial, carried):
                raise VerificationError(
                    f"a parallel loop at {loop.source} starts from {initial}, which lies elsewhere than"
                    f" {carried}; start from an explicit copy"
                )
        for value, runs in block_access(loop, self.constants).items():
            if value in self.layouts:
                performer = self._performer(value, runs, loop.first, loop.trip_count or 0)
                bands: tuple[Band, ...] = ()
                if runs is not None and performer != ALL:
                    ends = ((r.axis, min(r.end, value.type.shape[r.axis])) for r in runs)
                    bands = tuple(self._band(value, axis, 0, end) for axis, end in ends)
                yield from self._whole(value, False, performer, bands)
                if value in written:
                    yield from self._whole(value, True, performer, bands)

    def _exchange(self, exchange: UOperator) -> Iterator[Access]:
        """Every unit reads its own tile; tagged words order no other access."""
        for value, blocks in zip(exchange.inputs, blocks_of(exchange), strict=True):
            runs = (Run(blocks.axis, blocks.size, Digit(1, blocks.parts)),)
            performer = self._performer(value, runs, blocks.first, blocks.parts)
            yield from self._whole(value, False, performer)
        for value in exchange.outputs:
            yield from self._whole(value, True, ALL)

    def _performer(self, value: Value, runs: Runs | None, first: int, parts: int) -> Performer:
        layout = self.layouts[value]
        if runs is None or not layout.is_whole:
            return ALL
        found: Performer = ("part", first, parts)
        for run in runs:
            step = layout.strides[run.axis] * ITEM_SIZE[value.type.dtype]
            found += (run.digit.every, run.digit.count, run.size, step, value.type.shape[run.axis])
        return found

    # -- memory ------------------------------------------------------------------------------------------
    def _shared(self, value: Value) -> bool:
        return value in self.layouts and self.plan.place(value).space not in ("own", "private")

    def _same(self, source: Value, target: Value) -> bool:
        return source not in self.layouts or self.plan.same_place(source, target)

    def _whole(
        self, value: Value, write: bool, performer: Performer, bands: tuple[Band, ...] = ()
    ) -> Iterator[Access]:
        """The memory behind a value, if units share it and may write it. `bands`: the bytes touched, if fewer
        than the value shows."""
        if value not in self.layouts or not value.type.size:
            return
        slot = self.plan.place(value)
        space, index = slot.space, slot.index
        size = self.layouts[value].root.type.nbytes
        if space == "workspace":
            yield Access(space, index, index + size, write, performer, bands or self._shown(value))
        elif space == "output":
            yield Access(f"{space} {index}", 0, size, write, performer, bands or self._shown(value))

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


def _is_parallel(statement: Statement) -> bool:
    return isinstance(statement, LoopUTask) and statement.parallel


def _has_waits(region: Region) -> bool:
    return any(operator.kind == "wait" for operator in operators_in(region))
