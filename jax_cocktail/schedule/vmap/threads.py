"""Gives batch elements of loops and branches threads of their own on a GPU (COCKTAILER's lowest level, L0).

    loop until no element is active:          parallel loop by threads, over elements i:
        next = step(all elements)      ->         loop while element i is active:
        select(active, next, old)                     numbers of element i

A vmapped loop arrives as one over whole batches: in lock-step, with a barrier of the block in every trip. If
nothing mixes batch elements, and one of them is a few numbers, a thread runs the loop of one element in its
registers: no barrier, no shared memory, and each element ends when it is done (DiffEqGPU.jl runs ensembles of
solvers in this way: Utkarsh et al., CMAME 2024). `thread_branches` does the same to branches outside of such
loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from jax_cocktail.analysis.classes import axis_classes
from jax_cocktail.analysis.parallel import parallel_fault, scalar_constants
from jax_cocktail.analysis.trips import side_by_side
from jax_cocktail.device.tuning import ELEMENTS, MODEL, ElementTuning
from jax_cocktail.schedule.vmap.blocks import block_loop
from jax_cocktail.schedule.vmap.by_thread import Batch, ByThread, check_count
from jax_cocktail.schedule.vmap.cut import Uncuttable
from jax_cocktail.schedule.vmap.emit import Emitter
from jax_cocktail.schedule.vmap.forms import single_loops
from jax_cocktail.schedule.vmap.held import Place, single
from jax_cocktail.schedule.vmap.lockstep import element_loop
from jax_cocktail.schedule.vmap.recover import branches_inside, narrowed
from jax_cocktail.schedule.vmap.register_forms import FORMS
from jax_cocktail.schedule.vmap.registers import Apart
from jax_cocktail.schedule.vmap.scopes import Scopes
from jax_cocktail.schedule.vmap.slots import SlotLoop, Slots, spreads_of
from jax_cocktail.schedule.vmap.thread_branches import ThreadBranches
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    UProgram,
    by_threads,
    definitions,
    is_a,
    operators_in,
    used_in,
    walk,
)
from jax_cocktail.utask.operators import PRODUCTS
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Source, Value


def threads(
    program: UProgram, remark: Listener = nobody, limits: ElementTuning = ELEMENTS, warps: bool = False
) -> UProgram:
    """Returns its argument if no loop or branch is over batch elements for which a thread or a block is
    enough. `warps`: a block is one warp."""
    statements = tuple(walk(program.entry))
    if len(statements) <= MODEL.many_statements and any(is_a(s, "select") for s in statements):
        found, notes = _with_branches(program, limits, warps)
        for note in notes:
            remark(note)
        if found is not program:
            return found
    plain = single_loops(program, together=False)
    fresh, constants = FreshValues(plain), scalar_constants(plain.entry)
    found = map_regions(plain, _Threads(fresh, constants, remark, limits, warps).region)
    return program if found is plain else found


def _with_branches(
    program: UProgram, limits: ElementTuning, warps: bool
) -> tuple[UProgram, Sequence[Remark]]:
    """The program with the branches of batch elements on threads, and their loops, too; itself without such
    branches. Only what has them is narrowed: other loops are found as they are."""
    plain, notes, about_branches = narrowed(program), list[Remark](), list[Remark]()
    plain = single_loops(plain, together=False)
    fresh, constants = FreshValues(plain), scalar_constants(plain.entry)
    branches = ThreadBranches(fresh, limits, about_branches.append)
    found = map_regions(plain, _Threads(fresh, constants, notes.append, limits, warps, branches).region)
    return (found, (*about_branches, *notes)) if branches.taken else (program, about_branches)


class _Threads(Scopes):
    """`branches`: what takes branches outside of loops that run element by element; None: they stay."""

    def __init__(
        self,
        fresh: FreshValues,
        constants: Mapping[Value, int],
        remark: Listener,
        limits: ElementTuning,
        warps: bool,
        branches: ThreadBranches | None = None,
    ) -> None:
        super().__init__()
        self.fresh, self.constants, self.remark, self.limits = fresh, constants, remark, limits
        self.warps, self.branches = warps, branches

    def region(self, region: Region) -> Region:
        with self.entered(region):
            if self.branches is not None:
                region = self.branches.region(region, self.made)
            needed = used_in(region)
            return map_body(region, lambda s: self._statement(s, region, needed))

    def _loop(self, loop: LoopUTask) -> LoopUTask:
        """A loop that stays as it is, but for those inside of it."""
        return map_regions(loop, lambda r: r if r is loop.condition else self.region(r))

    def _statement(
        self, statement: Statement, region: Region, needed: set[Value]
    ) -> Statement | Sequence[Statement]:
        if by_threads(statement):
            return statement
        if not isinstance(statement, LoopUTask) or statement.parallel:
            return map_regions(statement, self.region)
        alike = side_by_side(statement, self.constants)
        batch = _batch(statement, self.limits.enough) if alike is None else None
        if self.warps and (large := self._by_warps(statement, region, needed, alike, batch)) is not None:
            return large
        refused = ""
        try:
            if alike is not None and _has_loops(alike.body):
                return self._trip_by_trip(alike)
            if batch is not None:
                return self._by_threads(statement, region, needed, batch)
        except Uncuttable as why:
            refused = f"runs the loop of one batch element: {why}"
        blocks = None if batch is None else self._by_blocks(statement, region, needed, batch)
        if refused and not any(o.kind in PRODUCTS for o in operators_in(statement)):  # these share weights
            nobody_does = "no thread and no block" if batch is not None and blocks is None else "no thread"
            many = batch is not None and batch.count >= self.limits.most_blocks
            limit = f"; blocks run fewer than {self.limits.most_blocks}" if many and blocks is None else ""
            self._say(False, f"{nobody_does} {refused}{limit}", statement.source)
        if batch is not None and blocks is not None:
            self._say_blocks(batch, statement.source)
            return blocks
        slots = self._in_slots(statement, region)
        return self._loop(statement) if slots is None else slots

    def _by_warps(
        self,
        loop: LoopUTask,
        region: Region,
        needed: set[Value],
        alike: LoopUTask | None,
        batch: Batch | None,
    ) -> Sequence[Statement] | None:
        """A loop with a block of one warp for each batch element; None if an element is less than a warp's
        worth. `alike`: the loop, if its trips are independent already."""
        if batch is not None:
            blocks = self._by_blocks(loop, region, needed, batch, self.limits.warp_numbers)
            if blocks is not None:
                self._say_blocks(batch, loop.source)
            return blocks
        if alike is None:
            return None
        inside = [v for s in walk(alike.body) if isinstance(s, LoopUTask) for v in s.carried]
        numbers = max((v.type.size for v in inside), default=0)
        count = alike.trip_count or 0
        if not (self._suits_blocks(count, numbers) and numbers >= self.limits.warp_numbers):
            return None
        self._say(True, f"each of {count} trips of a loop runs on a warp", loop.source)
        return (replace(alike, body=branches_inside(alike.body, self.fresh, self.limits.branch_flops)),)

    def _suits_blocks(self, count: int, numbers: int) -> bool:
        """True if blocks may run so many elements, with arrays of so many numbers."""
        return self.limits.fewest <= count < self.limits.most_blocks and numbers <= self.limits.block_numbers

    def _by_blocks(
        self, loop: LoopUTask, region: Region, needed: set[Value], batch: Batch, least: int = 0
    ) -> Sequence[Statement] | None:
        """A loop with a block for each batch element; None if a block would have too little to do, or too
        much. Elements of a loop without a condition stay together, unless a block is one warp. `least`:
        numbers of an element's largest array."""
        numbers = max(v.type.size for v in batch.axes) // batch.count
        whole = len(batch.sizes) == 1 and not any(v in needed for v in loop.outputs if v not in batch.axes)
        suits = self._suits_blocks(batch.count, numbers) and numbers >= least
        if not (suits and whole and (self.warps or loop.condition is not None)):
            return None
        places = tuple((v, axis) for v, (axis,) in batch.axes.items())
        return block_loop(loop, region, places, batch.count, self.fresh, self.limits.branch_flops)

    def _say_blocks(self, batch: Batch, source: Source) -> None:
        block = "warp" if self.warps else "block"
        self._say(True, f"each of {batch.count} batch elements runs its own loop on a {block}", source)

    def _in_slots(self, loop: LoopUTask, region: Region) -> Sequence[Statement] | None:
        """A loop in lock-step whose elements share weights: a few of them at a time, in slots that the next
        ones take; None if they are too few, or share none."""
        elements = element_loop(loop)
        if elements is None or elements.predicate.type.rank != 1:
            return None
        count, out = elements.predicate.type.size, Emitter(self.fresh, loop.source)
        width = self.limits.width(count)
        axes = tuple(axis for (axis,) in elements.axes)
        slots = Slots(width or 1, 1, max(width // 8, 1), 0, self.limits.uneven, self.limits.pieces)
        try:
            made = SlotLoop(loop, spreads_of(loop, definitions(region)), axes, count, slots, out)
        except Uncuttable:
            return None
        if not made.cut.has_shared_weights:
            return None
        if not width:
            limits = f"slots are for {self.limits.slots} to {self.limits.most}"
            self._say(False, f"{count} batch elements share weights: {limits}", loop.source)
            return None
        made.statements()
        self._say(True, f"{count} batch elements of a vmapped while loop share {width} slots", loop.source)
        return [self._loop(s) if isinstance(s, LoopUTask) else s for s in out.out]

    def _trip_by_trip(self, loop: LoopUTask) -> Statement:
        """A loop whose trips are independent already, as `lax.map` makes them."""
        count = loop.trip_count or 0
        check_count(count, self.limits)
        assert loop.index is not None
        limits = self.limits
        region = branches_inside(loop.body, self.fresh, limits.branch_flops)
        apart = Apart(self.fresh, FORMS, limits, loop.carried)
        apart.held[loop.index] = single(loop.index)
        apart.inside[loop.index] = count
        for k, value in enumerate(loop.carried):
            apart.held[value] = Place(k, (0,) * value.type.rank, value.type.shape)
        apart.statements(region.body, region.results)
        for k, value in enumerate(region.results):
            held = apart.of(value)
            if not isinstance(held, Place) or apart.latest(held).number != k:
                raise Uncuttable("a result is not updated in place")
        body = Region(loop.body.parameters, tuple(apart.build.out), tuple(apart.results[: len(loop.carried)]))
        made = replace(loop, body=body, level="thread")
        if fault := parallel_fault(made, self.constants):
            raise Uncuttable(fault)
        self._say(True, f"each of {count} trips of a loop runs on a thread", loop.source)
        return made

    def _by_threads(
        self, loop: LoopUTask, region: Region, needed: set[Value], batch: Batch
    ) -> Sequence[Statement]:
        check_count(batch.count, self.limits)
        if any(v in needed for v in loop.outputs if v not in batch.axes):
            raise Uncuttable("a result is common to all")
        few, some = self.limits.numbers * batch.count, self.limits.local * batch.count
        # Nobody reads some large arrays behind the loop: they are the thread's own.
        kept = {v: axes for v, axes in batch.axes.items() if v in needed or not few < v.type.size <= some}
        batch = replace(batch, axes=kept or batch.axes)
        large = {v for v in batch.axes if v.type.size > few}
        try:
            out = self._elements(loop, region, batch, large)
        except Uncuttable:
            fewer = {v for v in large if v.type.size > some}
            if fewer == large:
                raise
            out = self._elements(loop, region, batch, fewer)
        self._say(True, f"each of {batch.count} batch elements runs its own loop on a thread", loop.source)
        return out

    def _elements(
        self, loop: LoopUTask, region: Region, batch: Batch, large: set[Value]
    ) -> Sequence[Statement]:
        """The loop by threads. `large`: results that are updated where they lie."""
        out = Emitter(self.fresh, loop.source)
        # Large arrays have stand-ins: their parts are no copies.
        given, starts, numbers = {}, list(loop.initial), {v: k for k, v in enumerate(batch.axes)}
        for k, (start, end) in enumerate(zip(loop.initial, loop.outputs, strict=True)):
            if end in large:
                starts[k] = self.fresh.make(start.type)
                given[starts[k]] = start, numbers[end]
        spreads = spreads_of(loop, definitions(region))
        statements: Sequence[Statement] = (*spreads, replace(loop, initial=tuple(starts)))
        ByThread(statements, batch, out, self.limits, given).emit()
        return out.out

    def _say(self, fired: bool, text: str, source: Source) -> None:
        self.remark(Remark("batch elements", fired, text, source))


def _has_loops(region: Region) -> bool:
    return any(isinstance(s, LoopUTask) for s in walk(region))


def _batch(loop: LoopUTask, enough: int) -> Batch | None:
    """The axes whose elements the loop never mixes, the longest first, until they have `enough` elements;
    None if there are none."""
    elements = element_loop(loop)
    if elements is not None:
        shape = elements.predicate.type.shape
        wide = sorted((d for d, n in enumerate(shape) if n != 1), key=lambda d: -shape[d])
        axes = {
            v: tuple(places[d] for d in wide) for v, places in zip(loop.outputs, elements.axes, strict=True)
        }
        return Batch(tuple(shape[d] for d in wide), axes) if wide and 0 not in shape else None
    nested = (element_loop(s) for s in walk(loop) if isinstance(s, LoopUTask))
    closings = [elements.closing for elements in nested if elements is not None]  # they do not mix elements
    found = list[tuple[int, dict[Value, int]]]()
    for each in axis_classes((loop,)):
        mixes = any(crossing.leaf not in closings for crossing in each.crossings)
        cut = {v: each.axes[v] for v in loop.outputs if v in each.axes}
        if cut and each.is_uniform and not each.clash and not mixes:
            found.append((each.length, cut))
    found.sort(key=lambda pair: -pair[0])
    same = [pair for pair in found if pair[1].keys() == found[0][1].keys()]
    while len(same) > 1 and prod(n for n, _ in same[:-1]) >= enough:
        same.pop()
    axes = {v: tuple(cut[v] for _, cut in same) for v in (same[0][1] if same else ())}
    return Batch(tuple(n for n, _ in same), axes) if same else None
