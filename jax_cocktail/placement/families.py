"""Operators as families of uTasks (COCKTAILER, OSDI'23, section 3.1 and its interfaces, section 3.3).

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

from jax_cocktail.errors import VerificationError
from jax_cocktail.placement.axes import Tie, rule
from jax_cocktail.placement.parts import constant_parts, part_type
from jax_cocktail.utask.interpreter import EVALUATE
from jax_cocktail.utask.interpreter_common import Array
from jax_cocktail.utask.ir import Attribute, Attributes, UOperator
from jax_cocktail.utask.types import Shape, TensorType, Value

Axes = Sequence[int | None]  # an axis of each result


@dataclass(frozen=True, slots=True)
class Slice:
    """The elements of an array from `starts`, `sizes` of them along each axis."""

    starts: tuple[int, ...]
    sizes: Shape

    def of(self, array: Array) -> Array:
        return array[tuple(slice(a, a + n) for a, n in zip(self.starts, self.sizes, strict=True))]


@dataclass(frozen=True, slots=True)
class Family:
    """An operator as `parts` uTasks of one kind. `tie`: the axes that are cut."""

    operator: UOperator
    tie: Tie
    parts: int

    @property
    def attributes(self) -> Attributes:
        """The attributes of every uTask: those that hold sizes are for one part, all others name axes."""
        operator, tie = self.operator, self.tie
        changed: dict[str, Attribute] = {}
        if operator.kind == "gather" and tie.inputs[1] is None:
            sizes, axis = operator["slice_sizes"], tie.inputs[0]
            assert isinstance(sizes, tuple) and axis is not None
            whole = operator.inputs[0].type.shape[axis]
            changed["slice_sizes"] = (*sizes[:axis], whole // self.parts, *sizes[axis + 1 :])
        elif operator.kind == "conv" and None not in tie.inputs:
            groups = operator["feature_group_count"]
            assert isinstance(groups, int)
            changed["feature_group_count"] = groups // self.parts
        return tuple((name, changed.get(name, value)) for name, value in operator.attributes)

    @property
    def utasks(self) -> tuple[UTask, ...]:
        return tuple(UTask(self, part) for part in range(self.parts))


@dataclass(frozen=True, slots=True)
class UTask:
    """One member of a family: what one unit computes without waiting for another (section 3.1)."""

    family: Family
    part: int

    @property
    def output_slices(self) -> tuple[Slice, ...]:
        """The slice of every result that this uTask computes."""
        family = self.family
        outputs = zip(family.operator.outputs, family.tie.outputs, strict=True)
        return tuple(_part(value.type, axis, family.parts, self.part) for value, axis in outputs)


def num_utasks(operator: UOperator, axes: Axes, parts: int) -> int:
    """Into how many uTasks the operator falls along `axes` of its results, if `parts` are asked for: all of
    them, a divisor that its rule allows, or one."""
    tie = rule(operator).along(axes)
    return gcd(tie.parts, parts) if tie is not None else 1


def schedule_operator(operator: UOperator, axes: Axes, parts: int) -> Family:
    """The operator as `parts` uTasks at unit level (L1): the interface ScheduleOperator of section 3.3.

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
    operands = zip(family.operator.inputs, family.tie.inputs, strict=True)
    return tuple(_part(value.type, axis, family.parts, utask.part) for value, axis in operands)


def compute(utask: UTask, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The parts of the results that the uTask computes. `arrays`: the operands' own parts."""
    family, operator = utask.family, utask.family.operator
    if operator.kind == "constant":
        data = constant_parts(operator, family.tie.outputs[0], family.parts)[utask.part]
        operator = replace(operator, attributes=(("data", data),))
    elif operator.kind == "iota" and operator["dimension"] == family.tie.outputs[0]:
        return (_counted(utask),)
    operator = replace(
        operator,
        inputs=_parts(operator.inputs, family.tie.inputs, family.parts),
        outputs=_parts(operator.outputs, family.tie.outputs, family.parts),
        attributes=operator.attributes if operator.kind == "constant" else family.attributes,
    )
    with np.errstate(all="ignore"):
        found = EVALUATE[operator.kind](operator, arrays)
    return tuple(np.asarray(x) for x in (found if isinstance(found, tuple) else (found,)))


def _counted(utask: UTask) -> Array:
    """An iota along the axis that is cut counts from the part's first position."""
    (place,) = utask.output_slices
    operator = utask.family.operator
    wide = TensorType("int64", place.sizes)
    count = EVALUATE["iota"](replace(operator, outputs=(Value(0, wide),)), ())
    assert not isinstance(count, tuple)
    target = replace(operator.output, type=TensorType(operator.output.type.dtype, place.sizes))
    convert = UOperator("convert", (Value(0, wide),), (target,))
    found = EVALUATE["convert"](convert, [count + place.starts[utask.family.tie.outputs[0]]])
    assert not isinstance(found, tuple)
    return found


def _part(type_: TensorType, axis: int | None, parts: int, part: int) -> Slice:
    if axis is None:
        return Slice((0,) * type_.rank, type_.shape)
    sizes = part_type(type_, axis, parts).shape
    return Slice(tuple(part * n if d == axis else 0 for d, n in enumerate(sizes)), sizes)


def _parts(values: Sequence[Value], axes: Axes, parts: int) -> tuple[Value, ...]:
    pairs = zip(values, axes, strict=True)
    return tuple(v if a is None else replace(v, type=part_type(v.type, a, parts)) for v, a in pairs)
