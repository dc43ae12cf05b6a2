"""Strip-mining: a counted loop becomes a loop over strips of a loop over the steps of a strip."""

from __future__ import annotations

from jax_cocktail.utask.copies import INDEX, constant, copied
from jax_cocktail.utask.ir import LoopUTask, Region, UOperator
from jax_cocktail.utask.substitute import FreshValues, replaced, with_reads
from jax_cocktail.utask.types import Value


def strip_mine(loop: LoopUTask, steps: int, fresh: FreshValues) -> tuple[LoopUTask, LoopUTask, Value]:
    """As many strips of `steps` trips as fit.

    Returns the loop over strips, whose body still lacks the loop over steps; that loop; and the value, in the
    outer body, of the strip's first index.
    """
    assert loop.trip_count is not None and loop.index is not None
    strip, step, base, index = (fresh.make(INDEX) for _ in range(4))
    outer_carried = tuple(fresh.make(v.type) for v in loop.carried)
    outer_results = tuple(fresh.make(v.type) for v in loop.carried)
    source = loop.source
    length = constant(steps, fresh, loop)
    first = (length, UOperator("mul", (strip, length.output), (base,), (), source))
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
    whole = loop.trip_count % steps == 0
    outer = LoopUTask(
        initial=loop.initial,
        outputs=loop.outputs if whole else tuple(fresh.make(v.type) for v in loop.outputs),
        body=Region((strip, *outer_carried), first, outer_results),
        trip_count=loop.trip_count // steps,
        source=source,
    )
    return outer, inner, base


def remainder(
    loop: LoopUTask, first: int, initial: tuple[Value, ...], fresh: FreshValues
) -> tuple[UOperator, LoopUTask]:
    """The trips from `first` on as a loop of their own, from these carried values; and the constant `first`,
    which goes in front."""
    assert loop.trip_count is not None and loop.index is not None
    start = constant(first, fresh, loop)
    step, index = fresh.make(INDEX), fresh.make(INDEX)
    here = UOperator("add", (start.output, step), (index,), (), loop.source)
    parameters = tuple(fresh.make(v.type) for v in loop.carried)
    names = dict(zip(loop.body.parameters, (index, *parameters), strict=True))
    body = (here, *(copied(s, names, fresh) for s in loop.body.body))
    rest = LoopUTask(
        initial=initial,
        outputs=loop.outputs,
        body=Region((step, *parameters), body, replaced(loop.body.results, names)),
        trip_count=loop.trip_count - first,
        source=loop.source,
    )
    return start, rest
