"""Runs a while loop by chunks: while the counter has room, the next `chunk` steps form a counted loop.

    while i < n: body      ->      while i < n and n - i >= chunk: counted loop of `chunk` bodies
                                   while i < n: body

No additional step runs, so nothing is masked and no operator needs to be total. A loop of few iterations runs
as before. The counted loop can be distributed like any other.
"""

from __future__ import annotations

from dataclasses import replace

from jax_cocktail.schedule.simplify.trip_counts import Counter
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.copies import copied
from jax_cocktail.utask.ir import LoopUTask, Region, Statement
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import ITEM_SIZE, Value

LONGEST_WAY = 1 << 31  # by which a counter moves in a chunk: sums of two such numbers never overflow


def fits(counter: Counter, steps: int) -> bool:
    """True if the test for a chunk of `steps` steps does not overflow."""
    return abs(counter.step) * steps < LONGEST_WAY and counter.bound.type.shape == ()


def one_chunk(loop: LoopUTask, steps: int, fresh: FreshValues) -> LoopUTask:
    """The counted loop over the steps of a chunk, with the value names of the while loop's body."""
    b = Builder(fresh)
    carried, outputs = b.like(loop.carried), b.like(loop.carried)
    body = Region((fresh.make(INDEX), *loop.carried), loop.body.body, loop.body.results)
    return LoopUTask(initial=carried, outputs=outputs, body=body, trip_count=steps, source=loop.source)


def by_chunks(
    loop: LoopUTask, counter: Counter, chunk: LoopUTask, divided: tuple[Statement, ...], fresh: FreshValues
) -> tuple[Statement, ...]:
    """The loop over chunks, with the `divided` chunk in it, and the loop over the remaining steps."""
    assert loop.condition is not None and chunk.trip_count is not None
    between = Builder(fresh).like(loop.outputs)
    names: dict[Value, Value] = {}
    prefix = tuple(copied(s, names, fresh) for s in counter.prefix)
    bound = names.get(counter.bound, counter.bound)
    rounds, left = (None, None) if loop.likely_trips is None else divmod(loop.likely_trips, chunk.trip_count)
    whole = LoopUTask(
        initial=loop.initial,
        outputs=between,
        condition=_has_room(loop, counter, bound, chunk.trip_count, fresh),
        body=Region(chunk.initial, divided, chunk.outputs),
        source=loop.source,
        likely_trips=rounds,
    )
    rest = copied(loop, {}, fresh)
    return (*prefix, whole, replace(rest, initial=between, outputs=loop.outputs, likely_trips=left))


def _has_room(loop: LoopUTask, counter: Counter, bound: Value, steps: int, fresh: FreshValues) -> Region:
    """The condition that the counter has not reached the bound and is far enough from it."""
    b = Builder(fresh, loop.source)
    parameters = b.like(loop.carried)
    here, there = parameters[counter.position], bound
    inside = b.compare(counter.test, here, there)
    wide = here.type.dtype if ITEM_SIZE[here.type.dtype] == 8 else "int64"
    here, there = b.convert(here, wide), b.convert(there, wide)
    room = b.binary("sub", *((there, here) if counter.step > 0 else (here, there)))
    enough = b.compare("ge", room, b.constant(abs(counter.step) * steps, wide))
    both = b.binary("and", inside, enough)
    return Region(parameters, tuple(b.out), (both,))
