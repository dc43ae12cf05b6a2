"""Finds persistent weights: arrays whose slices stay in the near memory of the units that own them.

An array qualifies if only parallel loops touch it, iteration i touches slice i alone, and all these loops
have the same number of iterations on the same units: packed weights, and state that no other unit reads. On
a GPU such a slice lies in the shared memory of its block, from the iteration that writes it to the last one
that reads it (the persistent kernels of Diamos et al., ICML'16, keep their weights likewise).

Each unit owns at most one slice of an array: loops have no more iterations than there are units, and do not
wrap around (the kernel that keeps slices runs on exactly the planned number of units). Arrays of different
units may have the same address, each in its units' memory: the stages of a wavefront.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from jax_cocktail.analysis.parallel import scalar_constants, tile_access
from jax_cocktail.schedule.memory.packing import first_gap
from jax_cocktail.schedule.memory.plan import aligned
from jax_cocktail.utask.exchange import blocks_of
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UProgram,
    by_threads,
    is_a,
    reads,
)
from jax_cocktail.utask.plan import MemoryPlan, Part, Slot
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class Owners:
    """Only unit `first` + i touches slice i of `count`."""

    count: int
    first: int

    def meets(self, other: Owners) -> bool:
        return self.first < other.first + other.count and other.first < self.first + self.count


@dataclass(frozen=True, slots=True)
class Residency:
    """`parts`: buffers whose slices stay with their units; `refused`: all other buffers of the workspace,
    with the reason."""

    parts: Mapping[Slot, Part]
    refused: Mapping[Slot, str]


def residency(program: UProgram, plan: MemoryPlan, capacity: int) -> MemoryPlan:
    """The plan with `parts`: buffers of the workspace whose slices fit in `capacity` bytes per unit."""
    parts = find_residency(program, plan, capacity).parts
    return replace(plan, parts=parts) if parts else plan


def find_residency(program: UProgram, plan: MemoryPlan, capacity: int) -> Residency:
    """The buffers that fit; those touched most often come first."""
    if plan.most_units <= 1:
        return Residency({}, {})
    survey = _Survey(plan, scalar_constants(program.entry))
    survey.region(program.entry, 1)
    survey.refuse(program.entry.results, "it is a result")
    refused = dict(survey.refused)
    parts: dict[Slot, Part] = {}
    placed: list[tuple[Owners, int, int]] = []  # owners, and the interval of their slices
    for slot in sorted(survey.owners, key=lambda s: (-survey.touches[s], s.index)):
        owners, size = survey.owners[slot], survey.bytes[slot]
        reason = _hindrance(slot, owners, plan, survey.bytes)
        need = aligned(-(-size // owners.count))
        begin = first_gap(need, ((low, high) for o, low, high in placed if o.meets(owners)))
        if not reason and begin + need > capacity:
            reason = f"no room for {need} bytes more behind {begin} of {capacity}"
        if reason:
            refused[slot] = reason
            continue
        placed.append((owners, begin, begin + need))
        parts[slot] = Part(begin, size // owners.count, owners.first)
    return Residency(parts, refused)


def _hindrance(slot: Slot, owners: Owners, plan: MemoryPlan, sizes: Mapping[Slot, int]) -> str:
    """The reason other than capacity why the slices cannot stay with their units; or ""."""
    if owners.first + owners.count > plan.most_units:
        return f"its last slices wrap around: {owners.count} from unit {owners.first} on of {plan.most_units}"
    end = slot.index + sizes[slot]
    if any(s != slot and s.index < end and slot.index < s.index + n for s, n in sizes.items()):
        return "another buffer uses the same memory at another time"
    return ""


class _Survey:
    """Finds the buffers of the workspace that are touched by slices alone, with owners and counts."""

    def __init__(self, plan: MemoryPlan, constants: Mapping[Value, int]) -> None:
        self.plan, self.constants = plan, constants
        self.owners: dict[Slot, Owners] = {}
        self.refused: dict[Slot, str] = {}
        self.bytes: dict[Slot, int] = {}
        self.touches: dict[Slot, int] = {}
        self.sizes: dict[Slot, int] = {}  # bytes of values touched by slices
        for value in plan.layouts:
            self._slot(value)

    def region(self, region: Region, trips: int) -> None:
        """`trips`: number of times that it runs."""
        for statement in region.body:
            self._statement(statement, trips)

    def _statement(self, statement: Statement, trips: int) -> None:
        if isinstance(statement, LoopUTask):
            self._loop(statement, trips)
        elif isinstance(statement, BranchUTask):
            for region in statement.branches:
                self.region(region, trips)
                self._transfer(region.results, statement.outputs)
        elif is_a(statement, "exchange"):  # the received values lie in each unit's own memory
            for value, blocks in zip(statement.inputs, blocks_of(statement), strict=True):
                self._touch(value, (blocks.axis, blocks.size), Owners(blocks.parts, blocks.first), trips)
        elif not is_a(statement, "empty"):  # this one touches nothing
            values = (*reads(statement), *statement.outputs)
            self.refuse(values, "a statement outside of parallel loops touches it")

    def _loop(self, loop: LoopUTask, trips: int) -> None:
        """A carry that stays in one place is not touched on the way."""
        if by_threads(loop):
            self.refuse((*reads(loop), *loop.outputs), "threads of all units touch it")
            return
        if loop.parallel:
            for value, block in tile_access(loop, self.constants).items():
                self._touch(value, block, Owners(loop.trip_count or 0, loop.first), trips)
            return
        self._transfer(loop.initial, loop.carried)
        for region in loop.regions:
            self.region(region, trips * (loop.trip_count or 1))
        self._transfer(loop.body.results, loop.carried)
        self._transfer(loop.carried, loop.outputs)
        if loop.condition is not None:
            self._transfer(loop.carried, loop.condition.parameters)

    def _transfer(self, sources: Iterable[Value], targets: Iterable[Value]) -> None:
        for source, target in zip(sources, targets, strict=True):
            whole = all(v not in self.plan.layouts or self.plan.layouts[v].is_whole for v in (source, target))
            if not whole or self._slot(source) != self._slot(target):
                self.refuse((source, target), "it is copied where regions join")

    def _touch(self, value: Value, block: tuple[int, int] | None, owners: Owners, trips: int) -> None:
        """`block`: the axis along which owners touch their own slices, and the length of one."""
        slot = self._slot(value)
        if slot is None:
            return
        axis, size = block or (-1, 0)
        shape = value.type.shape
        self.touches[slot] = self.touches.get(slot, 0) + trips
        if axis < 0 or not self.plan.layouts[value].is_whole or shape[axis] != size * owners.count:
            self.refuse((value,), "a part touches more than its own slice")
        elif any(n != 1 for n in shape[:axis]):
            self.refuse((value,), "its slices are not dense")
        elif value.type.nbytes != self.sizes.setdefault(slot, value.type.nbytes):
            self.refuse((value,), "its slices are of different sizes at different times")
        elif slot not in self.refused and self.owners.setdefault(slot, owners) != owners:
            self.refuse((value,), "its slices belong to different units at different times")

    def refuse(self, values: Iterable[Value], reason: str) -> None:
        for value in values:
            slot = self._slot(value)
            if slot is not None:
                self.refused.setdefault(slot, reason)
                self.owners.pop(slot, None)

    def _slot(self, value: Value) -> Slot | None:
        """The buffer in the workspace that holds the value."""
        if value not in self.plan.layouts:
            return None
        root, slot = self.plan.layouts[value].root, self.plan.slot(value)
        if slot.space != "workspace":
            return None
        self.bytes[slot] = max(self.bytes.get(slot, 0), root.type.nbytes)
        return slot
