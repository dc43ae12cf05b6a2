"""Operators as families of uTasks (COCKTAILER, OSDI'23, section 3; scheduling: section 4).

A uOperator of the paper is a homogeneous family: `num_utasks` uTasks of one computation, each with the slice
of the inputs that it reads (`input_slice`) and a `compute`. Here the family follows from the axis rule of the
operator kind: along a tied axis, uTask i is the same operator, with adapted sizes, on part i of the tied
operands and on the whole of the others. Tiling schedules operators through `schedule_operator`; `compute`
runs one uTask in NumPy, so that tests can compare the union of all with the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from jax_cocktail.analysis.axes import Tie, rule
from jax_cocktail.errors import VerificationError
from jax_cocktail.placement.parts import part_attributes
from jax_cocktail.utask.interpreter.common import Array
from jax_cocktail.utask.interpreter.run import EVALUATE
from jax_cocktail.utask.ir import Attributes, UOperator
from jax_cocktail.utask.types import Shape, TensorType, Value

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


def num_utasks(operator: UOperator, axes: Axes, parts: int) -> int:
    """Into how many equal uTasks the operator falls along `axes` of its results, if `parts` are asked for:
    all of them, a divisor that its rule allows, or one. What they leave over is one more (`Family.utasks`).
    """
    tie = rule(operator).along(axes)
    if tie is None:
        return 1
    return min(parts, tie.parts) if any_runs(operator, tie) else gcd(parts, tie.parts)


def any_runs(operator: UOperator, tie: Tie) -> bool:
    """True if any runs along the tied axes belong together: they are equally long."""
    operands = zip(operator.inputs, tie.inputs, strict=True)
    tied = [(v, d) for v, d in operands if d is not None]
    tied += zip(operator.outputs, tie.outputs, strict=True)
    return all(v.type.shape[d] == tie.parts for v, d in tied)


def schedule_operator(operator: UOperator, axes: Axes, parts: int) -> Family:
    """The operator as `parts` uTasks at unit level (L1): the interface ScheduleOperator of section 4.

    Part p of everything that is cut alike is run by unit p modulo the number of units (`placement.tile` lays
    the uTasks of many operators into one parallel loop), so what passes from one uTask to the next needs no
    barrier. `axes` of the results were chosen for their axis classes. Raises VerificationError if the uTasks
    would not be independent.
    """
    tie = rule(operator).along(axes)
    if tie is None or num_utasks(operator, axes, parts) != parts:
        raise VerificationError(
            f"tiling: {operator.kind} cannot be cut along {list(axes)} into {parts} parts; a fault of"
            " placement, report it with the program"
        )
    return Family(operator, tie, parts)


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
