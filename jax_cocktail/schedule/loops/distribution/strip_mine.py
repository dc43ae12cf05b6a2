"""Strip-mining: a counted loop becomes a loop over strips around a loop over the steps of a strip.

    for t < n: body      ->      for s < n // steps: for t < steps: body

The remaining `n % steps` iterations form a loop of their own.
"""

from __future__ import annotations

from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.copies import applied
from jax_cocktail.utask.ir import LoopUTask, Region, Statement
from jax_cocktail.utask.substitute import FreshValues, region_reads
from jax_cocktail.utask.types import Value


def strip_mine(loop: LoopUTask, steps: int, fresh: FreshValues) -> tuple[LoopUTask, LoopUTask, Value]:
    """Makes as many strips of `steps` iterations as fit.

    Returns the loop over strips, whose body still lacks the loop over steps; that loop; and, in the outer
    body, the strip's first index.
    """
    assert loop.trip_count is not None and loop.index is not None
    source = loop.source
    first, here = Builder(fresh, source), Builder(fresh, source)
    strip, step, base, index = (fresh.make(INDEX) for _ in range(4))
    outer_carried, outer_results = first.like(loop.carried), first.like(loop.carried)
    first.define((base,), "mul", (strip, first.constant(steps)))
    here.define((index,), "add", (base, step))
    body = region_reads(loop.body, {loop.index: index})
    inner = LoopUTask(
        initial=outer_carried,
        outputs=outer_results,
        body=Region((step, *loop.carried), (*here.out, *body.body), body.results),
        trip_count=steps,
        source=source,
    )
    whole = loop.trip_count % steps == 0
    outer = LoopUTask(
        initial=loop.initial,
        outputs=loop.outputs if whole else first.like(loop.outputs),
        body=Region((strip, *outer_carried), tuple(first.out), outer_results),
        trip_count=loop.trip_count // steps,
        source=source,
    )
    return outer, inner, base


def remainder(
    loop: LoopUTask, first: int, initial: tuple[Value, ...], fresh: FreshValues
) -> tuple[Statement, Value, LoopUTask]:
    """The constant `first`, its value, and a loop over the iterations from `first` on with these initial
    values."""
    assert loop.trip_count is not None and loop.index is not None
    front, b = Builder(fresh, loop.source), Builder(fresh, loop.source)
    start, step = front.constant(first), fresh.make(INDEX)
    index = b.binary("add", start, step)
    parameters = b.like(loop.carried)
    body, results = applied(loop.body, (index, *parameters), fresh)
    rest = LoopUTask(
        initial=initial,
        outputs=loop.outputs,
        body=Region((step, *parameters), (*b.out, *body), results),
        trip_count=loop.trip_count - first,
        source=loop.source,
    )
    return front.out[0], start, rest
