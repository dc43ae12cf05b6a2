"""Sinks the sides of a select under its predicate: only the batch elements that take a side compute it.

The batch elements that take a side are compacted, and the side is computed for a few of them at a time: an
element that does not take it costs nothing, and those that do still share the read of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax_cocktail.schedule.vmap.cut import Cut, Place
from jax_cocktail.schedule.vmap.emit import COUNT, Emitter
from jax_cocktail.utask.builder import INDEX
from jax_cocktail.utask.types import TensorType, Value

Condition = tuple[Value, bool]  # a predicate per batch element, and its required value


@dataclass(frozen=True, slots=True)
class Sunk:
    """A side computed only for elements for which all `conditions` hold. `operands`: of each select."""

    cut: Cut
    operands: tuple[Value, ...]
    conditions: tuple[Condition, ...]


class Sinking:
    """One group of selects, turned into statements that define the same outputs.

    `bases`: for each select, the operand that is computed for all batch elements, if there is one.
    """

    def __init__(
        self, outputs: Sequence[Place], bases: Sequence[Value] | None, sides: Sequence[Sunk], out: Emitter
    ) -> None:
        self.outputs, self.bases, self.sides, self.emitter = tuple(outputs), bases, tuple(sides), out
        self.axes = tuple(axis for _, axis in outputs)
        self.elements = sides[0].cut.elements

    def statements(self, parts: int) -> None:
        """Emits everything, in `parts` that may run in parallel."""
        out = self.emitter
        self.leaves: dict[Value, Value] = {}
        for side in self.sides:
            self.leaves |= out.leaves(side.cut)
        wholes = self.bases or [out.emit("empty", (), v.type) for v, _ in self.outputs]
        masks = [self._mask(out, side.conditions) for side in self.sides]
        results = tuple(v for v, _ in self.outputs)
        if parts == 1:
            out.rename(self._part(out, None, self.elements, masks, wholes), results)
            return
        share = self.elements // parts

        def part(inside: Emitter, index: Value, carried: Sequence[Value]) -> tuple[Value, ...]:
            start = inside.binary("mul", index, inside.number(share, INDEX))
            own = [inside.run(mask, 0, start, share) for mask in masks]
            if self.bases is None:
                arrays = [inside.emit("empty", (), v.type.resized(axis, share)) for v, axis in self.outputs]
            else:
                arrays = [inside.run(v, a, start, share) for v, a in zip(carried, self.axes, strict=True)]
            return inside.put_runs(carried, self.axes, start, self._part(inside, start, share, own, arrays))

        out.counted(wholes, parts, True, part, results)

    def _mask(self, out: Emitter, conditions: Sequence[Condition]) -> Value:
        """One bool per batch element."""
        mask: Value | None = None
        for predicate, wanted in conditions:
            flag = out.reshape(predicate, (self.elements,))
            flag = flag if wanted else out.emit("not", (flag,), flag.type)
            mask = flag if mask is None else out.binary("and", mask, flag)
        assert mask is not None
        return mask

    def _part(
        self, out: Emitter, start: Value | None, size: int, masks: Sequence[Value], arrays: Sequence[Value]
    ) -> Sequence[Value]:
        for side, mask in zip(self.sides, masks, strict=True):
            arrays = self._side(out, side, start, size, mask, arrays)
        return arrays

    def _side(
        self, out: Emitter, side: Sunk, start: Value | None, size: int, mask: Value, arrays: Sequence[Value]
    ) -> Sequence[Value]:
        """`arrays` with the batch elements of the side written."""
        order, count = _numbered(out, mask, side.cut.width)

        def more(inside: Emitter, carried: Sequence[Value]) -> tuple[Value, ...]:
            width, work = inside.number(side.cut.width, COUNT), inside.inside()
            written = self._few(work, side, order, carried[0], start, size, carried[1:])
            arrays = inside.together(work, written)
            return (inside.binary("add", carried[0], width), *arrays)

        state = (out.number(0, COUNT), *arrays)
        half = -(-mask.type.size // (2 * side.cut.width))  # of them, as prices assume of branches
        return out.repeat(state, lambda test, tested: test.compare("lt", tested[0], count), more, half)[1:]

    def _few(
        self,
        out: Emitter,
        side: Sunk,
        order: Value,
        position: Value,
        start: Value | None,
        size: int,
        arrays: Sequence[Value],
    ) -> tuple[Value, ...]:
        """Computes the next batch elements of the side, and writes them to `arrays`."""
        cut = side.cut
        elements = out.run(order, 0, position, cut.width)
        if cut.width == 1:
            element = out.convert(out.reshape(elements, ()), "int64")
            source = element if start is None else out.binary("add", element, start)
            known = {(v, axis): out.run(self.leaves.get(v, v), axis, source, 1) for v, axis in cut.needs}
        else:
            first = out.spread(out.reshape(out.run(order, 0, position, 1), ()), elements.type.shape)
            inside = out.compare("lt", elements, out.number(size, elements.type))
            sources = out.select(inside, elements, first)  # a real element, whose loops end
            if start is not None:
                base = out.spread(out.convert(start, "int32"), elements.type.shape)
                sources = out.binary("add", sources, base)
            known = {(v, axis): out.take(self.leaves.get(v, v), axis, sources) for v, axis in cut.needs}
        parts = cut.emit(known, out).parts_of(side.operands, self.axes)
        if cut.width == 1:
            return out.put_runs(arrays, self.axes, element, parts)
        rows = zip(arrays, self.axes, parts, strict=True)
        return tuple(out.put(array, axis, elements, part) for array, axis, part in rows)


def _numbered(out: Emitter, mask: Value, width: int) -> tuple[Value, Value]:
    """The numbers of the elements where `mask` holds, in order and padded by at least `width` numbers past
    the end, and their count."""
    (size,) = mask.type.shape
    ones, rank = out.ranks(mask)
    last = out.binary("sub", rank, out.number(1, ones.type))
    target = out.select(mask, last, out.number(size + width, ones.type))
    elements = out.emit("iota", (), ones.type, dimension=0)
    none = out.number(size, TensorType("int32", (size + width,)))
    order = out.put(none, 0, target, elements)
    return order, out.sum_of(ones)
