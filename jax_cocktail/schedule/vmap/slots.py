"""Lanes of a while loop in slots: a slot whose lane is done takes the next lane that waits.

A few lanes run in lock-step, so that the body fills vector registers and several lanes share the reading of
weights. When enough of them are done, their results are written out and their slots are filled again; so the
slots are busy almost until the end, however unequal the trip counts are (persistent threads with dynamic
fetching, Aila and Laine, HPG'09, do this for rays).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jax_cocktail.schedule.vmap.cut import Cut, Place
from jax_cocktail.schedule.vmap.emit import COUNT, INDEX, Emitter, one_by_one
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator
from jax_cocktail.utask.types import TensorType, Value


@dataclass(frozen=True, slots=True)
class Slots:
    """`width` slots for each of `parts` groups of lanes, filled again when `idle` of them are done. When no
    lane waits, the last `few` run one by one."""

    width: int
    parts: int
    idle: int
    few: int = 1


class SlotLoop:
    """A loop in lock-step, turned into statements that define the same outputs."""

    def __init__(self, loop: LoopUTask, axes: Sequence[int], lanes: int, slots: Slots, out: Emitter) -> None:
        """Raises Uncuttable. `axes`: the lane axis of every carry."""
        self.loop, self.axes, self.lanes, self.slots, self.emitter = loop, tuple(axes), lanes, slots, out
        # stand-ins, since the body may read an initial value too
        self.starts = out.like(loop.initial)
        self.inner = replace(loop, initial=self.starts)
        places = tuple(zip(loop.outputs, axes, strict=True))
        self.cut = Cut((self.inner,), places, lanes, slots.width)
        self.extra = tuple(place for place in self.cut.needs if place[0] not in self.starts)
        self.share = -(-lanes // slots.parts)  # lanes of one part

    def statements(self) -> None:
        """Emits everything."""
        emitter, loop = self.emitter, self.loop
        self.leaves = {v: emitter.fresh.make(v.type) for v in self.cut.leaves}
        emitter.out += [replace(s, outputs=(self.leaves[v],)) for v, s in self.cut.leaves.items()]
        if self.slots.parts == 1:
            self._part(emitter, None, emitter.number(self.lanes, COUNT), loop.outputs)
            return
        total = self.share * self.slots.parts
        wholes = [emitter.emit("empty", (), _resized(v, a, total)) for v, a in self._places()]
        index, carried = emitter.fresh.make(INDEX), emitter.like(wholes)
        inside = emitter.inside()
        start = inside.binary("mul", index, inside.number(self.share, INDEX))
        base = inside.convert(start, "int32")
        left = inside.binary("sub", inside.number(self.lanes, COUNT), base)
        count = inside.binary("min", left, inside.number(self.share, COUNT))
        results = tuple(emitter.fresh.make(_resized(v, a, self.share)) for v, a in self._places())
        self._part(inside, base, count, results)
        written = tuple(
            inside.put_run(whole, axis, start, part)
            for whole, axis, part in zip(carried, self.axes, results, strict=True)
        )
        body = Region((index, *carried), tuple(inside.out), written)
        exact = total == self.lanes
        done = emitter.loop(
            wholes, carried, body, loop.outputs if exact else None, trips=self.slots.parts, parallel=True
        )
        if not exact:
            for whole, (output, axis) in zip(done, self._places(), strict=True):
                emitter.first(whole, axis, self.lanes, output)

    def _places(self) -> Sequence[Place]:
        return tuple(zip(self.loop.outputs, self.axes, strict=True))

    def _known(self, carried: Sequence[Value], extra: Sequence[Value]) -> dict[Place, Value]:
        known = dict(zip(zip(self.starts, self.axes, strict=True), carried, strict=True))
        return known | dict(zip(self.extra, extra, strict=True))

    def _part(self, out: Emitter, base: Value | None, count: Value, results: Sequence[Value]) -> None:
        """Defines `results`: the outputs of the `count` lanes from `base` on."""
        width, number = self.slots.width, len(self.axes)
        lanes = out.emit("iota", (), TensorType("int32", (width,)), dimension=0)
        first = self._shifted(out, lanes, base)
        carried = [out.take(v, a, first) for v, a in zip(self.loop.initial, self.axes, strict=True)]
        extra = [out.take(self.leaves.get(v, v), a, first) for v, a in self.extra]
        arrays = [out.emit("empty", (), v.type) for v in results]
        state = (*carried, *extra, lanes, out.number(width, COUNT), *arrays)
        tested, parameters = out.like(state), out.like(state)
        position = number + len(extra) + 1
        condition = out.inside()
        waiting = condition.compare("lt", tested[position], count)
        inside = out.inside()
        following = self._round(inside, parameters, base, count)
        state = out.loop(
            state,
            parameters,
            Region(parameters, tuple(inside.out), following),
            condition=Region(tested, tuple(condition.out), (waiting,)),
        )
        last = self._drained(out, state[:number], state[number : position - 1])
        lanes, arrays = state[position - 1], list(state[position + 1 :])
        for array, axis, part, result in zip(arrays, self.axes, last, results, strict=True):
            out.rename((out.put(array, axis, lanes, part),), (result,))

    def _round(
        self, out: Emitter, state: Sequence[Value], base: Value | None, count: Value
    ) -> tuple[Value, ...]:
        """Runs until slots are idle, writes what they have, and fills them with the next lanes."""
        number, others = len(self.axes), len(self.extra)
        extra, (lanes, following) = state[number : number + others], state[number + others :][:2]
        arrays = state[number + others + 2 :]
        carried = self._lock_step(out, state[:number], extra, self.slots.idle)
        statements, predicate = self.cut.emit_tested(
            self.inner, self._known(carried, extra), carried, out.fresh
        )
        out.out += statements
        active = out.reshape(predicate, (self.slots.width,))
        done = out.emit("not", (active,), active.type)
        written = [
            out.put(array, axis, lanes, part)
            for array, axis, part in zip(arrays, self.axes, carried, strict=True)
        ]
        ones = out.convert(done, "int32")
        rank = out.emit("cumulative", (ones,), ones.type, axis=0, op="sum", reverse=False)
        shape = ones.type.shape
        before = out.binary("sub", following, out.number(1, COUNT))
        waiting = out.binary("add", out.spread(before, shape), rank)
        fits = out.compare("lt", waiting, out.spread(count, shape))
        taken = out.emit("and", (done, fits), done.type)
        source = self._shifted(out, waiting, base)
        new = out.select(fits, waiting, out.number(self.share, ones.type))
        total = out.emit("reduce", (ones,), COUNT, axes=(0,), op="sum")
        return (
            *self._refilled(
                out, taken, source, tuple(zip(self.loop.initial, self.axes, strict=True)), carried
            ),
            *self._refilled(out, taken, source, self.extra, extra),
            out.select(done, new, lanes),
            out.binary("add", following, total),
            *written,
        )

    def _refilled(
        self, out: Emitter, taken: Value, source: Value, places: Sequence[Place], old: Sequence[Value]
    ) -> list[Value]:
        result = []
        for (value, axis), current in zip(places, old, strict=True):
            new = out.take(self.leaves.get(value, value), axis, source)
            result.append(out.select(out.spread(taken, new.type.shape, axis), new, current))
        return result

    def _shifted(self, out: Emitter, lanes: Value, base: Value | None) -> Value:
        """Numbers in the part to numbers of all lanes."""
        return lanes if base is None else out.binary("add", lanes, out.spread(base, lanes.type.shape))

    def _lock_step(
        self, out: Emitter, carried: Sequence[Value], extra: Sequence[Value], idle: int
    ) -> tuple[Value, ...]:
        """The loop on the slots until `idle` of them are done."""
        loop = self._loop(out, carried, extra)
        out.out.append(_until_idle(loop, self.slots.width, idle, out))
        return loop.outputs

    def _drained(self, out: Emitter, carried: Sequence[Value], extra: Sequence[Value]) -> tuple[Value, ...]:
        """No lane waits any more: in lock-step until few are left, then those one by one."""
        carried = self._lock_step(out, carried, extra, self.slots.width - self.slots.few)
        loop = self._loop(out, carried, extra)
        places = tuple(zip(loop.outputs, self.axes, strict=True))
        out.out.append(one_by_one(Cut((loop,), places, self.slots.width, 1), places, out))
        return loop.outputs

    def _loop(self, out: Emitter, carried: Sequence[Value], extra: Sequence[Value]) -> LoopUTask:
        """The loop on the slots."""
        (loop,), _ = self.cut.emit(self._known(carried, extra), out.fresh)
        assert isinstance(loop, LoopUTask)
        return loop


def _until_idle(loop: LoopUTask, width: int, idle: int, out: Emitter) -> LoopUTask:
    """The same loop, left when `idle` lanes are done."""
    condition = loop.condition
    assert condition is not None
    *body, closing = condition.body
    assert isinstance(closing, UOperator)
    inside = Emitter(out.fresh, out.source, list[Statement](body))
    ones = inside.convert(closing.inputs[0], "int32")
    active = inside.emit("reduce", (ones,), COUNT, axes=tuple(range(ones.type.rank)), op="sum")
    enough = inside.compare("gt", active, inside.number(width - idle, COUNT))
    return replace(loop, condition=Region(condition.parameters, tuple(inside.out), (enough,)))


def _resized(value: Value, axis: int, size: int) -> TensorType:
    shape = value.type.shape
    return TensorType(value.type.dtype, (*shape[:axis], size, *shape[axis + 1 :]))
