"""The uTasks of an operator, one by one (COCKTAILER, OSDI'23, section 3).

`utask_family` spells out the family that `placement.families.schedule_operator` stands for: every uTask with
the slices of the operands that it reads (`input_slice`) and of the results that it writes. `compute` runs one
uTask in NumPy, so that tests can compare the union of all uTasks with the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jax_cocktail.analysis.axes import Tie
from jax_cocktail.placement.cutter import part_attributes
from jax_cocktail.placement.families import schedule_operator
from jax_cocktail.utask.arrays import Array
from jax_cocktail.utask.ir import Attributes, UOperator
from jax_cocktail.utask.types import Shape, TensorType, Value
from tests.oracle.interpreter.run import EVALUATE

Axes = Sequence[int | None]  # an axis of each result, or of each operand


@dataclass(frozen=True, slots=True)
class Slice:
    """The elements of an array from `starts`, `sizes` of them along each axis."""

    starts: tuple[int, ...]
    sizes: Shape

    def of(self, array: Array) -> Array:
        return array[tuple(slice(a, a + n) for a, n in zip(self.starts, self.sizes, strict=True))]


@dataclass(frozen=True, slots=True)
class Family:
    """An operator as `parts` uTasks of one kind, and one more for what equal parts leave over.

    `tie`: the axes that are cut.
    """

    operator: UOperator
    tie: Tie
    parts: int

    @property
    def utasks(self) -> tuple[UTask, ...]:
        """All of them; their slices of a result do not overlap, and together are the result."""
        rest = self.operator.outputs[0].type.shape[self.tie.outputs[0]] % self.parts
        return tuple(UTask(self, part) for part in range(self.parts + (rest > 0)))

    def attributes(self, is_rest: bool = False) -> Attributes:
        """The attributes of the uTasks: those that hold sizes are for one part, all others name axes."""
        return part_attributes(self.operator, self.tie, lambda extent: self.size(extent, is_rest))

    def size(self, extent: int, is_rest: bool = False) -> int:
        """The length of a part of an axis."""
        return extent % self.parts if is_rest else extent // self.parts

    def slices(self, values: Sequence[Value], axes: Axes, part: int) -> tuple[Slice, ...]:
        """The part of every value along its axis; all of it where that is None."""
        return tuple(self._slice(v.type.shape, d, part) for v, d in zip(values, axes, strict=True))

    def _slice(self, shape: Shape, axis: int | None, part: int) -> Slice:
        if axis is None:
            return Slice((0,) * len(shape), shape)
        start, size = part * self.size(shape[axis]), self.size(shape[axis], part == self.parts)
        starts = tuple(start if d == axis else 0 for d in range(len(shape)))
        return Slice(starts, (*shape[:axis], size, *shape[axis + 1 :]))


@dataclass(frozen=True, slots=True)
class UTask:
    """One member of a family: what one unit computes without waiting for another (section 3)."""

    family: Family
    part: int

    @property
    def is_rest(self) -> bool:
        return self.part == self.family.parts

    @property
    def output_slices(self) -> tuple[Slice, ...]:
        """The slice of every result that this uTask computes."""
        family = self.family
        return family.slices(family.operator.outputs, family.tie.outputs, self.part)


def utask_family(operator: UOperator, axes: Axes, parts: int) -> Family:
    """The operator as `parts` uTasks along `axes` of its results."""
    return Family(operator, schedule_operator(operator, axes, parts), parts)


def input_slice(utask: UTask) -> tuple[Slice, ...]:
    """The slice of every operand that the uTask reads: its own part along a tied axis, else all."""
    family = utask.family
    return family.slices(family.operator.inputs, family.tie.inputs, utask.part)


def compute(utask: UTask, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The parts of the results that the uTask computes. `arrays`: the operands' own parts."""
    family, operator = utask.family, utask.family.operator
    if operator.kind == "constant":
        return (utask.output_slices[0].of(_evaluated(operator, ())[0]),)
    if operator.kind == "iota" and operator["dimension"] == family.tie.outputs[0]:
        return (_counted(utask),)
    part = replace(
        operator,
        inputs=_typed(operator.inputs, input_slice(utask)),
        outputs=_typed(operator.outputs, utask.output_slices),
        attributes=family.attributes(utask.is_rest),
    )
    return _evaluated(part, arrays)


def _counted(utask: UTask) -> Array:
    """An iota along the axis that is cut counts from the part's first position."""
    (place,) = utask.output_slices
    operator = utask.family.operator
    count = Value(0, TensorType("int64", place.sizes))
    (counts,) = _evaluated(replace(operator, outputs=(count,)), ())
    convert = UOperator("convert", (count,), _typed(operator.outputs, (place,)))
    return _evaluated(convert, [counts + place.starts[utask.family.tie.outputs[0]]])[0]


def _typed(values: Sequence[Value], slices: Sequence[Slice]) -> tuple[Value, ...]:
    pairs = zip(values, slices, strict=True)
    return tuple(replace(v, type=TensorType(v.type.dtype, s.sizes)) for v, s in pairs)


def _evaluated(operator: UOperator, arrays: Sequence[Array]) -> tuple[Array, ...]:
    with np.errstate(all="ignore"):
        found = EVALUATE[operator.kind](operator, arrays)
    return tuple(np.asarray(x) for x in (found if isinstance(found, tuple) else (found,)))
