"""Copies of statements under fresh names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UTaskRef,
)
from jax_cocktail.utask.substitute import FreshValues, replaced
from jax_cocktail.utask.types import TensorType, Value

INDEX = TensorType("int64")

Names = dict[Value, Value]


def copied(statement: Statement, names: Names, fresh: FreshValues) -> Statement:
    """The statement on the operands in `names`; what it defines gets fresh names, noted in `names` too.

    Names that `names` has for its results already are taken over.
    """
    if isinstance(statement, StitchedUTask):
        members = tuple(copied(m, names, fresh) for m in statement.members)
        changes = {"inputs": replaced(statement.inputs, names), "outputs": replaced(statement.outputs, names)}
        return replace(statement, members=members, **changes)  # type: ignore[arg-type]
    if isinstance(statement, UOperator):
        inputs = replaced(statement.inputs, names)
        return replace(statement, inputs=inputs, outputs=_named(statement.outputs, names, fresh))
    if isinstance(statement, BranchUTask):
        selector = names.get(statement.selector, statement.selector)
        branches = tuple(copied_region(r, names, fresh) for r in statement.branches)
        outputs = _named(statement.outputs, names, fresh)
        return replace(statement, selector=selector, branches=branches, outputs=outputs)
    if isinstance(statement, UTaskRef):
        arguments = replaced(statement.arguments, names)
        return replace(statement, arguments=arguments, outputs=_named(statement.outputs, names, fresh))
    initial = replaced(statement.initial, names)
    condition = statement.condition and copied_region(statement.condition, names, fresh)
    body = copied_region(statement.body, names, fresh)
    outputs = _named(statement.outputs, names, fresh)
    return replace(statement, initial=initial, condition=condition, body=body, outputs=outputs)


def copied_region(region: Region, names: Names, fresh: FreshValues) -> Region:
    """A region under fresh names."""
    parameters = _named(region.parameters, names, fresh)
    body = tuple(copied(s, names, fresh) for s in region.body)
    return Region(parameters, body, replaced(region.results, names))


def _named(values: Sequence[Value], names: Names, fresh: FreshValues) -> tuple[Value, ...]:
    for value in values:
        if value not in names:
            names[value] = fresh.make(value.type)
    return replaced(values, names)


def constant(number: int, fresh: FreshValues, like: LoopUTask) -> UOperator:
    """An int64 constant."""
    data = number.to_bytes(8, "little", signed=True)
    return UOperator("constant", (), (fresh.make(INDEX),), (("data", data),), like.source)
