"""Gives each batch element of a loop a thread of its own (COCKTAILER's lowest level, L0), on a GPU.

    loop until no element is active:          parallel loop by threads, over elements i:
        next = step(all elements)      ->         loop while element i is active:
        select(active, next, old)                     numbers of element i

A vmapped loop arrives as one over whole batches: in lock-step, with a barrier of the block in every trip. If
nothing mixes batch elements, and one of them is a few numbers, a thread runs the loop of one element in its
registers: no barrier, no shared memory, and each element ends when it is done (DiffEqGPU.jl runs ensembles of
solvers in this way: Utkarsh et al., CMAME 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from jax_cocktail.analysis.classes import axis_classes
from jax_cocktail.analysis.parallel import parallel_fault, scalar_constants
from jax_cocktail.analysis.trips import side_by_side
from jax_cocktail.device.tuning import ELEMENTS, ElementTuning
from jax_cocktail.schedule.vmap.cut import Cut, Uncuttable
from jax_cocktail.schedule.vmap.cut import Place as CutPlace
from jax_cocktail.schedule.vmap.emit import Emitter, one_by_one
from jax_cocktail.schedule.vmap.flags import without_flags
from jax_cocktail.schedule.vmap.lockstep import element_loop
from jax_cocktail.schedule.vmap.recover import branches_inside
from jax_cocktail.schedule.vmap.register_forms import FORMS, store
from jax_cocktail.schedule.vmap.registers import Apart, Memory, Place, single
from jax_cocktail.schedule.vmap.slots import SlotLoop, Slots
from jax_cocktail.utask.builder import INDEX
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    definitions,
    is_a,
    operators_in,
    reads,
    walk,
)
from jax_cocktail.utask.operators import PRODUCTS
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Source, Value


def threads(program: UProgram, remark: Listener = nobody, limits: ElementTuning = ELEMENTS) -> UProgram:
    """Returns its argument if no loop is over batch elements for which a thread or a block is enough."""
    fresh = FreshValues(program)
    plain, constants = without_flags(program, fresh), scalar_constants(program.entry)
    found = map_regions(plain, _Threads(fresh, constants, remark, limits).region)
    return program if found is plain else found


class _Threads:
    def __init__(
        self, fresh: FreshValues, constants: Mapping[Value, int], remark: Listener, limits: ElementTuning
    ) -> None:
        self.fresh, self.constants, self.remark, self.limits = fresh, constants, remark, limits

    def region(self, region: Region) -> Region:
        needed = {*region.results, *(v for s in region.body for v in reads(s))}
        return map_body(region, lambda s: self._statement(s, region, needed))

    def _statement(
        self, statement: Statement, region: Region, needed: set[Value]
    ) -> Statement | Sequence[Statement]:
        if not isinstance(statement, LoopUTask) or statement.parallel:
            return map_regions(statement, self.region)
        alike = side_by_side(statement, self.constants)
        batch = _batch(statement, self.limits.enough) if alike is None else None
        refused = ""
        try:
            if alike is not None and _has_loops(alike.body):
                return self._trip_by_trip(alike)
            if batch is not None:
                return self._by_threads(statement, region, needed, batch)
        except Uncuttable as why:
            refused = f"runs the loop of one batch element: {why}"
        blocks = None if batch is None else self._by_blocks(statement, batch)
        if refused and not any(o.kind in PRODUCTS for o in operators_in(statement)):  # these share weights
            nobody_does = "no thread and no block" if batch is not None and blocks is None else "no thread"
            self._say(False, f"{nobody_does} {refused}", statement.source)
        if batch is not None and blocks is not None:
            told = f"each of {batch.count} batch elements runs its own loop on a block"
            self._say(True, told, statement.source)
            return blocks
        slots = self._in_slots(statement, region)
        return map_regions(statement, self.region) if slots is None else slots

    def _by_blocks(self, loop: LoopUTask, batch: _Batch) -> Sequence[Statement] | None:
        """A loop in lock-step with a block for each batch element, whose threads share its arrays; None if a
        block would have too little to do, or too much. Elements that share weights stay together."""
        numbers = max(v.type.size for v in batch.axes) // batch.count
        many = self.limits.fewest <= batch.count < self.limits.most_blocks
        whole = len(batch.sizes) == 1 and len(batch.axes) == len(loop.outputs)
        if not (many and whole and numbers <= self.limits.block_numbers and loop.condition is not None):
            return None
        places = tuple((v, axis) for v, (axis,) in batch.axes.items())
        out = Emitter(self.fresh, loop.source)
        try:
            cut = Cut((loop,), places, batch.count, 1)
        except Uncuttable:
            return None
        if cut.has_shared_weights:
            return None
        one_by_one(cut, places, out, parallel=True)
        flops = self.limits.branch_flops
        out.out[-1] = map_regions(out.out[-1], lambda inner: branches_inside(inner, self.fresh, flops))
        return out.out

    def _in_slots(self, loop: LoopUTask, region: Region) -> Sequence[Statement] | None:
        """A loop in lock-step whose elements share weights: a few of them at a time, in slots that the next
        ones take; None if they are too few, or share none."""
        elements = element_loop(loop)
        if elements is None or elements.predicate.type.rank != 1:
            return None
        count = elements.predicate.type.size
        width = self.limits.width(count) if count <= self.limits.most else 0
        if not width:
            return None
        axes = tuple(axis for (axis,) in elements.axes)
        idle = max(width // 8, 1)
        slots = Slots(width, 1, idle, 0, self.limits.uneven, self.limits.pieces)
        out = Emitter(self.fresh, loop.source)
        try:
            made = SlotLoop(loop, _spreads(loop, region), axes, count, slots, out)
            if not made.cut.has_shared_weights:
                return None
        except Uncuttable:
            return None
        made.statements()
        self._say(True, f"{count} batch elements of a vmapped while loop share {width} slots", loop.source)
        return [map_regions(s, self.region) for s in out.out]

    def _trip_by_trip(self, loop: LoopUTask) -> Statement:
        """A loop whose trips are independent already, as `lax.map` makes them."""
        count = loop.trip_count or 0
        self._count(count)
        assert loop.index is not None
        limits = self.limits
        region = branches_inside(loop.body, self.fresh, limits.branch_flops)
        apart = Apart(self.fresh, FORMS, limits, loop.carried)
        apart.held[loop.index] = single(loop.index)
        apart.inside[loop.index] = count
        for k, value in enumerate(loop.carried):
            apart.held[value] = Place(k, (0,) * value.type.rank, value.type.shape)
        apart.statements(region.body)
        for k, value in enumerate(region.results):
            held = apart.of(value)
            if not isinstance(held, Place) or apart.latest(held).number != k:
                raise Uncuttable("a result is not updated in place")
        body = Region(loop.body.parameters, tuple(apart.build.out), tuple(apart.results))
        made = replace(loop, body=body, level="thread")
        if fault := parallel_fault(made, self.constants):
            raise Uncuttable(fault)
        self._say(True, f"each of {count} trips of a loop runs on a thread", loop.source)
        return made

    def _by_threads(
        self, loop: LoopUTask, region: Region, needed: set[Value], batch: _Batch
    ) -> Sequence[Statement]:
        self._count(batch.count)
        if any(v in needed for v in loop.outputs if v not in batch.axes):
            raise Uncuttable("a result is common to all")
        out = Emitter(self.fresh, loop.source)
        element = _Element(loop, _spreads(loop, region), batch, out, self.limits)
        element.emit()
        self._say(True, f"each of {batch.count} batch elements runs its own loop on a thread", loop.source)
        return out.out

    def _count(self, count: int) -> None:
        if not self.limits.fewest <= count <= self.limits.most:
            raise Uncuttable(f"{count} are too {'few' if count < self.limits.fewest else 'many'}")

    def _say(self, fired: bool, text: str, source: Source) -> None:
        self.remark(Remark("batch elements", fired, text, source))


def _spreads(loop: LoopUTask, region: Region) -> tuple[UOperator, ...]:
    """The broadcasts of scalars that a loop in a region reads: no element needs a part of them."""
    made = definitions(region)
    found = (made.get(v) for v in reads(loop))
    return tuple(o for o in found if is_a(o, "broadcast") and o.inputs[0].type.is_scalar)


def _has_loops(region: Region) -> bool:
    return any(isinstance(s, LoopUTask) for s in walk(region))


@dataclass(frozen=True, slots=True)
class _Batch:
    """The batch of a loop: the lengths of its axes, and these axes of each of the loop's outputs that has
    them."""

    sizes: tuple[int, ...]
    axes: dict[Value, tuple[int, ...]]

    @property
    def count(self) -> int:
        """The number of batch elements."""
        return prod(self.sizes)


def _batch(loop: LoopUTask, enough: int) -> _Batch | None:
    """The axes whose elements the loop never mixes, the longest first, until they have `enough` elements;
    None if there are none."""
    elements = element_loop(loop)
    if elements is not None:
        shape = elements.predicate.type.shape
        wide = sorted((d for d, n in enumerate(shape) if n != 1), key=lambda d: -shape[d])
        axes = {
            v: tuple(places[d] for d in wide) for v, places in zip(loop.outputs, elements.axes, strict=True)
        }
        return _Batch(tuple(shape[d] for d in wide), axes) if wide and 0 not in shape else None
    nested = (element_loop(s) for s in walk(loop) if isinstance(s, LoopUTask))
    closings = [elements.closing for elements in nested if elements is not None]  # they do not mix elements
    found = list[tuple[int, dict[Value, int]]]()
    for each in axis_classes((loop,)):
        mixes = any(crossing.leaf not in closings for crossing in each.crossings)
        cut = {v: each.axes[v] for v in loop.outputs if v in each.axes}
        if cut and each.is_uniform and not each.clash and not mixes:
            found.append((each.parts, cut))
    found.sort(key=lambda pair: -pair[0])
    same = [pair for pair in found if pair[1].keys() == found[0][1].keys()]
    while len(same) > 1 and prod(n for n, _ in same[:-1]) >= enough:
        same.pop()
    axes = {v: tuple(cut[v] for _, cut in same) for v in (same[0][1] if same else ())}
    return _Batch(tuple(n for n, _ in same), axes) if same else None


class _Element:
    """Builds the parallel loop that runs a loop element by element: one cut for each axis of the batch."""

    def __init__(
        self,
        loop: LoopUTask,
        spreads: Sequence[UOperator],
        batch: _Batch,
        out: Emitter,
        limits: ElementTuning,
    ) -> None:
        self.loop, self.batch, self.out, self.limits = loop, batch, out, limits
        most = limits.numbers * batch.count
        large = [end in batch.axes and end.type.size > most for end in loop.outputs]
        # Large arrays have stand-ins: their parts are no copies.
        pairs = zip(loop.initial, large, strict=True)
        starts = tuple(out.fresh.make(v.type) if k else v for v, k in pairs)
        self.initial = dict(zip(starts, loop.initial, strict=True))
        self.statements: Sequence[Statement] = (*spreads, replace(loop, initial=starts))
        self.results = tuple(batch.axes)
        numbers = {v: k for k, v in enumerate(self.results)}
        ends = zip(starts, loop.outputs, large, strict=True)
        self.large = {v: numbers[end] for v, end, k in ends if k}  # stand-in -> result

    def emit(self) -> None:
        """Appends the parallel loop to `out`."""
        out, large = self.out, {k: self.initial[v] for v, k in self.large.items()}
        index = out.fresh.make(INDEX)
        carried = out.like(self.results)
        written, body = self._body(index, carried)
        wholes = [
            large[k] if k in large else out.emit("empty", (), v.type) for k, v in enumerate(self.results)
        ]
        region = Region((index, *carried), tuple(body), tuple(written))
        ends, count, source = (tuple(wholes), self.results), self.batch.count, self.loop.source
        out.out.append(LoopUTask(*ends, region, None, count, source, parallel=True, level="thread"))

    def _body(self, index: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Statement]]:
        limits, fresh = self.limits, self.out.fresh
        apart = Apart(fresh, FORMS, limits, carried)
        digits = self._digits(apart, index)
        statements, parts = self.statements, self.results
        for number, digit in enumerate(digits):
            axes = [self.batch.axes[v][number] for v in self.results]
            statements, parts = self._cut(apart, statements, parts, axes, digit, self.batch.sizes[number])
        region = branches_inside(Region((), tuple(statements), parts), fresh, limits.branch_flops)
        apart.statements(region.body)
        apart.build.source = self.loop.source
        for k, (value, part) in enumerate(zip(self.results, region.results, strict=True)):
            held, own = apart.of(part), dict(zip(self.batch.axes[value], digits, strict=True))
            is_place = isinstance(held, Place) and apart.latest(held).number == k
            if (k in self.large.values()) != is_place:
                raise Uncuttable("a large array of an element is not updated in place")
            if not is_place:
                starts = tuple(own.get(d, 0) for d in range(part.type.rank))
                store(apart, Place(k, starts, part.type.shape), apart.registers(part))
        return apart.results, apart.build.out

    def _digits(self, apart: Apart, index: Value) -> list[Value]:
        """The position along each axis of the batch."""
        apart.held[index], found, rest = single(index), list[Value](), index
        for size in self.batch.sizes[:0:-1]:
            by = apart.number(size, INDEX.dtype)
            found.append(apart.build.binary("rem", rest, by))
            rest = apart.build.binary("div", rest, by)
        digits = [rest, *found[::-1]]
        apart.inside.update(zip(digits, self.batch.sizes, strict=True))
        return digits

    def _cut(
        self,
        apart: Apart,
        statements: Sequence[Statement],
        results: Sequence[Value],
        axes: Sequence[int],
        digit: Value,
        size: int,
    ) -> tuple[Sequence[Statement], tuple[Value, ...]]:
        """The statements for one position along an axis, and the parts of the results there."""
        cut = Cut(statements, zip(results, axes, strict=True), size, 1)
        leaves, inside, known = self.out.leaves(cut), self.out.inside(), dict[CutPlace, Value]()
        for value, axis in cut.needs:
            known[value, axis] = part = apart.build.fresh.make(value.type.resized(axis, 1))
            none, every = (0,) * part.type.rank, tuple(range(part.type.rank))
            held = apart.held.get(value, Memory(leaves.get(value, value), none, every, ()))
            if value in self.large:
                held = Place(self.large[value], none, ())
            assert isinstance(held, Memory | Place)
            starts = tuple(digit if d == axis else s for d, s in enumerate(held.starts))
            apart.held[part] = replace(held, starts=starts, shape=part.type.shape)
        parts = cut.emit(known, inside).parts_of(results, axes)
        return inside.out, parts
