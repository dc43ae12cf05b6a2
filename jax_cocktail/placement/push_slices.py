"""Splits the axis of a fused-gate matrix product into (gates, columns).

A cell needs column j of every gate together, but the columns of one product lie a gate apart, so the slices
tie no axes. If all uses of a product, through element-wise operators, are slices of one size s, its axis of
g * s columns is split; the weights are reshaped (a view), and the s columns of all gates are one axis class:

    y = h @ w + b               : [n, g*s]      y = h @ reshape(w) + reshape(b)   : [n, g, s]
    i, f = y[:, :s], y[:, s:2s] : [n, s]   ->   i, f = y[:, 0], y[:, 1]           : [n, s]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from jax_cocktail.analysis.axes import Tie, rule
from jax_cocktail.analysis.classes import AxisClass, axis_classes
from jax_cocktail.placement.prune import prune
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import (
    Attribute,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    is_a,
    is_parallel,
    reads,
)
from jax_cocktail.utask.operators import ELEMENTWISE, RESHAPES
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Shape, Source, TensorType, Value

_SPLIT = ELEMENTWISE | RESHAPES | {"dynamic_slice", "dot"}  # kinds that `_attributes` can adapt


def push_slices(program: UProgram) -> UProgram:
    """Returns its argument if no product in a loop is read by slices alone."""
    pusher = _Pusher(program)
    entry = pusher.region(program.entry, False)
    return replace(program, entry=prune(entry)) if pusher.changed else program


def split_type(type_: TensorType, axis: int, size: int) -> TensorType:
    """The type with `axis` split into (groups, size)."""
    shape = type_.shape
    return TensorType(type_.dtype, (*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :]))


@dataclass(slots=True)
class _Frame:
    """The new statements of a region, and the split versions of its visible values."""

    out: list[Statement] = field(default_factory=list)
    visible: set[Value] = field(default_factory=set)
    split: dict[tuple[Value, int, int], Value] = field(default_factory=dict)

    def emit(self, statement: Statement) -> None:
        self.out.append(statement)
        self.visible.update(statement.outputs)


class _Pusher:
    def __init__(self, program: UProgram) -> None:
        self.fresh = FreshValues(program)
        self.frames: list[_Frame] = []
        self.changed = False

    def region(self, region: Region, in_loop: bool) -> Region:
        self.frames.append(_Frame(visible=set(region.parameters)))
        sizes: dict[Value, tuple[int, int]] = {}
        if in_loop and all(any(is_a(s, kind) for s in region.body) for kind in ("dot", "slice")):
            for cut in axis_classes(region.body):
                size = _slice_size(cut, region.body)
                if size:
                    sizes.update((v, (axis, size)) for v, axis in cut.axes.items())
        self.changed |= bool(sizes)
        for statement in region.body:
            self._statement(statement, sizes, in_loop)
        frame = self.frames.pop()
        return _pulled(Region(region.parameters, tuple(frame.out), region.results), self.fresh)

    def _statement(self, statement: Statement, sizes: Mapping[Value, tuple[int, int]], in_loop: bool) -> None:
        if isinstance(statement, UOperator):
            found = sizes.get(statement.outputs[0]) if len(statement.outputs) == 1 else None
            tie = rule(statement).along((found[0],)) if found is not None else None
            if found is not None and tie is not None and statement.kind in _SPLIT:
                self._split(statement, tie, *found)
                return
            if statement.kind == "slice" and statement.inputs[0] in sizes:
                axis, size = sizes[statement.inputs[0]]
                if statement.output.type.shape[axis] == size:
                    self._pick(statement, axis, size)
                    return
        is_loop = isinstance(statement, LoopUTask)
        if not is_parallel(statement):
            statement = map_regions(statement, lambda region: self.region(region, in_loop or is_loop))
        self.frames[-1].emit(statement)

    # -- values ------------------------------------------------------------------------------------------
    def _version(self, value: Value, axis: int, size: int, source: Source) -> Value:
        """The value with its axis split, computed in the region that defines the value."""
        for frame in self.frames:
            if (value, axis, size) in frame.split:
                return frame.split[value, axis, size]
        home = next(frame for frame in self.frames if value in frame.visible)
        version = self.fresh.make(split_type(value.type, axis, size))
        home.emit(UOperator("reshape", (value,), (version,), (), source))
        home.split[value, axis, size] = version
        return version

    # -- operators ---------------------------------------------------------------------------------------
    def _split(self, operator: UOperator, tie: Tie, axis: int, size: int) -> None:
        """The operator on split operands, and a view of its result for those who read it whole."""
        inputs = tuple(
            v if d is None else self._version(v, d, size, operator.source)
            for v, d in zip(operator.inputs, tie.inputs, strict=True)
        )
        if operator.kind == "dynamic_slice":  # an axis taken whole starts at 0, whatever its start operand is
            inputs = (*inputs[: axis + 2], inputs[axis + 1], *inputs[axis + 2 :])
        result = self.fresh.make(split_type(operator.output.type, axis, size))
        attributes = _attributes(operator, axis, tie.inputs)
        frame = self.frames[-1]
        frame.emit(replace(operator, inputs=inputs, outputs=(result,), attributes=attributes))
        frame.emit(UOperator("reshape", (result,), operator.outputs))
        frame.split[operator.output, axis, size] = result

    def _pick(self, operator: UOperator, axis: int, size: int) -> None:
        """A slice becomes one of the groups."""
        source = self._version(operator.inputs[0], axis, size, operator.source)
        starts, strides = operator.ints("starts"), operator.ints("strides")
        picked = self.fresh.make(split_type(operator.output.type, axis, size))
        build = Builder(self.fresh, operator.source)
        starts = (*starts[:axis], starts[axis] // size, 0, *starts[axis + 1 :])
        strides = (*strides[:axis], 1, 1, *strides[axis + 1 :])
        build.define((picked,), "slice", (source,), starts=starts, strides=strides)
        build.define(operator.outputs, "reshape", (picked,))
        for statement in build.out:
            self.frames[-1].emit(statement)


def _slice_size(cut: AxisClass, body: Sequence[Statement]) -> int:
    """The size of all slices that consume the class, or 0 if the class must stay unsplit.

    Each slice starts at a multiple of the size. The class must hold a product.
    """
    crossings = [c for c in cut.crossings if not c.makes]
    if cut.clash or not crossings or len(cut.extents) != 1:
        return 0
    sizes, whole = set(), min(cut.extents)
    for crossing in crossings:
        operator, axis = crossing.leaf, crossing.axis
        if body[crossing.position] is not operator or not is_a(operator, "slice"):
            return 0
        size = operator.output.type.shape[axis]
        if operator.ints("strides")[axis] != 1 or size < 2 or operator.ints("starts")[axis] % size:
            return 0
        sizes.add(size)
    has_product = any(is_a(s, "dot") and s.output in cut.axes for s in body)
    return min(sizes) if len(sizes) == 1 and has_product and whole % min(sizes) == 0 else 0


def _attributes(
    operator: UOperator, axis: int, tied: Sequence[int | None]
) -> tuple[tuple[str, Attribute], ...]:
    """The attributes of the operator; those that name axes are renumbered for the split."""
    changed: dict[str, Attribute] = {}
    if operator.kind == "broadcast":
        dimensions: list[int] = []
        for d, target in enumerate(operator.ints("dimensions")):
            dimensions += [axis, axis + 1] if d == tied[0] else [target + (target > axis)]
        changed["dimensions"] = tuple(dimensions)
    elif operator.kind == "transpose":
        order: list[int] = []
        source = cast(int, tied[0])
        for d in operator.ints("permutation"):
            order += [source, source + 1] if d == source else [d + (d > source)]
        changed["permutation"] = tuple(order)
    elif operator.kind == "dot":
        for side, free in zip(("lhs", "rhs"), tied, strict=True):
            for name in (f"{side}_batch", f"{side}_contract"):
                axes = operator.ints(name)
                changed[name] = axes if free is None else _renumbered(axes, free)
    return tuple((name, changed.get(name, value)) for name, value in operator.attributes)


def _renumbered(axes: Sequence[int], split: int) -> tuple[int, ...]:
    """The axes after one was split in two."""
    return tuple(d for n in axes for d in ((n, n + 1) if n == split else (n + (n > split),)))


# -- products outside of the loops ---------------------------------------------------------------------------
def _pulled(region: Region, fresh: FreshValues) -> Region:
    """Products outside of loops whose only use splits one free axis compute the split result themselves, so
    that their parts are the parts that the loop reads."""
    uses: dict[Value, list[Statement | None]] = {v: [None] for v in region.results}
    for statement in region.body:
        for value in reads(statement):
            uses.setdefault(value, []).append(statement)
    done: set[Value] = set()

    def change(statement: Statement) -> list[Statement]:
        if is_a(statement, "dot"):
            users = uses.get(statement.output, [])
            if len(users) == 1 and _splits(users[0], statement):
                (target,) = cast(UOperator, users[0]).outputs
                done.add(target)
                return _split_product(statement, target, fresh)
        return [statement] if done.isdisjoint(statement.outputs) else []

    return map_body(region, change)


def _splits(statement: Statement | None, product: UOperator) -> bool:
    """True if the statement is a reshape that splits one free axis of the product's right operand."""
    if not is_a(statement, "reshape"):
        return False
    found = _split_place(product.output.type.shape, statement.output.type.shape)
    tie = rule(product).along((found[0],)) if found is not None else None
    return tie is not None and tie.inputs[0] is None


def _split_place(whole: Shape, split: Shape) -> tuple[int, int] | None:
    """(axis, size) such that `split` is `whole` with the axis split into (groups, size)."""
    if len(split) != len(whole) + 1:
        return None
    axis = next((d for d, n in enumerate(whole) if n != split[d]), len(whole))
    if axis == len(whole) or split[axis] * split[axis + 1] != whole[axis]:
        return None
    return (axis, split[axis + 1]) if whole[axis + 1 :] == split[axis + 2 :] else None


def _split_product(product: UOperator, target: Value, fresh: FreshValues) -> list[Statement]:
    place = _split_place(product.output.type.shape, target.type.shape)
    assert place is not None
    axis, size = place
    tie = rule(product).along((axis,))
    assert tie is not None and tie.inputs[1] is not None
    left, right = product.inputs
    build = Builder(fresh, product.source)
    version = build.reshape(right, split_type(right.type, tie.inputs[1], size).shape)
    attributes = _attributes(product, axis, tie.inputs)
    return [*build.out, replace(product, inputs=(left, version), outputs=(target,), attributes=attributes)]
