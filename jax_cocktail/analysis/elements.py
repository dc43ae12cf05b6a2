"""The elements that a lane loop reads: which axes of the loop the position of every read depends on.

This follows the element functions of `codegen.element` without their text. A lane loop computes each pair of
a value and a position once, so a value that two members read at one position is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.layout import Layout, dense, divided_axes
from jax_cocktail.utask.operators import ELEMENTWISE
from jax_cocktail.utask.types import Shape, Value


@dataclass(frozen=True, slots=True)
class Position:
    """A position along one axis of a value. `key`: equal for equal positions; `axes`: the axes of the loop on
    which it depends; `step`: of the position, for a step along its axis."""

    key: Hashable = 0
    axes: frozenset[int] = frozenset()
    step: int = 1

    def moved(self, *how: Hashable, step: int = 1) -> Position:
        """Another position that depends on the same axes."""
        return Position((self.key, *how), self.axes, self.step * step)


@dataclass(frozen=True, slots=True)
class Read:
    """A load: the axes of the loop that it depends on, and how many elements it moves on with each, if that
    is one number."""

    axes: frozenset[int]
    steps: Mapping[int, int]


START = Position()
Positions = tuple[Position, ...]


def position_of(axis: int, size: int) -> Position:
    """The position along an axis of the loop; a unit axis has no loop."""
    return Position(("axis", axis), frozenset((axis,))) if size != 1 else START


def positions_of(shape: Shape) -> Positions:
    """An axis of the loop for each axis of a shape."""
    return tuple(position_of(axis, n) for axis, n in enumerate(shape))


def times(axes: frozenset[int], loops: Sequence[tuple[int, int]]) -> int:
    """How often a load is executed. `loops`: (axis, size), the outermost first. A load stands in the
    innermost loop that it depends on."""
    depth = max((n + 1 for n, (axis, _) in enumerate(loops) if axis in axes), default=0)
    return prod(size for _, size in loops[:depth])


@dataclass(slots=True)
class Reads:
    """Collects the reads of one lane loop from memory.

    `layouts`: of values in memory; a value without one is dense. `found`: by value and positions.
    """

    members: Mapping[Value, UOperator]
    layouts: Mapping[Value, Layout] = field(default_factory=dict)
    found: dict[tuple[Value, Hashable], Read] = field(default_factory=dict)
    _seen: dict[tuple[Value, Positions], frozenset[int]] = field(default_factory=dict)

    def element(self, value: Value, positions: Positions) -> frozenset[int]:
        """Notes what an element takes. Returns the axes that it depends on."""
        if value.type.is_scalar:
            positions = (START,) * value.type.rank
        key = value, positions
        if key not in self._seen:
            member = self.members.get(value)
            if member is None or (member.kind == "constant" and not value.type.is_scalar):
                self._seen[key] = self._load(value, positions)
            elif member.kind in ELEMENTWISE:
                self._seen[key] = _union(self.element(x, positions) for x in member.inputs)
            else:
                self._seen[key] = MOVEMENT[member.kind](self, member, positions)
        return self._seen[key]

    def _load(self, value: Value, positions: Positions) -> frozenset[int]:
        if value.type.is_scalar:
            return frozenset()
        layout = self.layouts.get(value) or dense(value)
        steps = zip(positions, layout.strides, layout.shape, strict=True)
        taken = tuple((p, stride) for p, stride, n in steps if n != 1 and stride)
        axes = _union(p.axes for p, _ in taken)
        moves = {axis: stride * p.step for p, stride in taken for axis in p.axes if len(p.axes) == 1}
        self.found[layout.root, (layout.base, layout.offset, taken)] = Read(axes, moves)
        return axes


def _union(each: object) -> frozenset[int]:
    return frozenset[int]().union(*each)  # type: ignore[misc]


Movement = Callable[[Reads, UOperator, Positions], frozenset[int]]


def _nothing(r: Reads, m: UOperator, at: Positions) -> frozenset[int]:
    return _union(p.axes for p in at)


def _broadcast(r: Reads, m: UOperator, at: Positions) -> frozenset[int]:
    (x,) = m.inputs
    picked = (at[axis] for axis in m.ints("dimensions"))
    return r.element(x, tuple(p if n != 1 else START for p, n in zip(picked, x.type.shape, strict=True)))


def _reshape(r: Reads, m: UOperator, at: Positions) -> frozenset[int]:
    (x,) = m.inputs
    source, target = x.type.shape, m.output.type.shape
    if [n for n in source if n != 1] == [n for n in target if n != 1]:
        rest = iter([p for p, n in zip(at, target, strict=True) if n != 1])
        return r.element(x, tuple(next(rest) if n != 1 else START for n in source))
    counts = divided_axes(source, target)
    if counts is not None:
        parts = iter(zip(at, target, strict=True))
        groups = [[next(parts) for _ in range(count)] for count in counts]
        return r.element(x, tuple(_joined(group) for group in groups))
    flat = Position(tuple(p.key for p in at), _union(p.axes for p in at))
    return r.element(x, tuple(flat.moved("of", d) if n != 1 else START for d, n in enumerate(source)))


def _joined(group: Sequence[tuple[Position, int]]) -> Position:
    long = [(p, n) for p, n in group if n != 1]
    if len(long) < 2:
        return long[0][0] if long else START
    return Position(tuple((p.key, n) for p, n in long), _union(p.axes for p, _ in long))


def _transpose(r: Reads, m: UOperator, at: Positions) -> frozenset[int]:
    moved = [START] * len(at)
    for position, axis in enumerate(m.ints("permutation")):
        moved[axis] = at[position]
    return r.element(m.inputs[0], tuple(moved))


def _slice(r: Reads, m: UOperator, at: Positions) -> frozenset[int]:
    each = zip(at, m.ints("starts"), m.ints("strides"), strict=True)
    return r.element(m.inputs[0], tuple(p if (b, s) == (0, 1) else p.moved(b, s, step=s) for p, b, s in each))


def _reverse(r: Reads, m: UOperator, at: Positions) -> frozenset[int]:
    flipped = set(m.ints("dimensions"))
    return r.element(
        m.inputs[0], tuple(p.moved("back", step=-1) if d in flipped else p for d, p in enumerate(at))
    )


def _pad(r: Reads, m: UOperator, at: Positions) -> frozenset[int]:
    """Reads at a clamped position outside of the operand as well."""
    x, filler = m.inputs
    outside = r.element(filler, ())
    if 0 in x.type.shape:
        return outside
    each = enumerate(zip(at, m.ints("low"), m.ints("interior"), strict=True))
    inside = r.element(x, tuple(p.moved("pad", low, gap) if low or gap else p for _, (p, low, gap) in each))
    return outside | inside | _union(p.axes for p in at)


def _concatenate(r: Reads, m: UOperator, at: Positions) -> frozenset[int]:
    """Reads all operands at clamped positions, and selects."""
    axis, begin, axes = m.number("dimension"), 0, at[m.number("dimension")].axes
    for x in m.inputs:
        if x.type.shape[axis]:
            local = at[axis].moved("part", begin)
            axes |= r.element(x, (*at[:axis], local, *at[axis + 1 :]))
        begin += x.type.shape[axis]
    return axes


def _dynamic_slice(r: Reads, m: UOperator, at: Positions) -> frozenset[int]:
    x, *starts = m.inputs
    moved = []
    for p, start, n, size in zip(at, starts, x.type.shape, m.output.type.shape, strict=True):
        begins = r.element(start, ()) if n != size else frozenset[int]()
        moved.append(Position((p.key, "from", start), p.axes | begins) if n != size else p)
    return r.element(x, tuple(moved))


def _gather(r: Reads, m: UOperator, at: Positions) -> frozenset[int]:
    operand, table = m.inputs
    offsets = m.ints("offset_dims")
    batch = [p for d, p in enumerate(at) if d not in offsets]
    collapsed = set(m.ints("collapsed_slice_dims")) | set(m.ints("operand_batching_dims"))
    window = iter([at[d] for d in offsets])
    place = [START if d in collapsed else next(window) for d in range(operand.type.rank)]
    for d, b in zip(m.ints("operand_batching_dims"), m.ints("start_indices_batching_dims"), strict=True):
        place[d] = Position((place[d].key, batch[b].key), place[d].axes | batch[b].axes)
    axes = _union(p.axes for p in at)
    for component, d in enumerate(m.ints("start_index_map")):
        vector = table.type.shape[-1]
        start = r.element(table, (*batch, Position(component) if vector != 1 else START))
        key = place[d].key, "at", table, component, tuple(p.key for p in batch)
        place[d] = Position(key, place[d].axes | start)
        axes |= start
    return axes if 0 in operand.type.shape else axes | r.element(operand, tuple(place))


MOVEMENT: dict[str, Movement] = {
    "constant": _nothing,
    "empty": _nothing,
    "iota": _nothing,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "reverse": _reverse,
    "pad": _pad,
    "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
}
