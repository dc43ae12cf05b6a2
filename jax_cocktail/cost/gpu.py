"""The cost of a planned program on a GPU: this model ranks candidates where nothing is measured.

Every unit has a clock. A part of a parallel loop advances the clock of the unit that runs it, a statement at
device scope advances all clocks, and a barrier sets them to the latest one. A statement takes the time of its
arithmetic or of its memory, whichever is longer (`cost.unit_time`). Memory is shared memory if that holds the
data that iterations read repeatedly, and L2 for data that other units wrote since. Units, levels and rates
are those of a `DeviceSpec`; a measurement always wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from jax_cocktail.cost.unit_time import WHOLE as ALL
from jax_cocktail.cost.unit_time import (
    Unit,
    device_flops,
    operand_bytes,
    operator_seconds,
    unit_of,
    unit_seconds,
)
from jax_cocktail.cost.value import Price
from jax_cocktail.cost.work import trips, work
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.exchange import value_words
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    is_a,
    operators_in,
    operators_of,
    walk,
)
from jax_cocktail.utask.operators import BARRIERS, FREE
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.rewrite import Inside, fold
from jax_cocktail.utask.types import Value

Clock = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Levels:
    """Bytes that one call moves, by level of memory, all units together."""

    shared: float = 0.0
    l2: float = 0.0
    memory: float = 0.0

    def __add__(self, other: Levels) -> Levels:
        return Levels(self.shared + other.shared, self.l2 + other.l2, self.memory + other.memory)

    def __mul__(self, factor: float) -> Levels:
        return Levels(self.shared * factor, self.l2 * factor, self.memory * factor)


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of statements: seconds by unit, barriers and exchanges, bytes and flops. `arithmetic`: seconds
    of the flops alone if the whole device did nothing else."""

    clock: Clock
    barriers: float = 0.0
    bytes: Levels = Levels()
    flops: float = 0.0
    arithmetic: float = 0.0

    @property
    def seconds(self) -> float:
        return float(self.clock.max())

    def then(self, other: Spent) -> Spent:
        return Spent(
            self.clock + other.clock,
            self.barriers + other.barriers,
            self.bytes + other.bytes,
            self.flops + other.flops,
            self.arithmetic + other.arithmetic,
        )

    def times(self, factor: float) -> Spent:
        """The cost of so many trips; units with a barrier in every trip wait for the slowest one in each."""
        clock = np.full_like(self.clock, self.seconds) if self.barriers else self.clock
        return self.scaled(factor, clock * factor, self.barriers * factor)

    def scaled(self, factor: float, clock: Clock, barriers: float) -> Spent:
        """So many times the bytes and flops, with another clock."""
        return Spent(clock, barriers, self.bytes * factor, self.flops * factor, self.arithmetic * factor)


def gpu_price(program: UProgram, units: int, spec: DeviceSpec, plan: MemoryPlan | None = None) -> Price:
    """The price of one call of a planned program on that many units of a device."""
    return Price(call_seconds(spent(program, units, spec, plan), units, spec, plan))


def call_seconds(found: Spent, units: int, spec: DeviceSpec, plan: MemoryPlan | None = None) -> float:
    """Seconds with the launch. Blocks of a cluster wait once before they write to each other's memory."""
    first = BLOCK.cooperative_seconds if plan is None or not plan.cluster else spec.cluster_barrier_seconds
    meets = first if found.barriers and units > 1 else 0.0
    return found.seconds + spec.launch_seconds + BLOCK.ramp_seconds + meets


def seen_by_units(spec: DeviceSpec, plan: MemoryPlan | None) -> DeviceSpec:
    """The device as the units of a planned program see it: those of a cluster are near each other."""
    return spec.in_cluster() if plan is not None and plan.cluster else spec


def spent(program: UProgram, units: int, spec: DeviceSpec, plan: MemoryPlan | None = None) -> Spent:
    """The cost of one launch of a planned program, with operands read from memory once.

    `plan`: determines the data in shared memory. Without a plan, or if no unit waits for another, so that the
    first-level cache is never emptied, all data that fits stays there.
    """
    spec = seen_by_units(spec, plan)
    unit = unit_of(spec)
    if plan is not None and any(o.kind in BARRIERS for o in operators_in(program.entry)):
        unit = replace(unit, near=min(unit.near, plan.resident_bytes + plan.own_bytes))
    walker = _Walker(spec, unit, max(min(units, spec.units), 1), _own_values(program, plan))
    read = float(sum(v.type.nbytes for v in program.entry.parameters))
    found = walker.region(program.entry, _Place())
    sharers = walker.units if any(isinstance(s, LoopUTask) and s.parallel for s in walk(program.entry)) else 1
    rate = min(spec.memory_rate, 2 * sharers * spec.memory_rate / spec.units)
    loading = Spent(np.full(walker.units, read / rate), bytes=Levels(memory=read))
    return found.then(loading)


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a statement. `alone`: one unit runs it as its part; `far`: values that other units write
    again in every trip, and views of them; `again`: the trips of enclosing loops re-read all other data, and
    `near` is the share of it that stays in shared memory."""

    alone: bool = False
    again: bool = False
    far: frozenset[Value] = field(default=frozenset())
    near: float = 0.0


@dataclass(frozen=True, slots=True)
class _Walker:
    spec: DeviceSpec
    unit: Unit
    units: int
    own: frozenset[Value] = frozenset()  # values that every unit has in its own memory

    def region(self, region: Region, place: _Place) -> Spent:
        place = replace(place, near=self._near(region.body, place))
        found = self._nothing()
        for statement in region.body:
            if is_a(statement, "wait", "exchange"):
                met = found.seconds + (self._crossing(statement) if self.units > 1 else 0.0)
                found = replace(found, clock=np.full(self.units, met), barriers=found.barriers + 1)
            else:
                found = found.then(self._statement(statement, place))
        return found

    def _crossing(self, operator: UOperator) -> float:
        """Seconds of a barrier, or until tagged words have arrived from all units."""
        if operator.kind == "wait":
            return self.spec.barrier_seconds
        return self.spec.hop_seconds + BLOCK.tagged_bytes * value_words(operator) / self.unit.far_rate

    def _nothing(self) -> Spent:
        return Spent(np.zeros(self.units))

    def _near(self, statements: Sequence[Statement], place: _Place) -> float:
        """The share of the repeatedly read data of the statements that shared memory holds."""
        if not place.again:
            return 0.0
        held = _Held(place)
        held.collect(statements, None)
        return self.unit.near_share(held.most(self.units))

    # -- statements --------------------------------------------------------------------------------------
    def _statement(self, statement: Statement, place: _Place) -> Spent:
        if isinstance(statement, LoopUTask):
            parts = statement.parallel and not place.alone
            return self._parts(statement, place) if parts else self._loop(statement, place)
        if isinstance(statement, BranchUTask):
            return self._branch(statement, place)
        return self._leaf(statement, place)

    def _all(self, seconds: float) -> Spent:
        return Spent(np.full(self.units, seconds))

    def _loop(self, loop: LoopUTask, place: _Place) -> Spent:
        written = set(loop.carried) - self.own if not place.alone else set()
        if not place.alone:
            inner = (s for s in walk(loop.body) if isinstance(s, LoopUTask) and s.parallel)
            written |= {v for s in inner for v in s.outputs}
        inside = replace(place, again=True, far=place.far | _views(loop.body, written))
        once = self._all(2 * BLOCK.scalar_seconds)
        for region in loop.regions:
            once = once.then(self.region(region, inside))
        return once.times(trips(loop))

    def _parts(self, loop: LoopUTask, place: _Place) -> Spent:
        count = loop.trip_count or 0
        far = _views(loop.body, place.far)
        one = self.region(loop.body, replace(place, alone=True, far=far | place.far))
        late = BLOCK.far_seconds if any(v in far | place.far for v in _operands(loop.body)) else 0.0
        clock = _turns(loop.first, count, self.units) * (one.seconds + late)
        return one.scaled(count, clock, one.barriers)

    def _branch(self, branch: BranchUTask, place: _Place) -> Spent:
        sides = [self.region(region, place) for region in branch.branches]
        if branch.stage is not None:  # a stage of a pipeline: it idles at the ends only
            return max(sides, key=lambda side: side.seconds)
        found = self._all(2 * BLOCK.scalar_seconds)
        for side in sides:
            found = found.then(side.times(1 / len(sides)))
        return found

    def _leaf(self, statement: UOperator | StitchedUTask, place: _Place) -> Spent:
        members = [m for m in operators_of(statement) if m.kind != "arrive"]
        arrays = any(v.type.size > 1 for m in members for v in (*m.inputs, *m.outputs))
        if not arrays:
            return self._all(BLOCK.scalar_seconds * sum(_cost(m) for m in members))
        seconds = BLOCK.statement_seconds if any(m.kind not in FREE for m in members) else 0.0
        moved, flops, arithmetic = Levels(), 0.0, 0.0
        for member in members:
            sizes = operand_bytes(member)
            far = sum(size for v, size in sizes.items() if v in place.far)
            near = place.near * (sum(sizes.values()) - far)
            far = sum(sizes.values()) - near
            taken = operator_seconds(member, self.unit, ALL, inf)
            seconds += max(taken, far / self.unit.far_rate + near / self.unit.near_rate)
            moved += Levels(shared=near, l2=far)
            flops += work(member).flops
            arithmetic += work(member).flops / device_flops(member, self.spec)
        factor = 1 if place.alone else self.units
        clock = np.full(self.units, seconds)
        return Spent(clock, 0.0, moved, flops, arithmetic).scaled(factor, clock, 0.0)


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

    def __init__(self, place: _Place) -> None:
        self.place = place
        self.roots: dict[Value, Value] = {}
        self.sizes: dict[tuple[int, int] | None, dict[tuple[Value, float], float]] = {}

    def collect(self, statements: Sequence[Statement], owners: tuple[int, int] | None) -> None:
        """`owners`: first unit and number of parts, if each unit reads its part; None: each reads all.
        Sequential loops are left out, since each of their regions is asked about by itself."""
        for statement in statements:
            if isinstance(statement, LoopUTask):
                if statement.parallel and not self.place.alone:
                    self.collect(statement.body.body, (statement.first, statement.trip_count or 0))
            elif isinstance(statement, BranchUTask):
                for region in statement.branches:
                    self.collect(region.body, owners)
            for member in operators_of(statement):
                if member.kind in FREE and member.inputs:
                    self.roots[member.output] = self.roots.get(member.inputs[0], member.inputs[0])
                for value, size in operand_bytes(member).items():
                    root = self.roots.get(value, value)
                    if root not in self.place.far:
                        self.sizes.setdefault(owners, {})[root, size] = size

    def most(self, units: int) -> float:
        """Bytes of the unit that reads most."""
        held = np.zeros(units)
        for owners, sizes in self.sizes.items():
            turns = np.ones(units) if owners is None else _turns(*owners, units)
            held += turns * sum(sizes.values())
        return float(held.max())


def _turns(first: int, parts: int, units: int) -> Clock:
    """The number of parts that each unit runs."""
    found = np.zeros(units)
    for part in range(min(parts, units)):
        found[(first + part) % units] += ceil((parts - part) / units)
    return found


def _operands(region: Region) -> set[Value]:
    """The values that operators in a region and under its guards read, nested loops excluded."""
    found = {v for s in region.body for m in operators_of(s) for v in m.inputs}
    guarded = (inner for s in region.body if isinstance(s, BranchUTask) for inner in s.branches)
    return found.union(*map(_operands, guarded))


def _views(region: Region, roots: set[Value] | frozenset[Value]) -> frozenset[Value]:
    """The roots and all views of them in a region, nested regions included."""
    found = set(roots)
    for operator in operators_in(region):
        if operator.kind in FREE and not found.isdisjoint(operator.inputs[:1]):
            found.update(operator.outputs)
    return frozenset(found)


def _cost(operator: UOperator) -> float:
    return 0.0 if operator.kind in FREE else float(operator.facts.cost)


def spread_seconds(statement: Statement, units: int, spec: DeviceSpec) -> float:
    """Seconds of one execution of a statement before planning, by the usual choice for its operators: one
    unit, or all units and a barrier, whichever is faster."""
    unit = unit_of(spec)
    crossing = spec.barrier_seconds + 2 * BLOCK.far_seconds

    def each(s: Statement, inside: Inside[float]) -> float:
        if isinstance(s, LoopUTask):
            return sum(map(sum, inside)) * trips(s)
        if isinstance(s, BranchUTask):
            return sum(map(sum, inside)) / len(inside)
        alone = unit_seconds((s,), unit)
        return min(alone, alone / max(units, 1) + crossing)

    return fold(statement, each)
