"""Copies of statements under fresh names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
)
from jax_cocktail.utask.rewrite import map_regions
from jax_cocktail.utask.substitute import FreshValues, replaced, with_operands
from jax_cocktail.utask.types import Value

S = TypeVar("S", UOperator, LoopUTask, BranchUTask, StitchedUTask, Statement)
Names = dict[Value, Value]


def copied(statement: S, names: Names, fresh: FreshValues) -> S:
    """The statement on the operands in `names`; its definitions get fresh names, added to `names`.

    Results that have names in `names` already keep these.
    """
    if isinstance(statement, StitchedUTask):
        members = tuple(copied(m, names, fresh) for m in statement.members)
        inputs, outputs = (replaced(values, names) for values in (statement.inputs, statement.outputs))
        return replace(statement, members=members, inputs=inputs, outputs=outputs)
    found = map_regions(with_operands(statement, names), lambda region: copied_region(region, names, fresh))
    return replace(found, outputs=_named(statement.outputs, names, fresh))


def copied_region(region: Region, names: Names, fresh: FreshValues) -> Region:
    """A region under fresh names."""
    parameters = _named(region.parameters, names, fresh)
    body = tuple(copied(s, names, fresh) for s in region.body)
    return Region(parameters, body, replaced(region.results, names))


def applied(
    region: Region, values: Sequence[Value], fresh: FreshValues, names: Mapping[Value, Value] | None = None
) -> tuple[list[Statement], tuple[Value, ...]]:
    """Copies of a region's statements, with these values for its parameters, and its results. `names`: of
    results of the copies."""
    names = {**(names or {}), **dict(zip(region.parameters, values, strict=True))}
    return [copied(s, names, fresh) for s in region.body], replaced(region.results, names)


def _named(values: Sequence[Value], names: Names, fresh: FreshValues) -> tuple[Value, ...]:
    for value in values:
        if value not in names:
            names[value] = fresh.make(value.type)
    return replaced(values, names)
