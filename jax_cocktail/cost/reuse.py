"""The data that a loop touches again in every trip, and the cache that this needs.

An independent axis may be cut into more parts than there are units: a part whose values stay in a core's
cache runs all trips of its loop there, while a larger one streams them from further out in every trip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from jax_cocktail.analysis.axes import rule
from jax_cocktail.cost.work import runs
from jax_cocktail.device.host import Cache
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator
from jax_cocktail.utask.operators import FREE, PRODUCTS
from jax_cocktail.utask.rewrite import Inside, fold
from jax_cocktail.utask.types import Value

_MOVES_NOTHING = FREE | {"dynamic_update_slice"}


def streaming_seconds(
    statements: Sequence[Statement], axes: Mapping[Value, int], parts: int, units: int, cache: Cache
) -> float:
    """Seconds that all parts together take to fetch the data that their loops use again."""

    def each(statement: Statement, inside: Inside[float]) -> float:
        nested = sum(map(sum, inside))
        if not isinstance(statement, LoopUTask):
            return nested
        size = sum(value.type.nbytes / (parts if value in axes else 1) for value in _touched(statement.body))
        return runs(statement) * (parts * cache.seconds(size, units) + nested)

    return sum(fold(statement, each) for statement in statements)


def reused_bytes(statements: Sequence[Statement], axes: Mapping[Value, int]) -> float:
    """Bytes of the divided arrays that these statements touch more than once, a few of which fusion keeps in
    registers. 0 if there is more among them than plain operators: products and nested uTasks read more than
    what is divided."""
    touches: Counter[Value] = Counter()
    views: set[Value] = set()
    for statement in statements:
        if not isinstance(statement, UOperator) or statement.kind in PRODUCTS:
            return 0.0
        if statement.kind in _MOVES_NOTHING:
            views.update(statement.outputs)
        else:
            tie = rule(statement).along([axes.get(v) for v in statement.outputs])
            tied = tie.inputs if tie is not None else (None,) * len(statement.inputs)
            read = (v for v, axis in zip(statement.inputs, tied, strict=True) if axis is not None)
            touches.update((*dict.fromkeys(read), *statement.outputs))
    return float(sum(v.type.nbytes for v, times in touches.items() if times > 1 and v not in views))


def _touched(body: Region) -> dict[Value, None]:
    """Arrays that the operators of a body read or write themselves; views move nothing."""
    found: dict[Value, None] = {}
    for statement in body.body:
        if isinstance(statement, UOperator) and statement.kind not in _MOVES_NOTHING:
            found.update(dict.fromkeys((*statement.inputs, *statement.outputs)))
    return found
