"""Computes products ahead in a while loop whose end depends on its data.

Products of counters alone (a projection of the next input rows) can be computed for a chunk of steps before
it is known how many of them will run. This is sound because every operator involved is total: it has no side
effect, does not fail and terminates. Only the products and the views that counters index run ahead, not
`fail`, so the carries are those of the step at which the loop stopped.

    while p: body      ->      while p and fewer than `chunk` steps so far: body
                               while p: products of `chunk` steps
                                        while p and fewer than `chunk` steps: body, without the products

The first steps run as before, so a loop of few iterations pays nothing. A loop of many can afford some unused
rows at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jax_cocktail.schedule.loops.distribution.chunks import one_chunk
from jax_cocktail.schedule.loops.distribution.fission import analyse, free_of_recurrence
from jax_cocktail.schedule.loops.distribution.rebuild import Regrouper
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.copies import copied, copied_region
from jax_cocktail.utask.ir import LoopUTask, Region, Statement
from jax_cocktail.utask.substitute import FreshValues, region_reads
from jax_cocktail.utask.types import Value


def run_ahead(
    loop: LoopUTask, steps: int, minimum_flops: int, fresh: FreshValues
) -> tuple[tuple[Statement, ...], int]:
    """The new statements and the number of products; none if no product is free of the recurrence."""
    chunk = one_chunk(loop, steps, fresh)
    fission = analyse(chunk, minimum_flops)
    ahead = frozenset() if fission is None else free_of_recurrence(fission)
    if fission is None or not ahead:
        return (), 0
    regrouper = Regrouper(fission, fresh)
    stacked = regrouper.products_ahead(ahead)
    first, between = _limited(loop, loop.initial, steps, {}, fresh)
    again, after = _limited(loop, chunk.initial, steps, stacked, fresh)
    whole = LoopUTask(
        initial=between,
        outputs=loop.outputs,
        condition=copied_region(_condition(loop), {}, fresh),
        body=Region(chunk.initial, (*regrouper.b.out, *again), after),
        source=loop.source,
        likely_trips=None if loop.likely_trips is None else max(loop.likely_trips - 1, 0) // steps,
    )
    return (*first, whole), len(ahead)


def _condition(loop: LoopUTask) -> Region:
    assert loop.condition is not None
    return loop.condition


def _limited(
    loop: LoopUTask,
    initial: tuple[Value, ...],
    steps: int,
    stacked: Mapping[Value, Value],
    fresh: FreshValues,
) -> tuple[tuple[Statement, ...], tuple[Value, ...]]:
    """A copy of the loop that also stops after `steps` iterations and reads values of `stacked` from there,
    and its final carries."""
    front, test, b = (Builder(fresh, loop.source) for _ in range(3))
    zero, limit = front.constant(0), front.constant(steps)
    rest = copied(loop, {}, fresh)
    assert rest.condition is not None
    tested, done = fresh.make(INDEX), fresh.make(INDEX)
    room = test.compare("lt", tested, limit)
    both = test.binary("and", rest.condition.results[0], room)
    condition = Region((tested, *rest.condition.parameters), (*rest.condition.body, *test.out), (both,))
    following = b.binary("add", done, b.constant(1))
    body = _body(loop, done, stacked, fresh)
    whole = LoopUTask(
        initial=(zero, *initial),
        outputs=(fresh.make(INDEX), *rest.outputs),
        condition=condition,
        body=Region((done, *body.parameters), (*body.body, *b.out), (following, *body.results)),
        source=loop.source,
        likely_trips=None if loop.likely_trips is None else min(loop.likely_trips, steps),
    )
    return (*front.out, whole), rest.outputs


def _body(loop: LoopUTask, step: Value, stacked: Mapping[Value, Value], fresh: FreshValues) -> Region:
    """A copy of the body that reads its row of the results computed ahead."""
    b = Builder(fresh, loop.source)
    rows: dict[Value, Value] = {}
    for value, array in stacked.items():
        rows[value] = b.row(array, step)
    left = tuple(s for s in loop.body.body if s.outputs[0] not in stacked)
    inner = copied_region(region_reads(replace(loop.body, body=left), rows), {}, fresh)
    return replace(inner, body=(*b.out, *inner.body))
