"""Loops that say in a trip whether there is another one, and a branch on that."""

from __future__ import annotations

from jax_cocktail.utask.ir import BranchUTask, LoopUTask, operators_in


def stopping_branch(loop: LoopUTask) -> int | None:
    """Position of a two-way branch in the loop's body whose first way is taken in the last trip only: it
    selects by a bool[] that the body hands on, and that the condition asks for."""
    if loop.condition is None:
        return None
    asked = set(loop.condition.results)
    for operator in reversed(list(operators_in(loop.condition))):
        if operator.kind == "and" and operator.output in asked:
            asked.update(operator.inputs)
    following = zip(loop.condition.parameters, loop.body.results, strict=True)
    going = {result for parameter, result in following if parameter in asked}
    converted = (o for o in operators_in(loop.body) if o.kind == "convert")
    selectors = {o.output for o in converted if o.inputs[0] in going}
    for position, statement in enumerate(loop.body.body):
        if isinstance(statement, BranchUTask) and statement.selector in selectors:
            return position if len(statement.branches) == 2 else None
    return None
