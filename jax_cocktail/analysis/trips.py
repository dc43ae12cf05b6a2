"""Counted loops with independent iterations: they become parallel loops as they are.

Such a loop carries only arrays of which every iteration writes its own row (`analysis.parallel` proves it).
`lax.map` and recursions over batch elements make such loops. Units take the iterations in turn, so
neighbouring uneven iterations go to different units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jax_cocktail.analysis.parallel import parallel_fault
from jax_cocktail.utask.ir import LoopUTask, walk
from jax_cocktail.utask.types import Value

_NONE: Mapping[Value, int] = {}


def side_by_side(loop: LoopUTask, constants: Mapping[Value, int]) -> LoopUTask | None:
    """The loop with its trips as parts; None if their independence is not proven."""
    if loop.parallel or loop.trip_count is None or loop.trip_count < 2 or not loop.initial:
        return None
    found = replace(loop, parallel=True)
    return None if parallel_fault(found, constants) else found


def loop_with_unknown_trips(
    loop: LoopUTask, units: int, constants: Mapping[Value, int] = _NONE
) -> LoopUTask | None:
    """The loop with its trips as parts, if that is best for any body: there are enough trips, and a while
    loop in them makes their times unknown before the run. If the work were divided instead, units would wait
    for each other in every trip of the while loop."""
    if loop.trip_count is None or loop.trip_count < units:
        return None
    is_open = any(isinstance(s, LoopUTask) and s.trip_count is None for s in walk(loop.body))
    return side_by_side(loop, constants) if is_open else None
