"""Loops in which each trip decides if another one follows (`LoopUTask.stops_by`), and branches on that."""

from __future__ import annotations

from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, operators_in
from jax_cocktail.utask.types import Value


def asked(condition: Region) -> tuple[Value, ...]:
    """The values of a condition without any of which it is false: its result, and the operands of `and`."""
    found = dict.fromkeys(condition.results)
    for operator in reversed(list(operators_in(condition))):
        if operator.kind == "and" and operator.output in found:
            found.update(dict.fromkeys(operator.inputs))
    return tuple(found)


def asks_for(condition: Region, position: int) -> bool:
    """True if a condition is false whenever its parameter at this position is."""
    return condition.parameters[position] in asked(condition)


def stopping_branch(loop: LoopUTask) -> int | None:
    """Position of the two-way branch in the loop's body whose first region runs in the last trip only."""
    if loop.stops_by is None:
        return None
    going = loop.body.results[loop.stops_by]
    selectors = {o.output for o in operators_in(loop.body) if o.kind == "convert" and o.inputs[0] == going}
    for position, statement in enumerate(loop.body.body):
        if isinstance(statement, BranchUTask) and statement.selector in selectors:
            return position if len(statement.branches) == 2 else None
    return None
