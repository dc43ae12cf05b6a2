"""Derives barriers from accesses to memory, among units or among the threads of one unit.

    write x; z = f(a); read x     ->     write x; z = f(a); barrier; read x

Two accesses to overlapping memory conflict (a hazard) if one of them writes and different executors perform
them. A barrier is inserted as late as possible: before the first statement in conflict with an access since
the last barrier. In a straight line this gives the fewest barriers.

`Synchroniser` walks a program in this way; `barriers` and `block_barriers` say who performs which access.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from jax_cocktail.errors import VerificationError
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, UProgram, is_a
from jax_cocktail.utask.layout import Layout
from jax_cocktail.utask.operators import HALVES, UNWRITTEN
from jax_cocktail.utask.plan import MemoryPlan, Slot
from jax_cocktail.utask.rewrite import map_regions, with_body
from jax_cocktail.utask.types import Value

ROUNDS = 4  # over a loop body, until the accesses that cross its back edge no longer change

ALL = ("all",)
FIRST = ("first",)
Performer = tuple[str | int, ...]  # ALL, FIRST, or how the executors share the memory
Band = tuple[int, int, int]  # (period, first, end): bytes `first` to `end` of every `period` bytes

ARRIVE = UOperator("arrive", (), ())
WAIT = UOperator("wait", (), ())
BLOCK_BARRIER = UOperator("block_barrier", (), ())


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes `begin` to `end` of a memory space. With equal performers, the same executor touches the same
    bytes. `bands`: each covers all bytes touched, counted from `begin`."""

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


State = dict[Access, int]  # access not yet covered by a barrier -> position in the region; -1: before it


@dataclass(slots=True)
class _Barrier:
    """The position of the statement that it precedes. Its arrive precedes the one at `arrive`."""

    arrive: int
    wait: int


class Line:
    """The barriers found so far in one region. They do not overlap: arrive, wait, arrive, wait."""

    def __init__(self, state: Iterable[Access], barrier: UOperator) -> None:
        self.state = dict.fromkeys(state, -1)
        self.barrier = barrier
        self.split = barrier.kind in HALVES
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
        self.insert(position, [at for a, at in state if any(map(a.conflicts, by_space[a.space]))])

    def insert(self, position: int, hit: Collection[int]) -> None:
        """Inserts a barrier before the statement at `position` and after those at `hit`, if any."""
        if not hit:
            return
        arrive = max(hit) + 1 if self.split else position
        if self.barriers and arrive <= self.barriers[-1].wait:  # reuse the last one, with a later arrive
            self.barriers[-1].arrive = max(self.barriers[-1].arrive, arrive)
        else:
            self.barriers.append(_Barrier(max(self.floor, arrive), position))
            self.floor = position
        self.state = {a: at for a, at in self.state.items() if at >= self.barriers[-1].arrive}

    def add(self, position: int, accesses: Iterable[Access]) -> None:
        self.state.update(dict.fromkeys(accesses, position))

    def woven(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        before: list[list[Statement]] = [[] for _ in range(len(body) + 1)]
        for barrier in self.barriers:
            if self.split:
                before[barrier.arrive].append(ARRIVE)
            before[barrier.wait].append(self.barrier)
        out = [s for position, statement in enumerate(body) for s in (*before[position], statement)]
        return (*out, *before[len(body)])


class Synchroniser(ABC):
    """Inserts the barriers of one kind into a planned program.

    `barrier`: the operator to insert; for the half of a split barrier, an arrive precedes it. `alone`:
    performs what is not divided among the executors.
    """

    def __init__(self, plan: MemoryPlan, barrier: UOperator, alone: Performer = ALL) -> None:
        self.plan, self.barrier, self.alone = plan, barrier, alone
        self.layouts: Mapping[Value, Layout] = plan.layouts
        self._known: dict[int, tuple[Statement, list[Access]]] = {}  # by the statement's id()
        self._inside: dict[tuple[int, frozenset[Access]], tuple[Statement, State, Statement]] = {}

    def run(self, program: UProgram) -> UProgram:
        """Returns its argument if the program needs no barrier."""
        return map_regions(program, lambda r: self.region(r, {}, self._results(r.results))[0])

    # -- regions -----------------------------------------------------------------------------------------
    def region(self, region: Region, state: State, tail: Iterable[Access]) -> tuple[Region, State]:
        """The region with its barriers, and the accesses open after it. `tail`: copies at its end."""
        line = Line(state, self.barrier)
        body: list[Statement] = []
        for position, statement in enumerate(region.body):
            accesses = self.known_accesses(statement)
            line.begin(position, accesses)
            if self.enters(statement):
                after, left = self.nested(statement, line, position, dict.fromkeys(accesses, position))
                line.state = dict.fromkeys(left, position)
                if after is not statement:
                    line.floor = position + 1
                body.append(after)
            else:
                line.add(position, accesses)
                body.append(statement)
            if is_a(statement, WAIT.kind, BLOCK_BARRIER.kind):  # of the program: it covers all before it
                line.state = {}
        tail = list(tail)
        line.begin(len(region.body), tail)
        line.add(len(region.body), tail)
        return with_body(region, line.woven(tuple(body))), line.state

    def nested(self, statement: Statement, line: Line, position: int, own: State) -> tuple[Statement, State]:
        """The loop or branch at a position of a line, with its barriers. `own`: its accesses before them."""
        del position
        return self.inside(statement, line.state | own)

    def inside(self, statement: Statement, state: State) -> tuple[Statement, State]:
        """A loop or branch with its barriers, and the accesses open after it: found once for the accesses
        open before it, since the loops around it are walked several times."""
        key = id(statement), frozenset(state)
        if key not in self._inside:
            if isinstance(statement, LoopUTask):
                found = self._loop(statement, state)
            else:
                found = self._branch(statement, state)
            self._inside[key] = *found, statement  # which keeps its id() to itself
        return self._inside[key][:2]

    def _branch(self, statement: Statement, state: State) -> tuple[Statement, State]:
        left: State = {}

        def side(region: Region) -> Region:
            nonlocal left
            after, out = self.region(region, state, self.transfer(region.results, statement.outputs))
            left |= out
            return after

        return map_regions(statement, side), left

    def _loop(self, loop: LoopUTask, state: State) -> tuple[Statement, State]:
        """Walks the loop until the accesses on its back edge settle: `ends` reach the condition, `around` the
        body."""
        tail = tuple(self.transfer(loop.body.results, loop.carried))
        around: State = {}
        ends: State = {}
        for turn in range(2 * ROUNDS):
            condition, middle = loop.condition, {**state, **around}
            last = {**middle, **ends}
            if condition is not None:
                after, last = self.region(condition, last, ())
                middle = last if after is not condition else self.region(condition, middle, ())[1]
                condition = after
            body, out = self.region(loop.body, middle, tail)
            back = self.back(loop, body, middle, tail, out)
            if out.keys() <= ends.keys() and back.keys() <= around.keys():
                break
            settled = turn < ROUNDS
            around, ends = (back, out) if settled else ({**around, **back}, {**ends, **out})
        else:
            raise VerificationError(
                f"what crosses the back edge of a loop at {loop.source} does not settle in {2 * ROUNDS}"
                f" rounds; a fault of the pass that inserts {self.barrier.kind}, report it with the program"
            )
        if loop.condition is None:
            last = out if loop.trip_count else state
        same = condition is loop.condition and body is loop.body
        return loop if same else replace(loop, condition=condition, body=body), last

    def back(self, loop: LoopUTask, body: Region, middle: State, tail: Iterable[Access], out: State) -> State:
        """The accesses of `out` that are open when another iteration follows. `body`: with its barriers,
        walked from `middle`."""
        del loop, body, middle, tail
        return out

    # -- accesses ----------------------------------------------------------------------------------------
    def enters(self, statement: Statement) -> bool:
        """True for a loop or branch whose regions may need barriers."""
        return isinstance(statement, LoopUTask | BranchUTask)

    def known_accesses(self, statement: Statement) -> list[Access]:
        """The accesses of a statement, cached because loops are walked several times."""
        if id(statement) not in self._known:
            self._known[id(statement)] = statement, list(self.accesses(statement))
        return self._known[id(statement)][1]

    @abstractmethod
    def accesses(self, statement: Statement) -> Iterator[Access]:
        """The accesses of a statement itself; of a loop or branch, those before its regions."""

    def works(self, operator: UOperator) -> bool:
        """False for views, `empty` and constants: they touch no memory."""
        if not operator.outputs or operator.kind in UNWRITTEN:
            return False
        layout = self.layouts.get(operator.outputs[0])
        return layout is None or layout.root == operator.outputs[0]

    def transfer(self, sources: Iterable[Value], targets: Iterable[Value]) -> Iterator[Access]:
        """The copies of values to where they do not lie already."""
        for source, target in zip(sources, targets, strict=True):
            if target in self.layouts and target.type.size and not self.same(source, target):
                performer = self.alone if self.shared(target) else ALL
                yield from self.whole(source, False, performer)
                yield from self.whole(target, True, performer)

    def _results(self, values: Iterable[Value]) -> Iterator[Access]:
        """The copies of results that are not computed in place."""
        for position, value in enumerate(values):
            if value not in self.layouts or not value.type.size:
                continue
            if not (self.layouts[value].is_whole and self.plan.place(value) == Slot("output", position)):
                yield from self.whole(value, False, self.alone)
                yield Access(f"output {position}", 0, value.type.nbytes, True, self.alone)

    # -- memory ------------------------------------------------------------------------------------------
    def shared(self, value: Value) -> bool:
        """True if all units see the memory behind a value."""
        return value in self.layouts and self.plan.place(value).space not in ("own", "private", "thread")

    def same(self, source: Value, target: Value) -> bool:
        return source not in self.layouts or self.plan.same_place(source, target)

    def whole(
        self, value: Value, write: bool, performer: Performer = ALL, bands: tuple[Band, ...] = ()
    ) -> Iterator[Access]:
        """The whole memory behind a value. `bands`: the bytes touched, if fewer than the value shows."""
        if value in self.layouts and value.type.size:
            slot = self.plan.place(value)
            numbered = slot.space in ("input", "output", "constant")
            space, begin = (f"{slot.space} {slot.index}", 0) if numbered else (slot.space, slot.index)
            end = begin + self.layouts[value].root.type.nbytes
            yield Access(space, begin, end, write, performer, bands)
