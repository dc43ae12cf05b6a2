"""Sentences for the report of placement: one per tile group, and one per heavy undivided statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jax_cocktail.analysis.classes import AxisClass
from jax_cocktail.cost.work import has_loop, total, work
from jax_cocktail.placement.bound import recurrence_bound
from jax_cocktail.placement.grid import Grid
from jax_cocktail.placement.groups import Group
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.tile_groups import Division
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator
from jax_cocktail.utask.types import NOWHERE, Source, Value


def tile_group_notes(region: Region, division: Division, loop: LoopUTask | None) -> Iterator[str]:
    """One sentence per tile group. `loop`: the loop with this region as its body."""
    for tile_group in division.tile_groups:
        statements = [region.body[n] for n in tile_group.positions]
        extent = min(v.type.shape[d] for v, d in tile_group.axes.items())
        where = _at(first_source(statements))
        how = f"an axis of {extent} in {tile_group.parts} parts"
        count = f"{len(statements)} statement{'s' * (len(statements) > 1)}"
        amount = f"{count}, {total(statements).flops:.3g} flops"
        if any(map(has_loop, statements)):
            yield f"{where}{how}, loops inside: its parts never wait for each other ({amount})"
        else:
            yield f"{where}{how}, with a barrier after them ({amount})"
    if loop is not None and division.tile_groups:
        bound, met = recurrence_bound(loop, division), division.barrier_count
        plural = "" if met == 1 else "s"
        yield f"{_at(loop.source)}loop: {met} barrier{plural} per iteration; the recurrence bound is {bound}"


def grid_note(statements: Sequence[Statement], results: Sequence[Value], grid: Grid) -> str:
    """The sentence for a tile group that is cut along a second axis."""
    extent = min(v.type.shape[axis] for v, axis in zip(results, grid.axes, strict=True))
    where, tiling = _at(first_source(statements)), grid.tiling
    return (
        f"{where}in {tiling.trips} blocks: {tiling.parts} parts, and an axis of {extent} in {tiling.across}"
    )


def stage_note(branch: Statement, group: Group) -> str:
    """The sentence for a stage of a wavefront, which `branch` guards."""
    what = f"{_at(branch.source)}stage {group.stage.number} of {group.stage.count}"
    if group.tile_group is None:
        return f"{what} is not divided as one: a barrier would be in it"
    tiling = group.tile_group.tiling
    parts = f"{tiling.parts} parts" + (f" of {tiling.length}" if tiling.length else "")
    return f"{what} in {parts} from unit {tiling.first} on, with one barrier per diagonal for all stages"


def trips_note(loop: LoopUTask) -> str:
    """The sentence for a loop whose trips are dealt to the units."""
    return f"{_at(loop.source)}{loop.trip_count} trips side by side, which never wait for each other"


def refusal_notes(
    region: Region, division: Division, limits: Limits, placed_inside: frozenset[int]
) -> Iterator[str]:
    """One sentence per heavy statement that every unit executes. `placed_inside`: positions of
    statements with divided regions."""
    claimed, reasons = division.tile_group_of, _reasons(division)
    for position, statement in enumerate(region.body):
        if position in claimed or position in placed_inside or not limits.pays((statement,)):
            continue
        found = sorted({reason for value in statement.outputs for reason in reasons.get(value, ())})
        what, why = _name(statement), "; ".join(found) or "no axis of it can be cut"
        yield f"{_at(statement.source)}{what} of {work(statement).flops:.3g} flops is not divided: {why}"


def _reasons(division: Division) -> Mapping[Value, list[str]]:
    """The reasons why classes of each value were refused. One class may have an axis of every value."""
    found: dict[Value, list[str]] = {}
    for cut, why in division.refused:
        reason = _reason(cut, why)
        for value in cut.axes:
            found.setdefault(value, []).append(reason)
    return found


def _reason(cut: AxisClass, why: str) -> str:
    extent = min(cut.extents)
    reader = next((c.leaf for c in cut.crossings), None)
    who = f" ({_name(reader)}{f' at {reader.source}' if str(reader.source) else ''})" if reader else ""
    return f"axis of {extent}: {why}{who if 'whole' in why else ''}"


def first_source(statements: Sequence[Statement]) -> Source:
    return next((s.source for s in statements if s.source != NOWHERE), NOWHERE)


def _name(statement: Statement) -> str:
    names = {LoopUTask: "loop", BranchUTask: "branch"}
    return statement.kind if isinstance(statement, UOperator) else names.get(type(statement), "call")


def _at(source: Source) -> str:
    return f"{source}: " if str(source) else ""
