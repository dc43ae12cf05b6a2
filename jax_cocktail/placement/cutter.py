"""Cuts statements along their axes: the rules of a part that tiles and batch elements share.

An operator on a part is the same operator with smaller sizes, on the parts of its tied operands and on the
whole of the others (`analysis.axes`). Loops and branches are cut together with the values that enter and
leave their regions. Two passes cut:

- `placement.tile`: the axis class gives every value one axis. A part of an outside value is sliced out where
  it is read, and everything that is cut is computed.
- `schedule.vmap.cut`: wanted results determine the axes of all other values, so a value may be wanted whole,
  by parts, or both ways, and is computed once for each. The caller supplies the parts of outside values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from jax_cocktail.analysis.axes import Tie
from jax_cocktail.utask.ir import Attribute, Attributes, BranchUTask, LoopUTask, Region, Statement, UOperator
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import ITEM_SIZE, TensorType, Value

Axes = Sequence[int | None]  # an axis of each of some values; None: the whole value


class Cutter(ABC):
    """Appends the statements of one part to `out`.

    `size` maps the length of an axis to that of its part. `axes`: the axes of values that statements define;
    the others stay whole. `known`: the parts of values along an axis, or whole ones.
    """

    axes: Mapping[Value, int | None]

    def __init__(
        self, fresh: FreshValues, size: Callable[[int], int], out: list[Statement] | None = None
    ) -> None:
        self.fresh = fresh
        self.size = size
        self.out = [] if out is None else out
        self.known: dict[tuple[Value, int | None], Value] = {}

    @abstractmethod
    def part(self, value: Value, axis: int | None) -> Value:
        """The own part of `value`; all of it if `axis` is None."""

    @abstractmethod
    def operator(self, operator: UOperator) -> None:
        """Appends an operator on its part; see `emit_parts`."""

    # -- values ------------------------------------------------------------------------------------------
    def axes_of(self, values: Iterable[Value]) -> tuple[int | None, ...]:
        return tuple(self.axes.get(v) for v in values)

    def parts_of(self, values: Sequence[Value], axes: Axes) -> tuple[Value, ...]:
        return tuple(self.part(v, axis) for v, axis in zip(values, axes, strict=True))

    def part_type(self, type_: TensorType, axis: int | None) -> TensorType:
        return type_ if axis is None else type_.resized(axis, self.size(type_.shape[axis]))

    def made(self, values: Sequence[Value], axes: Axes) -> tuple[Value, ...]:
        """Fresh values for the parts of some values."""
        types = (self.part_type(v.type, axis) for v, axis in zip(values, axes, strict=True))
        return tuple(self.fresh.make(type_) for type_ in types)

    def note(self, values: Sequence[Value], axes: Axes, parts: Sequence[Value]) -> None:
        self.known.update(zip(zip(values, axes, strict=True), parts, strict=True))

    def define(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Stand-ins for parameters or results: their own parts if they are cut."""
        axes = self.axes_of(values)
        parts = self.made(values, axes)
        self.note(values, axes, parts)
        return parts

    # -- statements --------------------------------------------------------------------------------------
    def statements(self, body: Iterable[Statement]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        if isinstance(statement, UOperator):
            self.operator(statement)
        elif isinstance(statement, LoopUTask):
            self.loop(statement)
        else:
            assert isinstance(statement, BranchUTask), "stitched groups have no axis rule"
            self.branch(statement)

    def emit_parts(self, operator: UOperator, tie: Tie | None, where: list[Statement]) -> tuple[Value, ...]:
        """Emits the operator on the parts of its operands, or on whole ones without a tie; its results."""
        operands, results = cuts(operator, tie)
        inputs, outputs = self.parts_of(operator.inputs, operands), self.made(operator.outputs, results)
        attributes = operator.attributes if tie is None else part_attributes(operator, tie, self.size)
        where.append(replace(operator, inputs=inputs, outputs=outputs, attributes=attributes))
        return outputs

    # -- nested uTasks -----------------------------------------------------------------------------------
    def region(self, region: Region, axes: Axes) -> Region:
        """A nested region for the part; `axes`: of its results."""
        parameters = self.define(region.parameters)
        outer, self.out = self.out, []
        self.statements(region.body)
        results = self.parts_of(region.results, axes)
        body, self.out = tuple(self.out), outer
        return Region(parameters, body, results)

    def loop(self, loop: LoopUTask) -> None:
        axes = self.axes_of(loop.carried)
        initial = self.parts_of(loop.initial, axes)
        condition = self.condition(loop)
        body = self.region(loop.body, axes)
        outputs = self.define(loop.outputs)
        self.out.append(replace(loop, initial=initial, condition=condition, body=body, outputs=outputs))

    def condition(self, loop: LoopUTask) -> Region | None:
        """The condition of a loop, if it has one. Its predicate is whole."""
        return loop.condition and self.region(loop.condition, (None,))

    def branch(self, branch: BranchUTask) -> None:
        axes, selector = self.axes_of(branch.outputs), self.part(branch.selector, None)
        branches = tuple(self.region(region, axes) for region in branch.branches)
        outputs = self.define(branch.outputs)
        self.out.append(replace(branch, selector=selector, branches=branches, outputs=outputs))


def cuts(operator: UOperator, tie: Tie | None) -> tuple[Axes, Axes]:
    """The axes along which a tie cuts the operands and the results. Without a tie, all of them are whole."""
    if tie is None:
        return (None,) * len(operator.inputs), (None,) * len(operator.outputs)
    return tie.inputs, tie.outputs


def part_attributes(operator: UOperator, tie: Tie, size: Callable[[int], int]) -> Attributes:
    """The attributes of an operator on a part: sizes shrink, axes stay. `size` maps the length of an axis to
    that of its part. All parts of a constant are equal. The terms of a sum have the shape of the sum."""
    changed: dict[str, Attribute] = {}
    if not tie.parts:
        return operator.attributes
    if operator.kind == "constant":
        (cut,) = tie.outputs
        changed["data"] = constant_run(operator, cut, 0, size(operator.output.type.shape[cut]))
    elif operator.kind == "gather" and tie.inputs[1] is None:
        sizes, axis = operator.ints("slice_sizes"), tie.inputs[0]
        assert axis is not None
        own = size(operator.inputs[0].type.shape[axis])
        changed["slice_sizes"] = (*sizes[:axis], own, *sizes[axis + 1 :])
    elif operator.kind == "conv" and None not in tie.inputs:
        changed["feature_group_count"] = size(operator.number("feature_group_count"))
    return tuple((name, changed.get(name, value)) for name, value in operator.attributes)


def constant_run(operator: UOperator, axis: int, start: int, size: int) -> bytes:
    """The data of a run of a constant along an axis."""
    type_, data = operator.output.type, operator.data
    step = prod(type_.shape[axis + 1 :]) * ITEM_SIZE[type_.dtype]
    row = step * type_.shape[axis]
    rows = range(0, len(data), row)
    return b"".join(data[r + start * step : r + (start + size) * step] for r in rows)
