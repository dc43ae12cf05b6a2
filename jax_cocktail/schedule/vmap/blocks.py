"""Gives each batch element of a loop a block of threads of its own, on a GPU.

    loop over whole batches          ->          parallel loop over elements i:
                                                     what is computed for the element before its loop
                                                     loop of element i

The threads of a block share the arrays of an element. What only the loop reads is computed element by element
as well: no unit waits for another one, and nothing is stored for the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax_cocktail.schedule.vmap.cut import Cut, Place, Uncuttable
from jax_cocktail.schedule.vmap.emit import Emitter, one_by_one
from jax_cocktail.schedule.vmap.recover import branches_inside
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, is_a, reads
from jax_cocktail.utask.rewrite import map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value

_MOST_TRIES = 64  # operators: each takes as long as the cut of the loop


def block_loop(
    loop: LoopUTask, region: Region, places: Sequence[Place], count: int, fresh: FreshValues, flops: float
) -> Sequence[Statement] | None:
    """The parallel loop over the `count` elements of a loop in a region; None if nothing divides it, or if
    elements share weights. `places`: results of the loop, with the axis of the batch; `flops`: of a side of a
    select, from which only elements that take it compute it."""
    try:
        cut = _Before(loop, region, places, count).cut()
    except Uncuttable:
        return None
    if cut.has_shared_weights:
        return None
    out = Emitter(fresh, loop.source)
    one_by_one(cut, places, out, parallel=True)
    out.out[-1] = map_regions(out.out[-1], lambda inner: branches_inside(inner, fresh, flops))
    return out.out


class _Before:
    """The operators in front of a loop that are computed with it, element by element."""

    def __init__(self, loop: LoopUTask, region: Region, places: Sequence[Place], count: int) -> None:
        self.loop, self.body, self.places, self.count = loop, region.body, places, count
        self.made = {v: k for k, s in enumerate(region.body) if isinstance(s, UOperator) for v in s.outputs}
        self.readers: dict[Value, set[int]] = {v: {-1} for v in region.results}
        for k, statement in enumerate(region.body):
            for value in reads(statement):
                self.readers.setdefault(value, set()).add(k)

    def cut(self) -> Cut:
        """The cut of all of them. Raises Uncuttable."""
        taken = {next(k for k, s in enumerate(self.body) if s is self.loop)}
        cut, refused = self._cut(taken), set[int]()
        for _ in range(_MOST_TRIES):
            # what a block reads whole is not to be computed whole by every block
            parts = (value for value, _ in cut.needs if None not in cut.wanted[value])
            known = (self.made.get(value) for value in parts)
            free = (k for k in known if k is not None and k not in taken | refused)
            found = next((k for k in free if self._moves(self.body[k], taken)), None)
            if found is None or cut.has_shared_weights:
                break
            try:
                larger = self._cut({found, *taken})
            except Uncuttable:  # it mixes batch elements
                refused.add(found)
                continue
            if larger.has_shared_weights:
                refused.add(found)
            else:
                taken, cut = {found, *taken}, larger
        return cut

    def _moves(self, operator: Statement, taken: set[int]) -> bool:
        """True if nothing else reads what the operator makes, or if it costs nothing."""
        alone = all(self.readers.get(v, taken) <= taken for v in operator.outputs)
        return bool(reads(operator)) and (alone or is_a(operator, "broadcast"))

    def _cut(self, positions: set[int]) -> Cut:
        return Cut([self.body[k] for k in sorted(positions)], self.places, self.count, 1)
