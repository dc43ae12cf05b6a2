"""Carries that no trip reads: only what the last trip gives them counts."""

from __future__ import annotations

from jax_cocktail.utask.ir import LoopUTask, reads
from jax_cocktail.utask.types import Value


def unread_carries(loop: LoopUTask) -> dict[int, Value]:
    """The next values of such carries, by position. None if there may be no trip, which gives the initial
    values, or if its trips write parts of arrays side by side."""
    if not loop.trip_count or loop.parallel:
        return {}
    read = {value for statement in loop.body.body for value in reads(statement)}.union(loop.body.results)
    rows = zip(loop.carried, loop.body.results, strict=True)
    return {k: result for k, (carried, result) in enumerate(rows) if carried not in read}
