"""Axes along which loops go: those whose length is the number of trips.

A loop that takes an element of an array in each trip, along an axis as long as it has trips, goes along that
axis, and along all axes that belong to it: those that operators tie (`analysis.axes`), that a product
contracts together, that carries and branches pass on. An axis of the same length that does not belong to it,
such as that of a hidden state, is another matter.

The trips of a loop with a condition are not known. Such a loop goes along an axis if the program has its
length as a constant, which bounds the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from jax_cocktail.analysis.axes import consumed, made_whole, rule
from jax_cocktail.analysis.parallel import scalar_constants
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    alternatives,
    operators_in,
    regions_of,
    walk,
)
from jax_cocktail.utask.types import Value

Axis = tuple[Value, int]
_MOST_SHIFT = 2  # by which a slice, a padded or a joined array may be shorter or longer than its operand


def axes_of_loops(program: UProgram, least: int) -> dict[Axis, int]:
    """The axes along which loops go, and their lengths of at least `least`. Those that belong to them may be
    a little longer or shorter."""
    union, along = _Union(), set[Axis]()
    constants = set(scalar_constants(program.entry).values())
    union.region(program.entry)
    for loop in walk(program.entry):
        if isinstance(loop, LoopUTask):
            lengths = constants if loop.trip_count is None else {loop.trip_count}
            along |= {axis for axis in _taken(loop.body) if _length(axis) in lengths}
    roots = {union.find(axis) for axis in along if _length(axis) >= least}
    found = {axis: _length(axis) for axis in (*union.parent, *along)}
    return {axis: length for axis, length in found.items() if union.find(axis) in roots}


def axes_tied_to(program: UProgram, axis: Axis) -> frozenset[Axis]:
    """An axis of an operand, and the axes that must have its length."""
    union = _Union()
    union.region(program.entry)
    root = union.find(axis)
    return frozenset(each for each in list(union.parent) if union.find(each) == root)


def _length(axis: Axis) -> int:
    value, number = axis
    return value.type.shape[number]


def _taken(region: Region) -> Iterator[Axis]:
    """The axes along which operators of a region take or replace a part whose position is an operand."""
    for operator in operators_in(region):
        if (operator.facts.partial or operator.facts.updates) and len(operator.inputs) > 1:
            yield from ((operator.inputs[k], axis) for k, axis in consumed(operator))
            yield from ((operator.outputs[k], axis) for k, axis in made_whole(operator))


class _Union:
    """Union-find over axes."""

    def __init__(self) -> None:
        self.parent: dict[Axis, Axis] = {}

    def find(self, axis: Axis) -> Axis:
        while self.parent.setdefault(axis, axis) != axis:
            self.parent[axis] = self.parent[self.parent[axis]]
            axis = self.parent[axis]
        return axis

    def tie(self, axes: Iterable[Axis]) -> None:
        first, *others = map(self.find, axes)
        for other in others:
            self.parent[other] = first

    def tie_values(self, values: Sequence[Value]) -> None:
        for axis in range(values[0].type.rank):
            self.tie((value, axis) for value in values)

    def region(self, region: Region) -> None:
        for statement in region.body:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        for region in regions_of(statement):
            self.region(region)
        if isinstance(statement, UOperator):
            self._operator(statement)
        for values in alternatives(statement):
            self.tie_values(values)

    def _operator(self, operator: UOperator) -> None:
        for tie in rule(operator).ties:
            pairs = zip(operator.inputs, tie.inputs, strict=True)
            tied = [(value, axis) for value, axis in pairs if axis is not None]
            axes = [*zip(operator.outputs, tie.outputs, strict=True), *tied]
            self.tie(axis for axis in axes if _length(axis) == _length(axes[0]))
        if operator.facts.product and "lhs_contract" in dict(operator.attributes):
            left, right = operator.inputs[:2]
            for a, b in zip(operator.ints("lhs_contract"), operator.ints("rhs_contract"), strict=True):
                self.tie([(left, a), (right, b)])
        for k, axis in made_whole(operator):  # it sorts along the axis, joins arrays, takes most of one
            made = operator.outputs[k]
            alike = [v for v in operator.inputs if v.type.rank == made.type.rank]
            shifts = ((v, abs(v.type.shape[axis] - made.type.shape[axis])) for v in alike)
            self.tie([(made, axis), *((v, axis) for v, shift in shifts if shift <= _MOST_SHIFT)])
