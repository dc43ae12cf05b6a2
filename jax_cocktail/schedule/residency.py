"""Weights at rest: arrays whose slices stay in the near memory of the units that own them.

An array is divided so if every touch of it is by a parallel loop whose trip i touches slice i only, and all
these loops have the same number of trips on the same units: packed weights, and state that never crosses. On
a GPU such a slice lies in the shared memory of the block that owns it, from the trip that writes it to the
last one that reads it (the persistent kernels of Diamos et al., ICML'16, keep their weights likewise).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from jax_cocktail.utask.exchange import blocks_of
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    operators_in,
    regions_of,
)
from jax_cocktail.utask.parallel import scalar_constants, tile_access
from jax_cocktail.utask.plan import MemoryPlan, Part, Slot
from jax_cocktail.utask.types import Value

ALIGNMENT = 64  # bytes

Owner = tuple[int, int]  # trips of the parallel loops that touch a buffer, and their first unit


def resident_parts(program: UProgram, plan: MemoryPlan, capacity: int) -> MemoryPlan:
    """The plan with `parts`: buffers of the workspace whose slices find room in `capacity` bytes per unit.

    What is touched most often, per byte, comes first.
    """
    if plan.most_units <= 1:
        return plan
    survey = _Survey(plan, scalar_constants(operators_in(program.entry)))
    survey.region(program.entry, 1)
    parts: dict[Slot, Part] = {}
    size = 0
    for slot in sorted(survey.sliced, key=lambda s: (-survey.touches[s], s.index)):
        trips, first = survey.sliced[slot]
        total = survey.bytes[slot]
        if first + trips > plan.most_units or total % trips or _overlapped(slot, total, plan, survey.bytes):
            continue
        need = -(-total // trips // ALIGNMENT) * ALIGNMENT
        if size + need <= capacity:
            parts[slot] = Part(size, total // trips, first)
            size += need
    return replace(plan, parts=parts) if parts else plan


class _Survey:
    """Which buffers of the workspace are touched by slices alone, and how often."""

    def __init__(self, plan: MemoryPlan, constants: Mapping[Value, int]) -> None:
        self.plan, self.constants = plan, constants
        self.sliced: dict[Slot, Owner] = {}
        self.refused: set[Slot] = set()
        self.bytes: dict[Slot, int] = {}
        self.touches: dict[Slot, int] = {}
        for value in plan.layouts:
            self._slot(value)

    def region(self, region: Region, trips: int) -> None:
        self._refuse(region.parameters)
        self._refuse(region.results)
        for statement in region.body:
            self._statement(statement, trips)

    def _statement(self, statement: Statement, trips: int) -> None:
        if isinstance(statement, LoopUTask) and statement.parallel:
            self._parallel(statement, trips)
            return
        if isinstance(statement, UOperator) and statement.kind == "empty":
            return  # touches nothing
        if isinstance(statement, UOperator) and statement.kind == "exchange":
            for value, blocks in zip(statement.inputs, blocks_of(statement), strict=True):
                self._touch(value, (blocks.axis, blocks.size), (blocks.parts, blocks.first), trips)
            return  # what is received lies in own memory
        if isinstance(statement, LoopUTask):
            self._refuse((*statement.initial, *statement.outputs))
            trips *= statement.trip_count or 1
        elif isinstance(statement, UOperator | StitchedUTask):
            self._refuse((*statement.inputs, *statement.outputs))
        else:
            self._refuse(statement.outputs)
        for inner in regions_of(statement):
            self.region(inner, trips)

    def _parallel(self, loop: LoopUTask, trips: int) -> None:
        for value, block in tile_access(loop, self.constants).items():
            self._touch(value, block, (loop.trip_count or 0, loop.first), trips)

    def _touch(self, value: Value, block: tuple[int, int] | None, owner: Owner, trips: int) -> None:
        slot = self._slot(value)
        if slot is None:
            return
        layout, (count, _) = self.plan.layouts[value], owner
        axis, size = block or (-1, 0)
        outermost = axis >= 0 and all(n == 1 for n in value.type.shape[:axis])
        even = outermost and layout.is_whole and value.type.shape[axis] == size * count
        if not even or self.sliced.setdefault(slot, owner) != owner:
            self.refused.add(slot)
            self.sliced.pop(slot, None)
        elif slot in self.refused:
            self.sliced.pop(slot, None)
        self.touches[slot] = self.touches.get(slot, 0) + trips

    def _refuse(self, values: Iterable[Value]) -> None:
        for value in values:
            slot = self._slot(value)
            if slot is not None:
                self.refused.add(slot)
                self.sliced.pop(slot, None)

    def _slot(self, value: Value) -> Slot | None:
        """The buffer in the workspace that holds the value."""
        if value not in self.plan.layouts:
            return None
        root = self.plan.layouts[value].root
        slot = self.plan.slots[root]
        if slot.space != "workspace":
            return None
        self.bytes[slot] = max(self.bytes.get(slot, 0), root.type.nbytes)
        return slot


def _overlapped(slot: Slot, size: int, plan: MemoryPlan, sizes: Mapping[Slot, int]) -> bool:
    """True if another buffer uses the same bytes at another time."""
    end = slot.index + size
    return any(s != slot and s.index < end and slot.index < s.index + n for s, n in sizes.items())
