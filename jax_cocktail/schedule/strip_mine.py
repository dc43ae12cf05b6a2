"""Strip-mining: a counted loop becomes a loop over strips of a loop over the steps of a strip."""

from __future__ import annotations

from jax_cocktail.schedule.graph import with_reads
from jax_cocktail.schedule.substitute import FreshValues
from jax_cocktail.utask.ir import LoopUTask, Region, UOperator
from jax_cocktail.utask.types import TensorType, Value

INDEX = TensorType("int64", ())


def strip_mine(loop: LoopUTask, steps: int, fresh: FreshValues) -> tuple[LoopUTask, LoopUTask, Value]:
    """Strips of `steps` trips, which must divide the trip count.

    Returns the loop over strips, whose body still lacks the loop over steps; that loop; and the value, in the
    outer body, of the strip's first index.
    """
    assert loop.trip_count is not None and loop.trip_count % steps == 0 and loop.index is not None
    strip, step, length, base, index = (fresh.make(INDEX) for _ in range(5))
    outer_carried = tuple(fresh.make(v.type) for v in loop.carried)
    outer_results = tuple(fresh.make(v.type) for v in loop.carried)
    source = loop.source
    data = steps.to_bytes(8, "little")
    first = (
        UOperator("constant", (), (length,), (("data", data),), source),
        UOperator("mul", (strip, length), (base,), (), source),
    )
    here = UOperator("add", (base, step), (index,), (), source)
    body = tuple(with_reads(s, {loop.index: index}) for s in loop.body.body)
    results = tuple(index if v == loop.index else v for v in loop.body.results)
    inner = LoopUTask(
        initial=outer_carried,
        outputs=outer_results,
        body=Region((step, *loop.carried), (here, *body), results),
        trip_count=steps,
        source=source,
    )
    outer = LoopUTask(
        initial=loop.initial,
        outputs=loop.outputs,
        body=Region((strip, *outer_carried), first, outer_results),
        trip_count=loop.trip_count // steps,
        source=source,
    )
    return outer, inner, base
