"""Recovers the control flow of single batch elements under `jax.vmap`.

    loop until no element is active:         parallel loop over elements i:
        next = step(all elements)      ->        loop while element i is active:
        select(active, next, old)                    step(element i)

A vmapped `while` arrives as a lock-step loop: all batch elements run until the last one is done. This pass
lets each run its own iterations: one at a time if it fills vector registers, else a few at a time in
persistent slots (`slots`). A vmapped `cond` arrives as a select between both sides, computed for all
elements; an expensive side is then computed only for the elements that take it (`choose`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax_cocktail.device.tuning import BATCH, BatchTuning
from jax_cocktail.schedule.simplify.dead_code import remove_dead_code
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.vmap.choose import Chooser
from jax_cocktail.schedule.vmap.cut import Cut, Uncuttable
from jax_cocktail.schedule.vmap.emit import Emitter, one_by_one
from jax_cocktail.schedule.vmap.forms import single_loops
from jax_cocktail.schedule.vmap.lockstep import ElementLoop, element_loop
from jax_cocktail.schedule.vmap.narrow import Narrowing
from jax_cocktail.schedule.vmap.scopes import Scopes
from jax_cocktail.schedule.vmap.slots import SlotLoop, Slots, spreads_of
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UProgram
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.rewrite import map_body, map_regions, with_body
from jax_cocktail.utask.sizes import is_general, least_of
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Source, Value


def recover(
    program: UProgram, units: int = 1, remark: Listener = nobody, limits: BatchTuning = BATCH
) -> UProgram:
    """Returns its argument if there is nothing to recover. Several `units` divide the batch."""
    program = single_loops(program, together=True)
    recovery = _Recovery(FreshValues(program), units, remark, limits)
    return map_regions(remove_dead_code(map_regions(program, recovery.narrowed)), recovery.region)


def branches_inside(region: Region, fresh: FreshValues, flops: float) -> Region:
    """The region of one batch element, with branches in the place of selects between sides of more than so
    many flops."""
    limits = replace(BATCH, branch_flops=flops)
    return _Recovery(fresh, 1, nobody, limits).region(region, inside=True)


def narrowed(program: UProgram) -> UProgram:
    """The program without broadcasts of what all batch elements share (see `narrow`)."""
    recovery = _Recovery(FreshValues(program), 1, nobody, BATCH)
    # predicates of vectors and of numbers may be the same one then
    return simplify(map_regions(program, recovery.narrowed))


class _Recovery(Scopes):
    def __init__(self, fresh: FreshValues, units: int, remark: Listener, limits: BatchTuning) -> None:
        super().__init__()
        self.fresh = fresh
        self.units, self.remark, self.limits = units, remark, limits
        self.chooser = Chooser(self.fresh, units, limits, self._say, self._one_by_one)
        self.depth = 0  # of enclosing loops

    def narrowed(self, region: Region) -> Region:
        """See `narrow`. A loop's condition and body are both narrowed, so that they still compare."""
        outer, self.made = self.made, self.made.new_child()
        narrowing = Narrowing(self.fresh, self.made, self.chooser.indexed)
        region = map_body(region, lambda s: narrowing.changed(map_regions(s, self.narrowed)))
        self.made = outer
        return region

    def region(self, region: Region, inside: bool = False) -> Region:
        """`inside`: of a loop over batch elements: everything in it runs on one unit."""
        with self.entered(region):
            chosen = with_body(
                region, self.chooser.run(region.body, region.results, self.made, inside, self.depth)
            )
            return map_body(chosen, lambda s: self._statement(s, inside))

    def _statement(self, statement: Statement, inside: bool) -> Statement | Sequence[Statement]:
        if isinstance(statement, LoopUTask):
            return self._loop(statement, inside)
        return map_regions(statement, lambda region: self.region(region, inside))

    def _loop(self, loop: LoopUTask, inside: bool) -> Statement | Sequence[Statement]:
        elements = element_loop(loop)
        sizes = () if elements is None else elements.predicate.type.shape
        wide = sorted((n, j) for j, n in enumerate(sizes) if n > 1)
        if elements is not None and wide and 0 not in sizes:
            try:
                return self._element_by_element(loop, elements, wide[0][1], len(wide) == 1, inside)
            except Uncuttable as found:
                self._say(False, f"a vmapped while loop stays in lock-step: {found}", loop.source)
        self.depth += 1
        loop = map_regions(loop, lambda region: self.region(region, inside))
        self.depth -= 1
        return loop

    def _element_by_element(
        self, loop: LoopUTask, elements: ElementLoop, along: int, last: bool, inside: bool
    ) -> Sequence[Statement]:
        count = elements.predicate.type.shape[along]
        axes = tuple(place[along] for place in elements.axes)
        places = tuple(zip(loop.outputs, axes, strict=True))
        single = Cut((loop,), places, count, 1)
        out = Emitter(self.fresh, loop.source)
        carried = sum(v.type.nbytes for v in loop.initial) // count
        largest = _largest(loop, count)
        if last and (largest < self.limits.element_bytes or single.has_shared_weights):
            fewest = self.limits.rows if single.has_shared_weights else 2
            width = self.limits.width(count, max(self.limits.slot_bytes // max(carried, 1), fewest))
            if not width:
                raise Uncuttable(f"the batch has only {count} elements")
            if count > self.limits.most:
                raise Uncuttable(f"the batch has {count} elements, which are too many for slots")
            parts = 1 if inside else self.limits.parts_of(count, width, self.units)
            if is_general(count):  # none of them may be empty in any call
                parts = max(n for n in range(1, parts + 1) if n * (n - 1) <= least_of(count))
            idle = max(width // 4, 1)
            slots = Slots(width, parts, idle, idle if single.has_shared_weights else 1)
            SlotLoop(loop, spreads_of(loop, self.made), axes, count, slots, out).statements()
            out.out = [map_regions(s, self._in_slots) for s in out.out]
            self._say(
                True, f"{count} batch elements of a vmapped while loop share {width} slots", loop.source
            )
            return out.out
        self._one_by_one(single, places, out, inside)
        self._say(True, f"{count} batch elements of a vmapped while loop run one by one", loop.source)
        return out.out

    def _one_by_one(self, cut: Cut, results: Sequence[tuple[Value, int]], out: Emitter, inside: bool) -> None:
        """Appends a loop over batch elements that makes `results`, each with its batch axis."""
        one_by_one(cut, results, out, parallel=not inside and self.units > 1)
        out.out[-1] = map_regions(out.out[-1], lambda region: self.region(region, inside=True))

    def _in_slots(self, region: Region) -> Region:
        """The region of a few slots: loops inside of which one element fills vector registers run one by
        one."""
        return map_body(region, self._slot_statement)

    def _slot_statement(self, statement: Statement) -> Statement | Sequence[Statement]:
        elements = element_loop(statement) if isinstance(statement, LoopUTask) else None
        if elements is not None and elements.predicate.type.rank == 1 and elements.predicate.type.size > 1:
            assert isinstance(statement, LoopUTask)
            count = elements.predicate.type.size
            places = tuple((v, axis) for v, (axis,) in zip(statement.outputs, elements.axes, strict=True))
            try:
                single = Cut((statement,), places, count, 1)
            except Uncuttable:
                return map_regions(statement, self._in_slots)
            if _largest(statement, count) >= self.limits.element_bytes and not single.has_shared_weights:
                out = Emitter(self.fresh, statement.source)
                self._one_by_one(single, places, out, inside=True)
                return out.out
        return map_regions(statement, self._in_slots)

    def _say(self, fired: bool, text: str, source: Source) -> None:
        self.remark(Remark("batch elements", fired, text, source))


def _largest(loop: LoopUTask, elements: int) -> int:
    """Bytes of the largest array that a loop carries for one of so many batch elements."""
    return max(v.type.nbytes for v in loop.initial) // elements
