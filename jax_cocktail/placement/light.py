"""Light statements: those that are recomputed wherever their results are needed."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from jax_cocktail.cost.work import work
from jax_cocktail.utask.ir import Statement, UOperator
from jax_cocktail.utask.types import Value


def is_light(statement: Statement, limit: float) -> bool:
    """True if a value is recomputed wherever a part of it is needed."""
    return (
        isinstance(statement, UOperator)
        and statement.is_element
        and len(statement.outputs) == 1
        and work(statement).flops <= limit
    )


def light_positions(statements: Sequence[Statement], limit: float) -> frozenset[int]:
    """Statements that are light together with all statements that they depend on."""
    needed: dict[Value, frozenset[int]] = {}  # for values of light statements: the light positions needed
    heavy: set[Value] = set()
    flops = [work(s).flops if is_light(s, limit) else inf for s in statements]
    for position, statement in enumerate(statements):
        own = frozenset({position})
        if flops[position] < inf and heavy.isdisjoint(statement.inputs):
            own = own.union(*(needed.get(v, frozenset()) for v in statement.inputs))
        if heavy.isdisjoint(statement.inputs) and sum(flops[n] for n in own) <= limit:
            needed[statement.outputs[0]] = own
        else:
            heavy.update(statement.outputs)
    return frozenset(n for own in needed.values() for n in own)
