"""Groups: stages of a wavefront, each on its own units (see `schedule.loops.wavefront`).

A stage is a branch that guards it, and the followers of that branch. It becomes one parallel loop with the
branch inside its parts, so that no guard contains a barrier and an idle stage copies its carries by parts.

The units are assigned so that the longest part of any stage is as short as possible: stages with more work
get more units, and parts that fit into near memory take less time. Parts need not divide the axis. If they do
not, the last one reaches past its end: the stage writes padded arrays, and all readers see views of their
beginnings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil

from jax_cocktail.analysis.axes import rule
from jax_cocktail.analysis.classes import AxisClass, axis_classes
from jax_cocktail.cost.unit_time import Part, unit_seconds
from jax_cocktail.cost.work import total
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.placement.families import tie_of
from jax_cocktail.placement.limits import DeviceLimits, Limits
from jax_cocktail.placement.parts import Tiling
from jax_cocktail.placement.tile import Sources, tile
from jax_cocktail.placement.tile_groups import TileGroup, axes_inside, barrier_free
from jax_cocktail.utask.builder import beginning
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Stage,
    Statement,
    UOperator,
    operators_in,
    reads,
)
from jax_cocktail.utask.operators import PRODUCTS
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import ITEM_SIZE, Value


@dataclass(frozen=True, slots=True)
class Group:
    """A stage of a wavefront. `tile_group`: its division, None if it would need a barrier inside."""

    positions: tuple[int, ...]
    stage: Stage
    tile_group: TileGroup | None = None


@dataclass(frozen=True, slots=True)
class _Offer:
    """One way to cut a stage, and the seconds of its longest part (its work, if no rates are known)."""

    axes: Mapping[Value, int]
    tiling: Tiling
    seconds: float


def _groups_of(region: Region, units: int, limits: Limits) -> dict[int, Group]:
    """Position of the branch of every stage -> the stage."""
    found = [
        Group(_members(region, position), statement.stage)
        for position, statement in enumerate(region.body)
        if isinstance(statement, BranchUTask) and statement.stage is not None
    ]
    offers = [_offers(region, group.positions, units, limits) for group in found]
    chosen = iter(_shared_out([o for o in offers if o], units))
    taken, placed = 0, {}
    for group, own in zip(found, offers, strict=True):
        if own:
            offer = next(chosen)
            first = taken if taken + offer.tiling.parts <= units else 0
            taken = first + offer.tiling.parts
            tiling = replace(offer.tiling, first=first)
            group = replace(group, tile_group=TileGroup(group.positions, offer.axes, tiling))
        placed[group.positions[0]] = group
    return placed


@dataclass(frozen=True, slots=True)
class _Carry:
    """A carry that a stage computes by parts: its number, parameter, next value, and the axis that is cut.
    `parameter` and `result`: the padded arrays of both; themselves if the parts are even."""

    number: int
    carry: Value
    value: Value
    axis: int
    group: Group
    parameter: Value
    result: Value

    @property
    def is_wide(self) -> bool:
        return self.parameter != self.carry


@dataclass(frozen=True, slots=True)
class Wave:
    """The stages of a loop over diagonals, by the positions of their branches, and their carries."""

    groups: Mapping[int, Group]
    carries: Sequence[_Carry] = ()

    @property
    def parameters(self) -> Mapping[Value, Value]:
        """Parameters of the body -> the padded arrays that hold them."""
        return {c.carry: c.parameter for c in self.carries if c.is_wide}

    @property
    def arrays(self) -> Mapping[Value, Value]:
        """One map for parameters and for their next values."""
        return {**self.parameters, **{c.value: c.result for c in self.carries if c.is_wide}}

    def results(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """The results of the body."""
        changed = {c.number: c.result for c in self.carries}
        return tuple(changed.get(k, v) for k, v in enumerate(values))


NO_WAVE = Wave({})


def wave_of(loop: LoopUTask, units: int, limits: Limits, fresh: FreshValues) -> Wave:
    """The stages of a loop; none if it is not a wavefront."""
    groups = _groups_of(loop.body, units, limits)
    carries: list[_Carry] = []
    results: dict[Value, Value] = {}
    for group in groups.values():
        made = {v for n in group.positions for v in loop.body.body[n].outputs}
        for number, (carry, value) in enumerate(zip(loop.carried, loop.body.results, strict=True)):
            if group.tile_group is None or value not in made or value not in group.tile_group.axes:
                continue
            axis, parameter, result = group.tile_group.axes[value], carry, value
            if reach := group.tile_group.tiling.reach:
                type_ = value.type.resized(axis, reach)
                parameter = fresh.make(type_)
                result = results.setdefault(value, fresh.make(type_))
            carries.append(_Carry(number, carry, value, axis, group, parameter, result))
    return Wave(groups, carries)


def carried_by_parts(
    loop: LoopUTask, body: Region, wave: Wave, fresh: FreshValues, recipes: Mapping[Value, UOperator]
) -> tuple[Statement, ...]:
    """The loop with its divided body, and the statements around it. Copies by parts place the initial carries
    in the memory of their units. `recipes`: operators that recompute light values."""
    initial, outputs = list(loop.initial), list(loop.outputs)
    before: list[Statement] = []
    after: list[Statement] = []
    for group in wave.groups.values():
        own = [c for c in wave.carries if c.group is group]
        if not own or group.tile_group is None:
            continue
        copies = {c.number: fresh.make(c.carry.type) for c in own}
        wide = {copies[c.number]: fresh.make(c.parameter.type) for c in own if c.is_wide}
        statements = [
            UOperator("copy", (loop.initial[c.number],), (copies[c.number],), (), loop.source) for c in own
        ]
        axes = {copies[c.number]: c.axis for c in own}
        before += tile(
            statements,
            tuple(axes),
            axes,
            group.tile_group.tiling,
            fresh,
            loop.source,
            Sources(recipes=recipes, wide=wide),
        )
        for c in own:
            initial[c.number] = wide.get(copies[c.number], copies[c.number])
            if c.is_wide:
                outputs[c.number] = fresh.make(c.parameter.type)
                after.append(beginning(outputs[c.number], loop.outputs[c.number], loop.source))
    changed = replace(loop, initial=tuple(initial), outputs=tuple(outputs), body=body)
    return (*before, changed, *after)


def _members(region: Region, position: int) -> tuple[int, ...]:
    """The positions of a stage's branch and its followers.

    A follower is an operator that needs only results of the stage and values from before the branch.
    """
    body = region.body
    late = {v for s in body[position + 1 :] for v in s.outputs}
    own, members = set(body[position].outputs), [position]
    for later in range(position + 1, len(body)):
        follower, needed = body[later], reads(body[later])
        if not isinstance(follower, UOperator) or own.isdisjoint(needed):
            continue
        if late.intersection(needed) <= own:
            own.update(follower.outputs)
            members.append(later)
    return tuple(members)


# -- ways to cut a stage -------------------------------------------------------------------------------------
def _offers(region: Region, positions: Sequence[int], units: int, limits: Limits) -> list[_Offer]:
    """The ways to cut a stage along one axis; none if it would need a barrier inside or has too little work.

    The axis is the one whose parts read fewest bytes, so that the weights stay with the units.
    """
    statements = [region.body[n] for n in positions]
    branch = statements[0]
    assert isinstance(branch, BranchUTask) and branch.stage is not None
    share = max(units // branch.stage.count, 2)
    found: list[tuple[float, list[_Offer]]] = []
    for cut in barrier_free(replace(region, body=tuple(statements)), limits):
        size = max(cut.extents)
        offers = [
            _Offer(axes, t, _seconds(statements, axes, (t.length or size / t.parts) / size, limits))
            for t in _tilings(cut, units)
            if limits.fills_lanes(cut, t.parts, statements)
            and (axes := _widened(statements, cut, t))
            and limits.pays(statements, axes, t.parts)
        ]
        if any(o.kind == "dynamic_update_slice" for o in _operators(statements)):
            # large arrays would be copied in the end
            offers = [o for o in offers if not o.tiling.length] or offers
        if offers:
            usual = min(offers, key=lambda o: abs(o.tiling.parts - share))
            found.append((_bytes_read(statements, usual.axes, usual.tiling.parts), offers))
    return min(found, key=lambda f: f[0])[1] if found else []


def _tilings(cut: AxisClass, units: int) -> Iterator[Tiling]:
    """Tilings into up to `units` parts; the parts have a length if they do not divide the axes."""
    size = cut.parts
    narrow = min(ITEM_SIZE[v.type.dtype] for v in cut.axes)
    step = max(BLOCK.load_bytes // narrow, 1)
    step = step if size % step == 0 else 1
    for parts in range(2, min(units, size) + 1):
        if size % parts == 0:
            yield Tiling(parts)
        elif cut.is_uniform:
            length = ceil(size / (parts * step)) * step
            if ceil(size / length) == parts:
                yield Tiling(parts, length=length)


def _widened(statements: Sequence[Statement], cut: AxisClass, tiling: Tiling) -> Mapping[Value, int]:
    """The axes of the class and of compatible classes without a crossing, such as those of copied carries.
    Empty if the statements cannot be cut into such parts."""
    axes: dict[Value, int] = {}
    for statement in statements:
        axes.update(axes_inside(statement, cut.axes))
    if tiling.length and not _can_all_be_cut(statements, axes, tiling):
        return {}
    for other in axis_classes(statements):
        if other.clash or other.crossings or not axes.keys().isdisjoint(other.axes):
            continue
        fits = other.extents == cut.extents if tiling.length else other.parts % tiling.parts == 0
        both = {**axes, **other.axes}
        if fits and _can_all_be_cut(statements, both, tiling):
            axes = both
    return axes


def _can_all_be_cut(statements: Sequence[Statement], axes: Mapping[Value, int], tiling: Tiling) -> bool:
    found = ((o, [axes.get(v) for v in o.outputs]) for o in _operators(statements))
    return all(tie_of(o, own, tiling) for o, own in found if any(axis is not None for axis in own))


def _bytes_read(statements: Sequence[Statement], axes: Mapping[Value, int], parts: int) -> float:
    """Bytes that the products of one part read."""
    found = 0.0
    for operator in _operators(statements):
        if operator.kind not in PRODUCTS:
            continue
        tie = rule(operator).along([axes.get(v) for v in operator.outputs])
        cuts = tie.inputs if tie is not None else (None,) * len(operator.inputs)
        for value, axis in zip(operator.inputs, cuts, strict=True):
            found += value.type.nbytes / (1 if axis is None else parts)
    return found


def _seconds(
    statements: Sequence[Statement], axes: Mapping[Value, int], share: float, limits: Limits
) -> float:
    """Seconds of a part with this share of the axis; its work, if no rates are known."""
    if isinstance(limits, DeviceLimits):
        return unit_seconds(statements, limits.unit, Part(axes, share))
    return total(statements).weight * share


def _operators(statements: Sequence[Statement]) -> Iterator[UOperator]:
    return chain.from_iterable(map(operators_in, statements))


# -- units for every stage -----------------------------------------------------------------------------------
def _shared_out(stages: Sequence[Sequence[_Offer]], units: int) -> list[_Offer]:
    """One offer per stage: the fewest units that make the longest part as short as possible. With too few
    units, every stage takes its fastest offer, and stages share units."""
    times = sorted({offer.seconds for offers in stages for offer in offers})

    def within(seconds: float) -> list[_Offer | None]:
        return [
            min((o for o in offers if o.seconds <= seconds), key=lambda o: o.tiling.parts, default=None)
            for offers in stages
        ]

    def suffices(seconds: float) -> bool:
        chosen = within(seconds)
        return None not in chosen and sum(o.tiling.parts for o in chosen if o is not None) <= units

    found = bisect_left(times, True, key=suffices)
    if found < len(times):
        return [o for o in within(times[found]) if o is not None]
    return [min(offers, key=lambda o: (o.seconds, o.tiling.parts)) for offers in stages]
