"""Joined gates get an axis of their own, so that units can make them column by column.

    concatenate(a, b)            ->      reshape(concatenate(reshape(a), reshape(b)))
    [n, k], [n, k] -> [n, 2 k]           [n, 1, k], [n, 1, k] -> [n, 2, k] -> [n, 2 k]

The gradient of a recurrent cell joins the gradients of its gates, side by side, for the product with the
weights. Column j of each comes from hidden unit j, but stands far apart in the joined array, of which no part
would be made from parts of the gates; with the gates on an axis, column j of all of them is one part. The
product reads all of it either way, and the last reshape moves nothing. (`placement.push_slices` does the same
for gates that are taken apart.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from jax_cocktail.schedule.memory.sharing import REPLICATED_BYTES
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, UProgram
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import TensorType, Value


def stack_gates(program: UProgram) -> UProgram:
    """Returns its argument if no loop joins equal parts for a product."""
    fresh = FreshValues(program)
    entry = _region(program.entry, fresh, inside=False)
    return program if entry is program.entry else replace(program, entry=entry)


def _region(region: Region, fresh: FreshValues, inside: bool) -> Region:
    multiplied = _multiplied(region.body) if inside else set[Value]()
    body: list[Statement] = []
    for statement in region.body:
        if isinstance(statement, LoopUTask):
            inner = _region(statement.body, fresh, inside=True)
            body.append(statement if inner is statement.body else replace(statement, body=inner))
        elif isinstance(statement, BranchUTask):
            branches = tuple(_region(r, fresh, inside) for r in statement.branches)
            same = all(a is b for a, b in zip(branches, statement.branches, strict=True))
            body.append(statement if same else replace(statement, branches=branches))
        elif isinstance(statement, UOperator) and _joins(statement, multiplied):
            body += _stacked(statement, fresh)
        else:
            body.append(statement)
    same = len(body) == len(region.body) and all(a is b for a, b in zip(body, region.body, strict=True))
    return region if same else replace(region, body=tuple(body))


def _multiplied(statements: Sequence[Statement]) -> set[Value]:
    return {v for s in statements if isinstance(s, UOperator) and s.kind == "dot" for v in s.inputs}


def _joins(operator: UOperator, multiplied: set[Value]) -> bool:
    """True if an operator joins equal parts for a product, and more than every unit makes for itself."""
    if operator.kind != "concatenate" or operator.output not in multiplied:
        return False
    if operator.output.type.nbytes <= REPLICATED_BYTES:
        return False
    axis = cast(int, operator["dimension"])
    lengths = {v.type.shape[axis] for v in operator.inputs}
    return len(operator.inputs) > 1 and len(lengths) == 1 and max(lengths) > 1


def _stacked(join: UOperator, fresh: FreshValues) -> tuple[UOperator, ...]:
    axis, type_ = cast(int, join["dimension"]), join.inputs[0].type
    before, after = type_.shape[:axis], type_.shape[axis:]

    def gates(number: int) -> Value:
        return fresh.make(TensorType(type_.dtype, (*before, number, *after)))

    apart = [UOperator("reshape", (v,), (gates(1),), (), join.source) for v in join.inputs]
    joined = replace(join, inputs=tuple(s.output for s in apart), outputs=(gates(len(apart)),))
    flat = UOperator("reshape", (joined.output,), join.outputs, (), join.source)
    return (*apart, joined, flat)
