"""The kernel of a planned program, as the cost model sees it: a tree of what its units do.

The tree depends on the program, on its memory plan and on the card's sizes and rates, but not on how fast the
templates are: `cost.gpu` prices it. A record of measured times keeps such trees, so that the model can be
compared with it after the planner and the templates have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from jax_cocktail.cost.footprint import piece
from jax_cocktail.cost.latency import (
    ArrayPlaces,
    Counts,
    copy_counts,
    counts_alone,
    counts_of,
    counts_unrolled,
)
from jax_cocktail.cost.straight import straight
from jax_cocktail.cost.unit_time import WHOLE, operand_bytes, operator_seconds, start_seconds
from jax_cocktail.cost.vector import Vector
from jax_cocktail.cost.work import may_stop_inside, runs, work
from jax_cocktail.device.block import Block
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.tuning import BLOCK, ELEMENTS, MODEL, PROGRAM
from jax_cocktail.device.unit import Unit, unit_of
from jax_cocktail.utask.exchange import anything_crosses, value_words
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    by_threads,
    is_a,
    is_parallel,
    operators_in,
    operators_of,
    walk,
)
from jax_cocktail.utask.layout import row_major
from jax_cocktail.utask.operators import FREE
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.rewrite import Inside, fold
from jax_cocktail.utask.types import Value

Clock = npt.NDArray[np.float64]  # by unit


@dataclass(frozen=True, slots=True)
class LevelBytes(Vector):
    """Bytes that one call moves, by level of memory, all units together."""

    shared: float = 0.0
    l2: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """A statement, as one unit executes it. `counts`: links of its chain of latencies (see `cost.latency`);
    `seconds`: of its arithmetic or of its memory, whichever is longer, at their rates; `start`: those of them
    in which other blocks of the multiprocessor have these rates."""

    counts: Mapping[str, float]
    seconds: float = 0.0
    bytes: LevelBytes = LevelBytes()
    flops: float = 0.0
    start: float = 0.0


@dataclass(frozen=True, slots=True)
class Sync:
    """A barrier of all units; `words`: an exchange of so many tagged words."""

    words: int | None = None


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop; `trips` is None if the number is known only at run time, and then prices assume `likely`.
    `doubled`: it may stop inside a trip (see `cost.work`)."""

    body: Nodes
    trips: int | None
    doubled: bool = False
    likely: int = MODEL.unknown_trips


@dataclass(frozen=True, slots=True)
class Parts:
    """A parallel loop of `count` parts, the first of which unit `first` runs."""

    body: Nodes
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Each:
    """A loop of `count` trips that the threads of all units share, each of which runs a trip alone. `bytes`:
    of arrays, which a trip reads and writes; `local`: the same of arrays that each thread has for itself, in
    `own` bytes."""

    body: Nodes
    count: int
    bytes: float = 0.0
    local: float = 0.0
    own: int = 0


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch. `stage`: of a wavefront, which idles at the ends only."""

    sides: tuple[Nodes, ...]
    stage: bool


Node = Work | Sync | Repeat | Parts | Each | Branch
Nodes = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """The nodes of a program, on so many units. `read`: bytes of operands; `shared`: of a block's shared
    memory; `cluster`: the units are one; `threads`: of a block."""

    nodes: Nodes
    units: int
    read: int = 0
    shared: int = 0
    cluster: bool = False
    threads: int = BLOCK.threads


def kernel_of(
    program: UProgram,
    units: int,
    spec: DeviceSpec,
    plan: MemoryPlan | None = None,
    threads: int = BLOCK.threads,
) -> Kernel:
    """The kernel of a planned program, with blocks of so many threads.

    `plan`: determines the data in shared memory. Without a plan, or if no unit waits for another, so that the
    first-level cache is never emptied, all data that fits stays there.
    """
    shared = 0 if plan is None else plan.resident_bytes + plan.own_bytes + plan.template_bytes
    crosses = units > 1 and anything_crosses(operators_in(program.entry))
    together = 1
    if not crosses or threads == spec.warp:
        if plan is not None and units > 1:  # a launch has a block for each unit that finds work
            units = max(units, plan.most_units)
        together = co_resident(units, threads, shared, spec)
    unit = unit_of(spec, threads, together)
    if plan is not None and crosses:
        unit = replace(unit, near=min(unit.near, plan.resident_bytes + plan.own_bytes))
    outlined = outlines_loops(program)
    own, block, places = _own_values(program, plan), spec.block(threads), spec.units * together
    walker = _Walker(spec, unit, max(units, 1), crosses, plan, own, outlined, block, places)
    read = sum(v.type.nbytes for v in program.entry.parameters)
    nodes = walker.region(program.entry, _Context())
    return Kernel(nodes, walker.units, read, shared, plan is not None and plan.cluster, threads)


def co_resident(units: int, threads: int, shared: int, spec: DeviceSpec) -> int:
    """Blocks of a kernel, without barriers or of one warp each, that run side by side on one multiprocessor.
    `shared`: bytes of shared memory of each."""
    registers = min(BLOCK.usual_registers, spec.most_registers(threads))
    return max(1, min(spec.resident_units(threads, registers, shared), units // spec.units))


def outlines_loops(program: UProgram, most: int = PROGRAM.outlined_loops) -> bool:
    """True if the lane loops of a planned program become functions: it has more than so many."""
    groups = (s for s in walk(program.entry) if isinstance(s, StitchedUTask))
    loops = sum(not any(v.type.is_scalar for v in group.outputs) for group in groups)
    return loops > most


def _pieces(region: Region, counts: Callable[[Value], bool]) -> float:
    """Bytes of arrays that one run of a region reads and writes by pieces. `counts`: which arrays."""

    def each(s: Statement, inside: Inside[float]) -> float:
        if isinstance(s, UOperator):
            part = piece(s)
            return 0.0 if part is None or not counts(s.inputs[0]) else float(part.type.nbytes)
        found = sum(map(sum, inside), 0.0)
        if isinstance(s, BranchUTask):
            return found / len(inside)
        return found * (runs(s) if isinstance(s, LoopUTask) else 1)

    return sum(fold(s, each) for s in region.body)


def turns(first: int, parts: int, units: int) -> Clock:
    """The number of parts that each unit runs; unit `first` runs part 0."""
    found = np.zeros(units)
    for part in range(min(parts, units)):
        found[(first + part) % units] += ceil((parts - part) / units)
    return found


@dataclass(frozen=True, slots=True)
class _Context:
    """The context of a statement. `alone`: one unit runs it as its part; `by_thread`: a thread does; `far`:
    values that other units write again in every trip, and views of them; `again`: the trips of enclosing
    loops re-read all other data, and `near` is the share of it that stays in shared memory."""

    alone: bool = False
    by_thread: bool = False
    again: bool = False
    far: frozenset[Value] = field(default=frozenset())
    near: float = 0.0


@dataclass(frozen=True, slots=True)
class _Walker:
    spec: DeviceSpec
    unit: Unit
    units: int
    crosses: bool
    plan: MemoryPlan | None
    own: frozenset[Value]  # values that every unit has in its own memory
    outlined: bool
    block: Block
    places: int  # blocks that run side by side, at most

    def region(self, region: Region, context: _Context) -> Nodes:
        context = replace(context, near=self._near(region.body, context))
        kept = [s for s in region.body if not is_a(s, "arrive")]
        if context.by_thread:
            return tuple(self._thread(kept, context))
        return tuple(node for s in kept for node in self._statement(s, context))

    def _near(self, statements: Sequence[Statement], context: _Context) -> float:
        """The share of the repeatedly read data of the statements that shared memory holds."""
        if not context.again:
            return 0.0
        held = _Held(context)
        held.collect(statements, None)
        return self.unit.near_share(held.most(min(self.units, self.places)))

    # -- statements --------------------------------------------------------------------------------------
    def _statement(self, statement: Statement, context: _Context) -> Nodes:
        if by_threads(statement):
            nodes = self.region(statement.body, replace(context, alone=True, by_thread=True))
            outside = _pieces(statement.body, lambda v: not self._is_local(v))
            local = _pieces(statement.body, self._is_local)
            own = 0 if self.plan is None else self.plan.thread_bytes
            return (Each(nodes, statement.trip_count or 0, outside, local, own),)
        if is_parallel(statement) and not context.alone:
            return (self._parts(statement, context),)
        if isinstance(statement, LoopUTask) and context.by_thread and self._unrolls(statement):
            members = [m for s in statement.body.body for m in operators_of(s)]
            counts = counts_unrolled(members, statement.trip_count or 0, statement.carried)
            return (self._issued(counts, counts["scalar"]),)
        if isinstance(statement, LoopUTask):
            first = self._copies(statement.initial, statement.carried, context)
            return (*first, self._loop(statement, context))
        return (self._other(statement, context),)

    def _thread(self, statements: Sequence[Statement], context: _Context) -> Iterator[Node]:
        """Loops and branches of one thread, and the straight code between them."""
        memory, run = self._memory(context), list[UOperator | StitchedUTask]()
        for statement in (*statements, None):
            if isinstance(statement, UOperator | StitchedUTask):
                run.append(statement)
                continue
            if run:
                work = self._issued(*straight(run, lambda operator: self._counts(operator, memory)))
                busy = [self._rates(each, context) for each in run]
                moved = sum((each.bytes for each in busy), LevelBytes())
                yield replace(work, bytes=moved, flops=sum(each.flops for each in busy))
                run = []
            if statement is not None:
                yield from self._statement(statement, context)

    def _issued(self, chain: Counts, operations: float) -> Work:
        """Straight code of a thread. `chain`: the links of its longest chain."""
        links = {**chain, "scalar": chain["scalar"] * ELEMENTS.chain}
        return Work(links, operations * ELEMENTS.issue_clocks / self.spec.clock_rate)

    def _counts(self, statement: UOperator | StitchedUTask, memory: ArrayPlaces) -> Counts:
        """The links of its chain: on arrays of one thread, those of a thread."""
        members = [m for m in operators_of(statement) if m.kind != "arrive"]
        arrays = _arrays(members)
        if arrays and all(map(self._is_local, arrays)):
            return counts_alone(members)
        return counts_of(statement, memory)

    def _unrolls(self, loop: LoopUTask) -> bool:
        """True for a short loop of a thread on numbers and arrays of its own, which compilers unroll."""
        if loop.trip_count is None or loop.trip_count > MODEL.unrolled_trips:
            return False
        if any(isinstance(s, LoopUTask | BranchUTask) for s in loop.body.body):
            return False
        members = [m for s in loop.body.body for m in operators_of(s)]
        values = _arrays(members)
        return bool(values) and all(map(self._is_local, values))

    def _is_local(self, value: Value) -> bool:
        """True for an array that each thread has for itself."""
        known = self.plan is not None and value in self.plan.layouts
        return known and self.plan is not None and self.plan.slot(value).space == "thread"

    def _other(self, statement: Statement, context: _Context) -> Node:
        if isinstance(statement, BranchUTask):
            sides = tuple(self.region(region, context) for region in statement.branches)
            return Branch(sides, statement.stage is not None)
        if is_a(statement, "wait"):
            return Sync()
        if is_a(statement, "exchange"):
            return Sync(value_words(statement))
        if is_a(statement, "block_barrier"):
            return Work({"meet": 1})
        assert isinstance(statement, UOperator | StitchedUTask)
        return self._leaf(statement, context)

    def _loop(self, loop: LoopUTask, context: _Context) -> Node:
        written = set(loop.carried) - self.own if not context.alone else set()
        if not context.alone:
            written |= {v for s in walk(loop.body) if is_parallel(s) for v in s.outputs}
        inside = replace(context, again=True, far=context.far | _views(loop.body, written))
        nodes: list[Node] = [Work({"scalar": 2}), *self._copies(loop.body.results, loop.carried, inside)]
        for region in loop.regions:
            nodes += self.region(region, inside)
        return Repeat(tuple(nodes), loop.trip_count, may_stop_inside(loop), runs(loop))

    def _copies(self, values: Iterable[Value], targets: Iterable[Value], context: _Context) -> list[Work]:
        """Copies between the arrays that a region leaves and those that the next trip reads."""
        if self.plan is None:
            return []
        known, memory = self.plan.layouts, self._memory(context)
        pairs = ((a, b) for a, b in zip(values, targets, strict=True) if a in known and b in known)
        return [Work(copy_counts(a, memory)) for a, b in pairs if not self.plan.same_place(a, b)]

    def _parts(self, loop: LoopUTask, context: _Context) -> Node:
        far = context.far | _views(loop.body, context.far)
        nodes = self.region(loop.body, replace(context, alone=True, far=far))
        return Parts(nodes, loop.first, loop.trip_count or 0)

    def _leaf(self, statement: UOperator | StitchedUTask, context: _Context) -> Work:
        return replace(self._rates(statement, context), counts=self._counts(statement, self._memory(context)))

    def _rates(self, statement: UOperator | StitchedUTask, context: _Context) -> Work:
        """The work of a statement at the rates of arithmetic and of memory: none on numbers and on arrays of
        one thread."""
        members = [m for m in operators_of(statement) if m.kind != "arrive"]
        if all(map(self._is_local, _arrays(members))):
            return Work({})
        seconds, moved, flops, start = 0.0, LevelBytes(), 0.0, sum(map(start_seconds, members))
        for member in members:
            sizes = operand_bytes(member)
            far = sum(size for v, size in sizes.items() if v in context.far)
            near = context.near * (sum(sizes.values()) - far)
            far = sum(sizes.values()) - near
            taken = operator_seconds(member, self.unit, WHOLE, inf)
            seconds += max(taken, far / self.unit.far_rate + near / self.unit.near_rate)
            moved += LevelBytes(shared=near, l2=far)
            flops += work(member).flops
        return Work({}, seconds, moved, flops, min(start, seconds))

    def _memory(self, context: _Context) -> ArrayPlaces:
        room = BLOCK.dot_bytes if self.plan is None else self.plan.template_bytes
        layouts = {} if self.plan is None else self.plan.layouts

        def is_far(value: Value) -> bool:
            if context.again and not self.crosses:  # the first-level cache keeps it
                return False
            if self.plan is None:
                return value in context.far or not context.again
            slot = self.plan.slots.get(layouts[value].root) if value in layouts else None
            near = slot is None or slot.space in ("own", "thread", "constant") or slot in self.plan.parts
            return not near

        def strides(value: Value) -> tuple[int, ...]:
            return layouts[value].strides if value in layouts else row_major(value.type.shape)

        holds = context.again and not self.outlined
        return ArrayPlaces(is_far, strides, room, self.outlined, holds, self.block)


def _arrays(members: Iterable[UOperator]) -> set[Value]:
    """The arrays that operators read or make; those of one element are numbers."""
    return {v for m in members for v in (*m.inputs, *m.outputs) if v.type.size > 1}


def _own_values(program: UProgram, plan: MemoryPlan | None) -> frozenset[Value]:
    """Values that every unit has in its own memory; without a plan, carries that are received whole."""
    if plan is None:
        exchanges = (o for o in operators_in(program.entry) if o.kind == "exchange")
        received = {value for each in exchanges for value in each.outputs}
        loops = (s for s in walk(program.entry) if isinstance(s, LoopUTask))
        pairs = (pair for s in loops for pair in zip(s.carried, s.body.results, strict=True))
        return frozenset(carry for carry, value in pairs if value in received)
    slots = ((v, plan.slots.get(layout.root)) for v, layout in plan.layouts.items())
    return frozenset(v for v, slot in slots if slot is not None and slot.space in ("own", "private"))


class _Held:
    """The data that each unit reads in one execution of statements, and would read again in the next."""

    def __init__(self, context: _Context) -> None:
        self.context = context
        self.roots: dict[Value, Value] = {}
        self.sizes: dict[tuple[int, int] | None, dict[tuple[Value, float], float]] = {}

    def collect(self, statements: Iterable[Statement], owners: tuple[int, int] | None) -> None:
        """`owners`: first unit and number of parts, if each unit reads its part; None: each reads all.
        Sequential loops are left out, since each of their regions is asked about by itself."""
        for statement in statements:
            if is_parallel(statement) and not self.context.alone:
                self.collect(statement.body.body, (statement.first, statement.trip_count or 0))
            elif isinstance(statement, BranchUTask):
                for region in statement.branches:
                    self.collect(region.body, owners)
            for member in operators_of(statement):
                if member.kind in FREE and member.inputs:
                    self.roots[member.output] = self.roots.get(member.inputs[0], member.inputs[0])
                for value, size in operand_bytes(member).items():
                    root = self.roots.get(value, value)
                    if root not in self.context.far:
                        self.sizes.setdefault(owners, {})[root, size] = size

    def most(self, units: int) -> float:
        """Bytes of the unit that reads most."""
        held = np.zeros(units)
        for owners, sizes in self.sizes.items():
            each = np.ones(units) if owners is None else turns(*owners, units)
            held += each * sum(sizes.values())
        return float(np.max(held))


def _views(region: Region, roots: set[Value] | frozenset[Value]) -> frozenset[Value]:
    """The roots and all views of them in a region, nested regions included."""
    found = set(roots)
    for operator in operators_in(region):
        if operator.kind in FREE and not found.isdisjoint(operator.inputs[:1]):
            found.update(operator.outputs)
    return frozenset(found)
