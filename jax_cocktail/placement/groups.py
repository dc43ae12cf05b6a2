"""Groups: stages of a wavefront, each on units of its own (see `schedule.pipeline`).

A stage is a branch with `group` (number, count), and what the region computes from its results. It becomes
one parallel loop with the branch inside its parts, so that no barrier stands in a guard and a stage that does
not run hands its carries on part by part. It has at most a share of the units, in parts that divide the axis
evenly: what were left over, every unit would have to compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jax_cocktail.placement.axes import rule
from jax_cocktail.placement.classes import AxisClass, axis_classes
from jax_cocktail.placement.clusters import Cluster, Fitting, axes_inside
from jax_cocktail.placement.limits import Limits
from jax_cocktail.utask.ir import BranchUTask, Region, Statement, UOperator, reads, regions_of
from jax_cocktail.utask.types import Value


def groups_of(region: Region) -> dict[int, tuple[int, ...]]:
    """Position of the branch of every stage -> the positions of all that belongs to the stage.

    What follows a branch belongs to it if it needs, beside its results, only what is there before it.
    """
    found: dict[int, tuple[int, ...]] = {}
    body = region.body
    for position, statement in enumerate(body):
        if not isinstance(statement, BranchUTask) or statement.group[1] < 2:
            continue
        late = {v for s in body[position + 1 :] for v in s.outputs}
        own, members = set(statement.outputs), [position]
        for later in range(position + 1, len(body)):
            follower, needed = body[later], reads(body[later])
            if not isinstance(follower, UOperator) or own.isdisjoint(needed):
                continue
            if late.intersection(needed) <= own:
                own.update(follower.outputs)
                members.append(later)
        found[position] = tuple(members)
    return found


def group_cluster(region: Region, positions: Sequence[int], units: int, limits: Limits) -> Cluster | None:
    """The stage at these positions as one cluster; None if its units would have to meet on the way.

    Of the axes that it can be cut along, the one whose parts read least: the weights stay with the units.
    """
    statements = [region.body[n] for n in positions]
    branch = statements[0]
    assert isinstance(branch, BranchUTask)
    share = max(units // branch.group[1], 2)
    fitting = Fitting(statements, region.results, limits)
    offers: list[tuple[float, dict[Value, int], int]] = []
    for cut in axis_classes(fitting.heavy_statements):
        parts = next((n for n in range(share, 1, -1) if cut.parts % n == 0), 0)
        if (
            parts
            and not cut.clash
            and fitting.alone(cut, parts)
            and limits.fills_lanes(cut, parts, statements)
        ):
            axes = _widened(statements, cut, parts)
            offers.append((_bytes_read(statements, axes, parts), axes, parts))
    if not offers:
        return None
    _, axes, parts = min(offers, key=lambda offer: offer[0])
    if not limits.pays(statements, axes, parts):
        return None
    return Cluster(tuple(positions), axes, parts)


def _widened(statements: Sequence[Statement], cut: AxisClass, parts: int) -> dict[Value, int]:
    """The axes of the class, and those of classes that go along with it for nothing: what is handed on."""
    axes: dict[Value, int] = {}
    for statement in statements:
        axes.update(axes_inside(statement, cut.axes))
    for other in axis_classes(statements):
        if other.clash or other.crossings or other.parts % parts or not axes.keys().isdisjoint(other.axes):
            continue
        both = {**axes, **other.axes}
        if all(_can_be_cut(s, both) for s in _operators(statements)):
            axes = both
    return axes


def _can_be_cut(operator: UOperator, axes: Mapping[Value, int]) -> bool:
    found = [axes.get(v) for v in operator.outputs]
    return all(d is None for d in found) or rule(operator).along(found) is not None


def _bytes_read(statements: Sequence[Statement], axes: Mapping[Value, int], parts: int) -> float:
    """Bytes that the products of one part read."""
    total = 0.0
    for operator in _operators(statements):
        if operator.kind not in ("dot", "conv"):
            continue
        tie = rule(operator).along([axes.get(v) for v in operator.outputs])
        cuts = tie.inputs if tie is not None else (None,) * len(operator.inputs)
        for value, axis in zip(operator.inputs, cuts, strict=True):
            total += value.type.nbytes / (1 if axis is None else parts)
    return total


def _operators(statements: Sequence[Statement]) -> Iterator[UOperator]:
    for statement in statements:
        if isinstance(statement, UOperator):
            yield statement
        for inner in regions_of(statement):
            yield from _operators(inner.body)
