"""Joins axis classes whose statements read the same parts of an array that no cache keeps.

Arrays from outside a region are in no class. So what is computed of the rows of an array is in one class, and
the sums over its columns are in another one. A unit would read the array once for each. As one class they
become one tile group:

    for part p: s[p] = sum(x[p], 1); y[p] = x[p] / s[p]
    for part q: t[q] = sum(x[q], 0)

    ->

    for part p: s[p] = sum(x[p], 1); y[p] = x[p] / s[p]; r[p] = sum(x[p], 0)
    for part q: t[q] = sum(r[q], 0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from jax_cocktail.analysis.axes import rule
from jax_cocktail.analysis.classes import Axis, AxisClass
from jax_cocktail.device.tuning import CORE_PARTIALS
from jax_cocktail.utask.ir import Statement, UOperator, reads
from jax_cocktail.utask.operators import PRODUCTS, STATIC_VIEWS
from jax_cocktail.utask.types import Value


@dataclass(slots=True)
class _Reading:
    """A class whose statements, at these positions, read an array along an axis: in equal parts, whose number
    divides `parts`."""

    parts: int = 0
    positions: list[int] = field(default_factory=list)


def joined(
    classes: Sequence[AxisClass], statements: Sequence[Statement], body: Sequence[Statement], near: float
) -> tuple[AxisClass, ...]:
    """The classes of some statements, those that share reads joined.

    `body`: the region with the statements; `near`: bytes that the cache of one unit keeps.
    """
    found = dict(enumerate(classes))
    for (array, _), readings in _readings(classes, statements, body, near).items():
        first, *others = sorted(readings, key=lambda number: -len(classes[number].axes))
        for number in others:
            if first not in found or number not in found:
                continue
            one, other = readings[first], readings[number]
            both = _union(found[first], found[number], gcd(one.parts, other.parts))
            if both is None or not _gains(array, both, found[number], near):
                continue
            levels = _levels(statements, both)
            if any(levels[n] == levels[m] for n in one.positions for m in other.positions):
                found[first] = both
                del found[number]
    return tuple(found.values())


def _readings(
    classes: Sequence[AxisClass], statements: Sequence[Statement], body: Sequence[Statement], near: float
) -> Mapping[Axis, Mapping[int, _Reading]]:
    """The classes, by number, that read a large array from outside of them, by its axis. Those with products
    or nested uTasks are left out: what they read does not decide their time."""
    makers = {v: s for s in body for v in s.outputs}
    numbers = {axis: n for n, cut in enumerate(classes) if not cut.clash for axis in cut.axes.items()}
    heavy: set[int] = set()
    found: dict[Axis, dict[int, _Reading]] = {}
    for position, statement in enumerate(statements):
        if not isinstance(statement, UOperator) or statement.kind in PRODUCTS:
            axes = ((v, d) for v in (*reads(statement), *statement.outputs) for d in range(v.type.rank))
            heavy.update(numbers[axis] for axis in axes if axis in numbers)
            continue
        for tie in rule(statement).ties:
            own = numbers.get((statement.outputs[0], tie.outputs[0]))
            for value, axis in zip(statement.inputs, tie.inputs, strict=True):
                if own is None or axis is None or (value, axis) in numbers:
                    continue
                origin, parts = _origin((value, axis), gcd(tie.parts, classes[own].parts), makers)
                if origin[0].type.nbytes > near:
                    reading = found.setdefault(origin, {}).setdefault(own, _Reading())
                    reading.parts = gcd(reading.parts, parts)
                    reading.positions.append(position)
    plain = {at: {n: r for n, r in readings.items() if n not in heavy} for at, readings in found.items()}
    return {at: readings for at, readings in plain.items() if len(readings) > 1}


def _origin(axis: Axis, parts: int, makers: Mapping[Value, Statement]) -> tuple[Axis, int]:
    """The axis of the array that a view shows, and the number of parts that both sides have."""
    while True:
        maker = makers.get(axis[0])
        if not isinstance(maker, UOperator) or maker.kind not in STATIC_VIEWS:
            return axis, parts
        tie = rule(maker).along((axis[1],))
        if tie is None or tie.inputs[0] is None:
            return axis, parts
        axis, parts = (maker.inputs[0], tie.inputs[0]), gcd(parts, tie.parts)


def _union(one: AxisClass, other: AxisClass, parts: int) -> AxisClass | None:
    """None if two axes of one value would be in the class, or if it had too few parts. `parts`: those of what
    both read."""
    parts = gcd(parts, one.parts, other.parts)
    axes = {**one.axes, **other.axes}
    if len(axes) < len(one.axes) + len(other.axes) or parts < min(one.parts, CORE_PARTIALS.parts):
        return None
    extents, outside = one.extents | other.extents, one.outside | other.outside
    return AxisClass(axes, parts, one.crossings + other.crossings, False, extents, outside)


def _gains(array: Value, both: AxisClass, other: AxisClass, near: float) -> bool:
    """True if a part of the array stays in the cache, and if what the joined class stores for others is less
    than the array that it need not read."""
    stored = sum({c.value: c.value.type.nbytes for c in other.crossings}.values())
    return array.type.nbytes <= both.parts * near and 2 * stored <= array.type.nbytes


def _levels(statements: Sequence[Statement], cut: AxisClass) -> list[int]:
    """Crossings of the class in front of each statement: statements behind different numbers of barriers do
    not share what they read."""
    crosses = {c.position for c in cut.crossings}
    ready: dict[Value, int] = {}
    found = []
    for position, statement in enumerate(statements):
        found.append(max((ready.get(v, 0) for v in reads(statement)), default=0))
        ready.update(dict.fromkeys(statement.outputs, found[-1] + (position in crosses)))
    return found
