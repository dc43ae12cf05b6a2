"""The data that a loop touches again in every trip, and the cache that this needs.

An independent axis may be cut into more parts than there are units: a part whose values stay in a core's
cache runs all trips of its loop there, while a larger one streams them from further out in every trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax_cocktail.cost.work import runs
from jax_cocktail.device.host import Cache
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator
from jax_cocktail.utask.operators import FREE
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


def _touched(body: Region) -> dict[Value, None]:
    """Arrays that the operators of a body read or write themselves; views move nothing."""
    found: dict[Value, None] = {}
    for statement in body.body:
        if isinstance(statement, UOperator) and statement.kind not in _MOVES_NOTHING:
            found.update(dict.fromkeys((*statement.inputs, *statement.outputs)))
    return found
