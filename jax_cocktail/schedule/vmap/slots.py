"""Runs a while loop over batch elements in persistent slots, each refilled when its element is done.

A few batch elements run in lock-step, so that the body fills vector registers and the elements share the read
of weights. When enough are done, their results are written out and their slots are refilled. The slots stay
busy almost until the end, however unequal the trip counts are (persistent threads with dynamic fetching, Aila
and Laine, HPG'09, do this for rays).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jax_cocktail.cost.work import runs
from jax_cocktail.device.tuning import BATCH
from jax_cocktail.schedule.vmap.cut import Cut, Place
from jax_cocktail.schedule.vmap.emit import COUNT, Emitter, one_by_one
from jax_cocktail.schedule.vmap.lockstep import element_loop
from jax_cocktail.schedule.vmap.updates import masked_updates
from jax_cocktail.utask.builder import INDEX, beginning
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, is_a, reads
from jax_cocktail.utask.types import TensorType, Value


@dataclass(frozen=True, slots=True)
class Slots:
    """`width` slots for each of `parts` parts of the batch, refilled when `idle` of them are done. When no
    element waits, the last `few` run one by one; 0: all run together to the end. Prices assume that the
    longest element takes `uneven` times as many trips as the mean. Units fill so many `pieces` of a slot's
    large array side by side; 1: one unit fills all."""

    width: int
    parts: int
    idle: int
    few: int = 1
    uneven: int = 1
    pieces: int = 1


def spreads_of(loop: LoopUTask, made: Mapping[Value, Statement]) -> tuple[UOperator, ...]:
    """The broadcasts of scalars that a loop reads: no batch element needs a part of them. `made`: what
    defines values in scope."""
    found = (made.get(v) for v in reads(loop))
    return tuple(o for o in found if is_a(o, "broadcast") and o.inputs[0].type.is_scalar)


class SlotLoop:
    """Turns a lock-step loop into statements that define the same outputs."""

    def __init__(
        self,
        loop: LoopUTask,
        spreads: Sequence[UOperator],
        axes: Sequence[int],
        elements: int,
        slots: Slots,
        out: Emitter,
    ) -> None:
        """Raises Uncuttable. `spreads`: broadcasts that the loop reads; `axes`: the batch axis of each
        carry."""
        self.loop, self.axes, self.elements = loop, tuple(axes), elements
        self.slots, self.emitter = slots, out
        # stand-ins, since the body may read an initial value too
        self.starts = out.like(loop.initial)
        self.inner = replace(loop, initial=self.starts)
        self.places: tuple[Place, ...] = tuple(zip(loop.outputs, axes, strict=True))
        self.cut = Cut((*spreads, self.inner), self.places, elements, slots.width)
        self.extra = tuple(place for place in self.cut.needs if place[0] not in self.starts)
        self.share = -(-elements // slots.parts)  # batch elements per part
        self.rounds = max((self.share - slots.width) // slots.idle, 1)  # of a part, each with a refill

    def statements(self) -> None:
        """Emits everything."""
        emitter, loop, parts = self.emitter, self.loop, self.slots.parts
        self.leaves = emitter.leaves(self.cut)
        if parts == 1:
            self._part(emitter, None, emitter.number(self.elements, COUNT), loop.outputs)
            return
        total = self.share * parts
        wholes = [emitter.emit("empty", (), v.type.resized(a, total)) for v, a in self.places]

        def part(inside: Emitter, index: Value, carried: Sequence[Value]) -> tuple[Value, ...]:
            start = inside.binary("mul", index, inside.number(self.share, INDEX))
            base = inside.convert(start, "int32")
            left = inside.binary("sub", inside.number(self.elements, COUNT), base)
            count = inside.binary("min", left, inside.number(self.share, COUNT))
            results = tuple(emitter.fresh.make(v.type.resized(a, self.share)) for v, a in self.places)
            self._part(inside, base, count, results)
            return inside.put_runs(carried, self.axes, start, results)

        if total == self.elements:
            emitter.counted(wholes, parts, True, part, loop.outputs)
            return
        done = emitter.counted(wholes, parts, True, part)
        ends = zip(done, loop.outputs, strict=True)
        emitter.out += [beginning(whole, output, emitter.source) for whole, output in ends]

    def _known(self, carried: Sequence[Value], extra: Sequence[Value]) -> dict[Place, Value]:
        known = dict(zip(zip(self.starts, self.axes, strict=True), carried, strict=True))
        return known | dict(zip(self.extra, extra, strict=True))

    def _part(self, out: Emitter, base: Value | None, count: Value, results: Sequence[Value]) -> None:
        """Defines `results`: the outputs of the `count` batch elements from `base` on."""
        width, number = self.slots.width, len(self.axes)
        elements = out.emit("iota", (), TensorType("int32", (width,)), dimension=0)
        first = self._shifted(out, elements, base)
        carried = [out.take(v, a, first) for v, a in zip(self.loop.initial, self.axes, strict=True)]
        extra = [out.take(self.leaves.get(v, v), a, first) for v, a in self.extra]
        arrays = [out.emit("empty", (), v.type) for v in results]
        position = number + len(extra) + 1
        state = out.repeat(
            (*carried, *extra, elements, out.number(width, COUNT), *arrays),
            lambda test, tested: test.compare("lt", tested[position], count),
            lambda inside, parameters: self._round(inside, parameters, base, count),
            self.rounds,
        )
        last = self._drained(out, state[:number], state[number : position - 1])
        for array, axis, part, result in zip(state[position + 1 :], self.axes, last, results, strict=True):
            out.rename((out.put(array, axis, state[position - 1], part),), (result,))

    def _round(
        self, out: Emitter, state: Sequence[Value], base: Value | None, count: Value
    ) -> tuple[Value, ...]:
        """Runs until slots are idle, writes their results, and fills them with the next batch elements."""
        number, others = len(self.axes), len(self.extra)
        extra, (elements, following) = state[number : number + others], state[number + others :][:2]
        arrays = state[number + others + 2 :]
        each = runs(self.loop) * self.share // (self.slots.width * self.rounds * self.slots.uneven)
        carried = self._lock_step(out, state[:number], extra, self.slots.idle, max(each, 1))
        predicate = self.cut.emit_tested(self.inner, self._known(carried, extra), carried, out)
        active = out.reshape(predicate, (self.slots.width,))
        done = out.emit("not", (active,), active.type)
        written = self._written(out, done, elements, carried, arrays)
        ones, rank = out.ranks(done)
        shape = ones.type.shape
        before = out.binary("sub", following, out.number(1, COUNT))
        waiting = out.binary("add", out.spread(before, shape), rank)
        fits = out.compare("lt", waiting, out.spread(count, shape))
        taken = out.binary("and", done, fits)
        source = self._shifted(out, waiting, base)
        new = out.select(fits, waiting, out.number(self.share, ones.type))
        total = out.sum_of(ones)
        initial = tuple(zip(self.loop.initial, self.axes, strict=True))
        return (
            *self._refilled(out, taken, source, initial, carried),
            *self._refilled(out, taken, source, self.extra, extra),
            out.select(done, new, elements),
            out.binary("add", following, total),
            *written,
        )

    def _written(
        self, out: Emitter, done: Value, elements: Value, carried: Sequence[Value], arrays: Sequence[Value]
    ) -> list[Value]:
        """The results, with those of slots that are done."""
        ends = out.select(done, elements, out.number(self.elements, elements.type))
        return [
            out.put(array, axis, ends, part)
            for array, axis, part in zip(arrays, self.axes, carried, strict=True)
        ]

    def _refilled(
        self, out: Emitter, taken: Value, source: Value, places: Sequence[Place], old: Sequence[Value]
    ) -> list[Value]:
        """The state of the slots, with that of new batch elements where one is taken."""
        result = []
        for (value, axis), current in zip(places, old, strict=True):
            start = self.leaves.get(value, value)
            if current.type.nbytes // self.slots.width >= BATCH.element_bytes:
                result.append(self._moved(out, taken, source, (start, axis), current))
                continue
            new = out.take(start, axis, source)
            result.append(out.select(out.spread(taken, new.type.shape, axis), new, current))
        return result

    def _moved(self, out: Emitter, taken: Value, source: Value, start: Place, old: Value) -> Value:
        """The slots of a large array: those that are not taken are not touched."""
        value, axis = start
        lengths = {d: n for d, n in enumerate(old.type.shape) if d != axis}
        along = max(lengths, key=lambda d: lengths[d])
        pieces = next(n for n in range(self.slots.pieces, 0, -1) if lengths[along] % n == 0)
        size = lengths[along] // pieces

        def piece(inside: Emitter, index: Value, carried: Sequence[Value]) -> tuple[Value, ...]:
            slot, number, many = index, inside.number(0, INDEX), inside.number(pieces, INDEX)
            if pieces > 1:
                slot, number = inside.binary("div", index, many), inside.binary("rem", index, many)
            begin = inside.binary("mul", number, inside.number(size, INDEX))
            work, flag = inside.inside(), inside.reshape(inside.run(taken, 0, slot, 1), ())
            none = work.number(0, INDEX)
            starts = [begin if d == along else none for d in range(old.type.rank)]
            starts[axis] = work.position(source, slot)
            type_ = old.type.resized(axis, 1).resized(along, size)
            part = work.emit("dynamic_slice", (value, *starts), type_)
            starts[axis] = slot
            new = work.emit("dynamic_update_slice", (*carried, part, *starts), old.type)
            outputs = inside.like(carried)
            inside.branch(flag, outputs, (((), carried), (work.out, (new,))))
            return outputs

        (new,) = out.counted((old,), self.slots.width * pieces, self.slots.pieces > 1, piece)
        return new

    def _shifted(self, out: Emitter, elements: Value, base: Value | None) -> Value:
        """Converts numbers in the part to numbers in the batch."""
        return (
            elements if base is None else out.binary("add", elements, out.spread(base, elements.type.shape))
        )

    def _lock_step(
        self, out: Emitter, carried: Sequence[Value], extra: Sequence[Value], idle: int, likely: int
    ) -> tuple[Value, ...]:
        """Runs the loop on the slots until `idle` of them are done, after `likely` trips."""
        loop = replace(self._loop(out, carried, extra), likely_trips=likely)
        if (elements := element_loop(loop)) is not None:
            loop = masked_updates(loop, elements, out.fresh)
        out.out.append(_until_idle(loop, self.slots.width, idle, out))
        return loop.outputs

    def _drained(self, out: Emitter, carried: Sequence[Value], extra: Sequence[Value]) -> tuple[Value, ...]:
        """Finishes when no element waits: in lock-step until few are left, then those one by one."""
        idle = self.slots.width - self.slots.few
        carried = self._lock_step(out, carried, extra, idle, runs(self.loop))
        if not self.slots.few:
            return carried
        each = max(runs(self.loop) * self.slots.few // self.slots.width, 1)  # a slot that is done takes none
        loop = replace(self._loop(out, carried, extra), likely_trips=each)
        places = tuple(zip(loop.outputs, self.axes, strict=True))
        one_by_one(Cut((loop,), places, self.slots.width, 1), places, out)
        return loop.outputs

    def _loop(self, out: Emitter, carried: Sequence[Value], extra: Sequence[Value]) -> LoopUTask:
        """The loop on the slots."""
        self.cut.emit(self._known(carried, extra), out)
        loop = out.out.pop()
        assert isinstance(loop, LoopUTask)
        return loop


def _until_idle(loop: LoopUTask, width: int, idle: int, out: Emitter) -> LoopUTask:
    """The loop, left when `idle` elements are done."""
    condition = loop.condition
    assert condition is not None
    *body, closing = condition.body
    assert isinstance(closing, UOperator)
    inside = Emitter(out.fresh, out.source, list[Statement](body))
    active = inside.sum_of(inside.convert(closing.inputs[0], "int32"))
    enough = inside.compare("gt", active, inside.number(width - idle, COUNT))
    return replace(loop, condition=Region(condition.parameters, tuple(inside.out), (enough,)))
