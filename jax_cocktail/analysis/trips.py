"""Counted loops with independent iterations, which become parallel loops as they are.

Such a loop carries nothing but arrays of which every iteration writes a row of its own
(`analysis.parallel` proves it): what `lax.map` makes, or a recursion over batch elements. Units take the
iterations in turn, so uneven iterations that stand side by side go to different units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jax_cocktail.analysis.parallel import parallel_fault
from jax_cocktail.utask.ir import LoopUTask, walk
from jax_cocktail.utask.types import Value

_NONE: Mapping[Value, int] = {}


def side_by_side(loop: LoopUTask, constants: Mapping[Value, int]) -> LoopUTask | None:
    """The loop with its trips as parts; None if they are not known to be independent."""
    if loop.parallel or loop.trip_count is None or loop.trip_count < 2 or not loop.initial:
        return None
    found = replace(loop, parallel=True)
    return None if parallel_fault(found, constants) else found


def goes_by_trips(loop: LoopUTask, units: int, constants: Mapping[Value, int] = _NONE) -> LoopUTask | None:
    """The loop with its trips as parts, if that is best whatever is in it: there are enough of them, and only
    the run tells how long one takes, since there is a while loop in it. Units would meet in every trip of
    that, if its work were divided."""
    if loop.trip_count is None or loop.trip_count < units:
        return None
    is_open = any(isinstance(s, LoopUTask) and s.trip_count is None for s in walk(loop.body))
    return side_by_side(loop, constants) if is_open else None
