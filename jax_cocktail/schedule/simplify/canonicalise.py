"""Brings contractions to the forms that the templates take.

dot: contracted axes that are several become one (reshape in front, and transpose unless they stand side by
side). conv: channels last, kernel
(spatial, input feature, output feature), batch groups rewritten as feature groups. The transposes are views
wherever memory allows, copies elsewhere: `stitch` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import cast

from jax_cocktail.utask.ir import (
    Attribute,
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
)
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import TensorType, Value


def canonicalise(program: UProgram) -> UProgram:
    """Returns its argument if every dot and conv is canonical already."""
    rewriter = _Rewriter(program)
    entry = rewriter.region(program.entry)
    return replace(program, entry=entry) if rewriter.changed else program


class _Rewriter:
    def __init__(self, program: UProgram) -> None:
        self.fresh = FreshValues(program)
        self.changed = False
        self.out: list[Statement] = []

    def region(self, region: Region) -> Region:
        outer, self.out = self.out, []
        for statement in region.body:
            self.statement(statement)
        body, self.out = tuple(self.out), outer
        return Region(region.parameters, body, region.results)

    def statement(self, statement: Statement) -> None:
        if isinstance(statement, UOperator):
            if statement.kind == "dot":
                self.dot(statement)
            elif statement.kind == "conv":
                self.conv(statement)
            else:
                self.out.append(statement)
        elif isinstance(statement, BranchUTask):
            self.out.append(replace(statement, branches=tuple(map(self.region, statement.branches))))
        elif isinstance(statement, LoopUTask):
            condition = statement.condition and self.region(statement.condition)
            self.out.append(replace(statement, condition=condition, body=self.region(statement.body)))
        else:
            self.out.append(statement)

    # -- building blocks ---------------------------------------------------------------------------------
    def emit(
        self, like: UOperator, kind: str, x: Value, shape: Sequence[int], **attributes: Attribute
    ) -> Value:
        value = self.fresh.make(TensorType(x.type.dtype, tuple(shape)))
        self.out.append(UOperator(kind, (x,), (value,), tuple(sorted(attributes.items())), like.source))
        return value

    def transpose(self, like: UOperator, x: Value, order: Sequence[int]) -> Value:
        order = tuple(order)
        if order == tuple(range(x.type.rank)):
            return x
        return self.emit(like, "transpose", x, [x.type.shape[d] for d in order], permutation=order)

    def reshape(self, like: UOperator, x: Value, shape: Sequence[int]) -> Value:
        return x if tuple(shape) == x.type.shape else self.emit(like, "reshape", x, shape)

    # -- dot ---------------------------------------------------------------------------------------------
    def dot(self, operator: UOperator) -> None:
        if len(operator.ints("lhs_contract")) <= 1:
            self.out.append(operator)
            return
        self.changed = True
        pairs = sorted(zip(operator.ints("lhs_contract"), operator.ints("rhs_contract"), strict=True))
        attributes = dict(operator.attributes)
        inputs = []
        for name, x, axes in zip(("lhs", "rhs"), operator.inputs, zip(*pairs, strict=True), strict=True):
            merged, axis = self._gather_axes(operator, x, axes)
            inputs.append(merged)
            attributes[f"{name}_contract"] = (axis,)
            attributes[f"{name}_batch"] = _shifted(operator.ints(f"{name}_batch"), axes, axis)
        packed = tuple(sorted(attributes.items()))
        self.out.append(replace(operator, inputs=tuple(inputs), attributes=packed))

    def _gather_axes(self, like: UOperator, x: Value, axes: tuple[int, ...]) -> tuple[Value, int]:
        """Makes the axes, in order, one: in place if they stand side by side, else behind the others."""
        first, kept = axes[0], [d for d in range(x.type.rank) if d not in axes]
        place = first if axes == tuple(range(first, first + len(axes))) else len(kept)
        moved = self.transpose(like, x, [*kept[:place], *axes, *kept[place:]])
        shape = [x.type.shape[d] for d in kept]
        shape.insert(place, prod(x.type.shape[d] for d in axes))
        return self.reshape(like, moved, shape), place

    # -- conv --------------------------------------------------------------------------------------------
    def conv(self, operator: UOperator) -> None:
        rank = operator.inputs[0].type.rank
        last = (0, rank - 1, *range(1, rank - 1))
        kernel = (rank - 1, rank - 2, *range(rank - 2))
        specs = tuple(operator.ints(n) for n in ("lhs_spec", "rhs_spec", "out_spec"))
        if specs == (last, kernel, last) and operator["batch_group_count"] == 1:
            self.out.append(operator)
            return
        self.changed = True
        lhs_spec, rhs_spec, out_spec = specs
        x = self.transpose(operator, operator.inputs[0], (lhs_spec[0], *lhs_spec[2:], lhs_spec[1]))
        w = self.transpose(operator, operator.inputs[1], (*rhs_spec[2:], rhs_spec[1], rhs_spec[0]))
        groups = cast(int, operator["batch_group_count"])
        if groups > 1:
            x = self._batch_groups(operator, x, groups)
        shape = operator.output.type.shape
        ordered = [shape[d] for d in (out_spec[0], *out_spec[2:], out_spec[1])]
        result = self.fresh.make(TensorType(operator.output.type.dtype, tuple(ordered)))
        changes = {"lhs_spec": last, "rhs_spec": kernel, "out_spec": last, "batch_group_count": 1}
        if groups > 1:
            changes["feature_group_count"] = groups
        attributes = tuple((n, cast(Attribute, changes.get(n, v))) for n, v in operator.attributes)
        self.out.append(replace(operator, inputs=(x, w), outputs=(result,), attributes=attributes))
        self._restore(operator, result, out_spec)

    def _batch_groups(self, like: UOperator, x: Value, groups: int) -> Value:
        """(g * N, spatial, C) -> (N, spatial, g * C): group j of the result reads batch group j."""
        n, *spatial, c = x.type.shape
        split = self.reshape(like, x, [groups, n // groups, *spatial, c])
        rank = len(spatial)
        moved = self.transpose(like, split, [1, *range(2, 2 + rank), 0, 2 + rank])
        return self.reshape(like, moved, [n // groups, *spatial, groups * c])

    def _restore(self, operator: UOperator, result: Value, out_spec: tuple[int, ...]) -> None:
        """Transposes a channels-last result to the layout that was asked for."""
        order = [0] * len(out_spec)
        for position, axis in enumerate((out_spec[0], *out_spec[2:], out_spec[1])):
            order[axis] = position
        attributes = (("permutation", tuple(order)),)
        self.out.append(UOperator("transpose", (result,), operator.outputs, attributes, operator.source))


def _shifted(axes: tuple[int, ...], removed: tuple[int, ...], added: int) -> tuple[int, ...]:
    """Where axes are when others have become one, `added`."""
    left = (d - sum(r < d for r in removed) for d in axes)
    return tuple(d + (d >= added) for d in left)
