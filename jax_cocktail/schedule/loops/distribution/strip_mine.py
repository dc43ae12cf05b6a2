"""Strip-mining: a counted loop becomes a loop over strips of a loop over the steps of a strip."""

from __future__ import annotations

from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.copies import copied
from jax_cocktail.utask.ir import LoopUTask, Region, Statement
from jax_cocktail.utask.substitute import FreshValues, region_reads, replaced
from jax_cocktail.utask.types import Value


def strip_mine(loop: LoopUTask, steps: int, fresh: FreshValues) -> tuple[LoopUTask, LoopUTask, Value]:
    """As many strips of `steps` trips as fit.

    Returns the loop over strips, whose body still lacks the loop over steps; that loop; and the value, in the
    outer body, of the strip's first index.
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
    """The trips from `first` on as a loop of their own, from these carried values; and in front the constant
    `first` and its value."""
    assert loop.trip_count is not None and loop.index is not None
    front, b = Builder(fresh, loop.source), Builder(fresh, loop.source)
    start, step = front.constant(first), fresh.make(INDEX)
    index = b.binary("add", start, step)
    parameters = b.like(loop.carried)
    names = dict(zip(loop.body.parameters, (index, *parameters), strict=True))
    body = (*b.out, *(copied(s, names, fresh) for s in loop.body.body))
    rest = LoopUTask(
        initial=initial,
        outputs=loop.outputs,
        body=Region((step, *parameters), body, replaced(loop.body.results, names)),
        trip_count=loop.trip_count - first,
        source=loop.source,
    )
    return front.out[0], start, rest
