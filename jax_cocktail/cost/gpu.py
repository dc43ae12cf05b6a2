"""The cost of a planned program on a GPU: this model ranks candidates where nothing is measured.

Every unit has a clock. A part of a parallel loop advances the clock of the unit that runs it, a statement at
device scope advances all clocks, and a barrier sets them to the latest one. `cost.kernel` says what the units
do. A statement takes the time of its chain of latencies, or that of its arithmetic or memory at their rates,
whichever is longest. Times of the hardware are those of a `DeviceSpec`, times of the generated text those of
a generation of `Templates`; a measurement always wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from jax_cocktail.cost.kernel import (
    Branch,
    Clock,
    Each,
    Kernel,
    LevelBytes,
    Node,
    Parts,
    Repeat,
    Sync,
    Work,
    co_resident,
    kernel_of,
    turns,
)
from jax_cocktail.cost.latency import clocks
from jax_cocktail.cost.unit_time import unit_seconds
from jax_cocktail.cost.vector import Price, Vector
from jax_cocktail.cost.work import once_stopped, trips
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.templates import ONE_WARP, TEMPLATES, Templates
from jax_cocktail.device.tuning import BLOCK, ELEMENTS
from jax_cocktail.device.unit import unit_of
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Statement, UProgram, by_threads, is_a
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.rewrite import Inside, fold

_SCHEDULERS = 4  # of a multiprocessor: each issues an instruction of one of its warps per clock


@dataclass(frozen=True, slots=True)
class Spent(Vector):
    """The cost of statements: seconds by unit, barriers and exchanges, bytes and flops."""

    clock: Clock
    barriers: float = 0.0
    bytes: LevelBytes = LevelBytes()
    flops: float = 0.0

    @property
    def seconds(self) -> float:
        return float(np.max(self.clock))

    def times(self, factor: float) -> Spent:
        """The cost of so many trips; units with a barrier in every trip wait for the slowest one in each."""
        clock = np.full_like(self.clock, self.seconds) if self.barriers else self.clock
        return replace(self, clock=clock) * factor


def gpu_price(
    program: UProgram,
    units: int,
    spec: DeviceSpec,
    plan: MemoryPlan | None = None,
    threads: int = BLOCK.threads,
) -> Price:
    """The price of one call of a planned program on that many units of a device, blocks of `threads`."""
    kernel = kernel_of(program, units, spec, plan, threads)
    return Price(call_seconds(kernel_spent(kernel, spec), kernel, spec))


def call_seconds(found: Spent, kernel: Kernel, spec: DeviceSpec) -> float:
    """Seconds of a kernel with its launch. Blocks of a cluster wait once before they write to each other's
    memory."""
    first = spec.cluster_barrier_seconds if kernel.cluster else BLOCK.cooperative_seconds
    meets = first if found.barriers and kernel.units > 1 else 0.0
    return found.seconds + spec.launch_seconds + BLOCK.ramp_seconds + meets


def kernel_spent(
    kernel: Kernel,
    spec: DeviceSpec,
    templates: Templates = TEMPLATES,
    unknown_trips: int | None = None,
) -> Spent:
    """The cost of one launch, with operands read from memory once. `unknown_trips`: of loops of unknown trip
    count, instead of those that prices assume."""
    spec = spec.in_cluster() if kernel.cluster else spec
    together = 1
    if not _crosses(kernel.nodes) or kernel.threads == spec.warp:
        together = co_resident(kernel.units, kernel.threads, kernel.shared, spec)
    units = max(min(kernel.units, spec.units * together), 1)
    if kernel.threads == spec.warp:
        templates, spec = templates.of_one_warp(), replace(spec, meet_clocks=ONE_WARP * spec.meet_clocks)
    sized = templates.sized(kernel.threads, together)
    timer = _Timer(spec, sized, unknown_trips, units, kernel.threads, together)
    sharers = min(units, spec.units) if any(isinstance(n, Parts | Each) for n in _all(kernel.nodes)) else 1
    rate = min(spec.memory_rate, 2 * sharers * spec.memory_rate / spec.units)
    loading = Spent(np.full(units, kernel.read / rate), bytes=LevelBytes(memory=kernel.read))
    return timer.all(kernel.nodes, alone=False) + loading


def _all(nodes: Iterable[Node]) -> Iterable[Node]:
    for node in nodes:
        yield node
        for side in node.sides if isinstance(node, Branch) else ():
            yield from _all(side)
        if isinstance(node, Repeat | Parts | Each):
            yield from _all(node.body)


def _crosses(nodes: Iterable[Node]) -> bool:
    return any(isinstance(node, Sync) for node in _all(nodes))


@dataclass(frozen=True, slots=True)
class _Timer:
    spec: DeviceSpec
    templates: Templates
    unknown_trips: int | None
    units: int
    block: int  # threads
    together: float  # blocks on one multiprocessor, which share its rates but not its latencies
    missing: float = 0.0  # share of arrays of threads that the nearest cache does not hold
    diverges: bool = False  # in trips of threads: the lanes of a warp may take all sides of a branch, in turn

    def all(self, nodes: Iterable[Node], alone: bool) -> Spent:
        found = self._each(0.0)
        for node in nodes:
            if isinstance(node, Sync):
                met = found.seconds + (self._sync(node) if self.units > 1 else 0.0)
                found = replace(found, clock=np.full(self.units, met), barriers=found.barriers + 1)
            else:
                found += self._one(node, alone)
        return found

    def _each(self, seconds: float) -> Spent:
        return Spent(np.full(self.units, seconds))

    def _clocks(self, **counts: float) -> float:
        return clocks(counts, self.templates, self.spec) / self.spec.clock_rate

    def _sync(self, node: Sync) -> float:
        """Seconds of a barrier, or until tagged words have arrived from all units. More units than
        multiprocessors arrive one after the other."""
        more = BLOCK.arrival_seconds * max(self.units - self.spec.units, 0)
        if node.words is None:
            return self.spec.barrier_seconds + more + self._clocks(publish=1)
        moved = BLOCK.tagged_bytes * node.words * self.spec.units / self.spec.l2_rate
        return self.spec.hop_seconds + more + moved + self._clocks(publish=1, words=1)

    def _one(self, node: Node, alone: bool) -> Spent:
        if isinstance(node, Work):
            return self._work(node, alone)
        if isinstance(node, Repeat):
            assumed = node.likely if self.unknown_trips is None else self.unknown_trips
            number = assumed if node.trips is None else node.trips
            return self.all(node.body, alone).times(once_stopped(number) if node.doubled else number)
        if isinstance(node, Branch):
            return self._branch(node, alone)
        if isinstance(node, Each):
            return self._threads(node)
        assert isinstance(node, Parts)
        one = self.all(node.body, alone=True)
        clock = turns(node.first, node.count, self.units) * one.seconds
        foreign = self._clocks(foreign=1) if node.count < self.units else 0.0
        return replace(one * node.count, clock=clock + foreign, barriers=one.barriers)

    def _threads(self, node: Each) -> Spent:
        """Warps hide the latency of each other, as long as their schedulers have time to issue."""
        near, rate = self._of_threads(node)
        warps = ceil(node.count / self.spec.warp / self.units)
        together = min(warps, self.block // self.spec.warp)
        busy = max(ELEMENTS.lone, together / _SCHEDULERS)
        timer = replace(self, diverges=True, together=busy, missing=1 - near)
        one = timer.all(node.body, alone=True)
        clock = one.clock * ceil(warps / together)
        clock = np.maximum(clock, node.bytes * node.count / self.spec.l2_rate)
        clock = np.maximum(clock, node.local * node.count / rate)
        return replace(one * node.count, clock=clock, barriers=0.0)

    def _of_threads(self, node: Each) -> tuple[float, float]:
        """The arrays that threads have for themselves, all of which share the caches: the share that the
        nearest ones hold, and bytes per second."""
        spec, threads = self.spec, min(node.count, self.units * self.block)
        held = max(node.own * threads, 1)
        near = min(1.0, spec.shared_per_unit * min(self.units, spec.units) / held)
        middle = min(1.0, spec.l2_bytes / held)
        far = middle / spec.l2_rate + (1 - middle) / spec.memory_rate
        return near, 1 / (near / spec.shared_rate + (1 - near) * far)

    def _branch(self, node: Branch, alone: bool) -> Spent:
        sides = [self.all(side, alone) for side in node.sides]
        if node.stage:
            return max(sides, key=lambda side: side.seconds)
        found = self._each(self._clocks(scalar=2))
        for side in sides:
            found += side if self.diverges else side.times(1 / len(sides))
        return found

    def _work(self, node: Work, alone: bool) -> Spent:
        latency = clocks(node.counts, self.templates, self.spec) / self.spec.clock_rate
        latency += self.missing * node.counts.get("near_load", 0) * self._clocks(far_load=1)
        busy = node.start + (node.seconds - node.start) * self.together
        clock = np.full(self.units, max(latency, busy))
        units = 1 if alone else self.units
        return Spent(clock, 0.0, node.bytes * units, node.flops * units)


def statement_seconds(program: UProgram, units: int, spec: DeviceSpec, threads: int) -> dict[int, float]:
    """Seconds of one execution of each statement of a planned program, by its identity: those of one unit,
    at its rates. What is inside a parallel loop is priced for one trip."""
    found: dict[int, float] = {}
    unit = unit_of(spec, threads)

    def each(s: Statement, inside: Inside[float]) -> float:
        seconds = sum(map(sum, inside))
        if isinstance(s, LoopUTask):
            shared = max(units, 1) * (threads if by_threads(s) else 1) if s.parallel else 1
            seconds *= ceil(trips(s) / shared)
        elif isinstance(s, BranchUTask):
            seconds /= len(inside)
        elif is_a(s, "wait"):
            seconds = spec.barrier_seconds
        elif is_a(s, "exchange"):
            seconds = spec.hop_seconds
        else:
            seconds = unit_seconds((s,), unit)
        found[id(s)] = seconds
        return seconds

    for statement in program.entry.body:
        fold(statement, each)
    return found


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
