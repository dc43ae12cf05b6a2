"""Axis classes: sets of axes of values that can only be cut together (design, section 1.1).

Union-find over (value, axis) of the values that some statements define, nested regions and back edges
included. Axes that an operator's rule ties are in one class, so a class gets one decision. Outside values are
in no class: every reader takes the part that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from jax_cocktail.analysis.axes import consumed, made_whole, rule
from jax_cocktail.utask.ir import (
    Statement,
    StitchedUTask,
    UOperator,
    alternatives,
    defined_in,
    once,
    reads,
    regions_of,
)
from jax_cocktail.utask.sizes import is_general
from jax_cocktail.utask.types import Value

Axis = tuple[Value, int]


@dataclass(frozen=True, slots=True)
class Crossing:
    """A leaf statement that needs more than a part: it reads `value` whole along `axis`, or makes it whole.

    `position`: index of the analysed statement that is the leaf or contains it.
    """

    leaf: Statement
    value: Value
    axis: int
    position: int
    makes: bool = False


@dataclass(frozen=True, slots=True)
class AxisClass:
    """Axes that are cut together, into any number of parts that divides `parts`.

    `clash`: two axes of one value are in the class, so nothing can be cut; `axes` then names one of them.
    `extents`: the lengths of the axes; `outside`: of those of outside values that are tied to them.
    """

    axes: Mapping[Value, int]
    parts: int
    crossings: tuple[Crossing, ...] = ()
    clash: bool = False
    extents: frozenset[int] = field(default=frozenset())
    outside: frozenset[int] = field(default=frozenset())

    @property
    def is_uniform(self) -> bool:
        """True if all axes have the same length and every tie holds for any parts of them."""
        return set(map(int, self.extents)) == {int(self.parts)} >= set(map(int, self.outside))

    @property
    def length(self) -> int:
        """The length of uniform axes; a size if it is one of any of them."""
        return next((n for n in self.extents if is_general(n)), self.parts)

    def longest(self, number: int) -> int:
        """The length of the longest of so many blocks: all are equal, or only the last one is shorter. 0 if
        there is no such division."""
        if self.parts % number == 0:
            return self.parts // number
        length, rest = divmod(self.parts, number - 1) if self.is_uniform else (0, 0)
        return length if 0 < rest < length else 0


def axis_classes(statements: Sequence[Statement]) -> tuple[AxisClass, ...]:
    """The classes of all axes of more than one element of the values that `statements` define."""
    return _Union(statements).classes()


Ties = tuple[tuple[Sequence[Axis], int], ...]  # what one tie holds together, and its parts


@once
def _axes_of(operator: UOperator) -> tuple[Ties, tuple[tuple[Value, int, bool], ...]]:
    """The ties of an operator, and what crosses it: a value, an axis, and whether it makes it whole."""
    ties = list[tuple[Sequence[Axis], int]]()
    for tie in rule(operator).ties:
        axes = [*zip(operator.outputs, tie.outputs, strict=True)]
        pairs = zip(operator.inputs, tie.inputs, strict=True)
        axes += [(value, axis) for value, axis in pairs if axis is not None]
        ties.append((axes, tie.parts))
    crossed = [(operator.inputs[k], axis, False) for k, axis in consumed(operator)]
    crossed += [(operator.outputs[k], axis, True) for k, axis in made_whole(operator)]
    return tuple(ties), tuple(crossed)


class _Union:
    def __init__(self, statements: Sequence[Statement]) -> None:
        self.number: dict[Axis, int] = {}  # of each axis, in order
        self.parent: list[int] = []  # of each number
        self.parts: list[int] = []  # of each root
        self.crossings: list[Crossing] = []
        self.outside: list[tuple[int, int]] = []  # number of an axis, length of an outside one tied to it
        self.position = 0
        for statement in statements:
            self._declare(statement)
        for self.position, statement in enumerate(statements):
            self._statement(statement)

    def _declare(self, statement: Statement) -> None:
        for value in defined_in(statement):
            for axis, n in enumerate(value.type.shape):
                if n > 1:
                    self.number[value, axis] = len(self.parent)
                    self.parent.append(len(self.parent))
                    self.parts.append(n)

    def find(self, number: int) -> int:
        """The root of the axis with this number."""
        while self.parent[number] != number:
            self.parent[number] = self.parent[self.parent[number]]
            number = self.parent[number]
        return number

    def tie(self, axes: Sequence[Axis], parts: int = 0) -> None:
        """`parts`: 0 if the tie itself sets no limit."""
        numbers = [number for axis in axes if (number := self.number.get(axis)) is not None]
        first = self.find(numbers[0]) if numbers else 0
        if numbers:
            others = (value.type.shape[axis] for value, axis in axes if (value, axis) not in self.number)
            self.outside += [(first, length) for length in others]
        for number in numbers:
            other = self.find(number)
            self.parts[first] = gcd(self.parts[first], self.parts[other], parts)
            self.parent[other] = first

    def tie_values(self, values: Sequence[Value]) -> None:
        """Ties values that stand for each other: a carry, or the alternatives of a branch's result."""
        for axis in range(values[0].type.rank):
            self.tie([(value, axis) for value in values])

    # -- statements --------------------------------------------------------------------------------------
    def _statement(self, statement: Statement) -> None:
        for region in regions_of(statement):
            for inner in region.body:
                self._statement(inner)
        if isinstance(statement, UOperator):
            self._operator(statement)
        elif isinstance(statement, StitchedUTask):  # it has no rule: it reads whole and makes whole
            for value in (*reads(statement), *statement.outputs):
                for axis in range(value.type.rank):
                    self._cross(statement, value, axis, value in statement.outputs)
        for values in alternatives(statement):
            self.tie_values(values)

    def _operator(self, operator: UOperator) -> None:
        ties, crossed = _axes_of(operator)
        for axes, parts in ties:
            self.tie(axes, parts)
        for value, axis, makes in crossed:
            self._cross(operator, value, axis, makes)

    def _cross(self, leaf: Statement, value: Value, axis: int, makes: bool) -> None:
        if (value, axis) in self.number:
            self.crossings.append(Crossing(leaf, value, axis, self.position, makes))

    # -- result ------------------------------------------------------------------------------------------
    def classes(self) -> tuple[AxisClass, ...]:
        members: dict[int, list[Axis]] = {}
        for axis, number in self.number.items():
            members.setdefault(self.find(number), []).append(axis)
        crossings: dict[int, list[Crossing]] = {}
        for crossing in self.crossings:
            number = self.number[crossing.value, crossing.axis]
            crossings.setdefault(self.find(number), []).append(crossing)
        outside: dict[int, set[int]] = {}
        for number, length in self.outside:
            outside.setdefault(self.find(number), set()).add(length)
        found = []
        for root, axes in members.items():
            places = dict(axes)
            extents = frozenset(value.type.shape[axis] for value, axis in axes)
            clash = len(places) != len(axes)
            met, beyond = tuple(crossings.get(root, ())), frozenset(outside.get(root, ()))
            found.append(AxisClass(places, self.parts[root], met, clash, extents, beyond))
        return tuple(found)
