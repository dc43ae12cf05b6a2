"""Mutants that no program can notice, with reasons: they change nothing, or choose another correct plan."""

from __future__ import annotations

from collections.abc import Mapping

_PRODUCTS = "schedule.loops.distribution"
_SYNC, _FUSE = "schedule.sync", "stitch.fuse _RegionState"
_PARTS = "context.plan.parts.get(about.slot) if"
_INTEGER = "schedule.simplify.trip_counts integer: integer_of(made) if"
_STAYS = "what it refuses stays in the loop, which is as correct"

# By the beginning of a mutant's name, which `$` ends: a function, or one of its edits.
ALIKE: Mapping[str, str] = {
    f"{_PRODUCTS}.fission why_undivided:": "says in a remark why a loop is not divided",
    f"{_PRODUCTS}.fission analyse: not products and (not together) and (not sums)": _STAYS,
    f"{_PRODUCTS}.reductions sums_of: if sum(": _STAYS,
    f"{_PRODUCTS}.chunks fits: abs(counter.step) * steps < LONGEST_WAY": "another way at exactly 2**31 only",
    f"{_SYNC}.double_buffer double_buffer: (loop,) if fewest": "no plan has fewer barriers than none",
    f"{_SYNC}.double_buffer _alternates: if not isinstance": "a loop that is not unrolled copies",
    "schedule.memory.residency _Survey._touch: if slot not in self.refused": "what is refused stays shared",
    "schedule.memory.liveness _Walker._transfer: root == target or not elsewhere": "copies stay",
    "schedule.memory.liveness liveness: 0  ->  1 (number 2)$": "only the order of depths counts",
    "schedule.memory.in_place _is_own_slice: core(written.type.shape) == core(layout.root.type.shape)": (
        "a whole array is read element by element only by an update of its shape; else it is copied"
    ),
    f"{_SYNC}.exchange _Owner.of:": "tells whose tile is read, and so what is sent; barriers follow",
    f"{_SYNC}.exchange exchange: if not chosen:  ->  if False": "goes on with nothing to rewrite",
    f"{_FUSE}._into_place: not is_unit_change(maker)  ->  is_unit_change(maker) (number 2)$": (
        "a reshaped product is copied to its place"
    ),
    f"{_FUSE}._reads_own_slice: item.key": ("no update joins a loop over other elements in any case"),
    f"{_FUSE}._bound: 0  ->  1$": "the first loop over elements is not added to",
    "schedule.memory.plan _most_that_fit: 1  ->  2 (number 2)$": "fewer arrays are near; no more than fit",
    f"{_INTEGER} isinstance(made, UOperator) else None  ->  integer_of(made) if False": (
        "a loop whose trips are not known stays a while loop"
    ),
    "schedule.simplify.peephole peephole: found if found is not None": "what is not simplified is as correct",
    "schedule.sink _makes_arrays: if isinstance(statement, UOperator):  ->  if False": "products are copied",
    "schedule.loops.distribution.distribute _strip: if most < limits.trips:  ->  if True": _STAYS,
    f"{_SYNC}.hazards Line.insert: if self.barriers and arrive <= self.barriers[-1].wait:  ->  if False": (
        "another barrier stands where the last one would do"
    ),
    "schedule.sink _Sinker._makers: 1  ->  2 (number 2)$": "considers every second statement",
    "schedule.loops.repeat stays: 0  ->  1": "tells which loops need two buffers, or else copies",
    "schedule.vmap.cut _only: if len(found) > 1:  ->  if True": "stays in lock-step",
    "schedule.vmap.cut Cut.has_shared_weights:": "chooses between batch elements in slots and one at a time",
    "schedule.vmap.recover _Recovery._element_by_element: idle if": "how many slots may wait for work",
    "schedule.vmap.recover _Recovery._loop: elements is not None  ->  elements is None": "stays in lock-step",
    "schedule.vmap.recover _Recovery._element_by_element: largest < self.limits.element_bytes or": (
        "chooses between batch elements in slots and one at a time"
    ),
    "placement.groups _tilings: step if size % step == 0": "chooses the length of parts",
    "placement.groups carried_by_parts: not own  ->  own": "carries that are not moved by parts stay whole",
    "placement.tile_groups _roots: if isinstance(maker, UOperator) and": "counts bytes to choose a cut",
    f"{_PRODUCTS}.rebuild _Body.carry: if k in self.carried:  ->  if False": "has a carry twice",
    "placement.tile_groups _Divider._refusal: not free  ->  free": "what is not divided is replicated",
    "analysis.trips side_by_side: not loop.initial": "a loop whose trips are not proven independent stays",
    f"codegen.program _slices_from: {_PARTS} about.slot else None  ->  {_PARTS} True": "no slot has no parts",
    "codegen.mapping _unravel:": "of GPU programs alone, which the emulation runs",
    "codegen.failure emit_fail: context.has_units and": "of GPU programs alone, which the emulation runs",
}


def is_alike(name: str) -> bool:
    """Whether the mutant of that name is in the table."""
    return f"{name}$".startswith(tuple(ALIKE))
