"""Emits lane loops: stitched groups, reductions, copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import cast

from jax_cocktail.codegen.context import ArrayView, Context
from jax_cocktail.codegen.contraction import emit_dot
from jax_cocktail.codegen.element import ElementWriter, Indices
from jax_cocktail.codegen.kernel import Expression, Index, Load, Name, Pointer, Store
from jax_cocktail.codegen.mapping import (
    Batches,
    batches,
    copy_nest,
    group_elements,
    group_rows,
    groups_for,
    lane_nest,
    may_copy,
)
from jax_cocktail.codegen.reduction import functor, identity, step, vector_operator
from jax_cocktail.codegen.text import COMPUTE, STORAGE
from jax_cocktail.codegen.writer import Axes, Writer, axes_of, call, clamped, code, down, indices_of, iterated
from jax_cocktail.device.tuning import BLOCK, PROGRAM
from jax_cocktail.utask.ir import StitchedUTask, UOperator
from jax_cocktail.utask.layout import core, row_major
from jax_cocktail.utask.types import Shape, Value

Merged = frozenset[Name]
Destination = tuple[Value, ArrayView]  # the value whose elements are computed, and where they go
SUM_BLOCK = PROGRAM.sum_block


def emit_group(context: Context, group: StitchedUTask) -> None:
    closer = group.members[-1]
    if group.members[0].kind == "dot":
        emit_dot(context, group.members[0], product_place(context, group))
    elif closer.kind == "reduce":
        _emit_reduce(context, group, closer)
    elif closer.kind == "concatenate" and closer.output in group.outputs:
        _emit_concatenate(context, group, closer)
    elif not core(_iteration_shape(group)):
        _emit_scalars(context, group)
    else:
        _emit_lanes(context, group)


def _iteration_shape(group: StitchedUTask) -> Shape:
    closer = group.members[-1]
    if closer.kind == "dynamic_update_slice":
        return closer.inputs[1].type.shape
    return closer.output.type.shape


def _elements(
    context: Context, members: Sequence[UOperator], writer: Writer, merged: Merged = frozenset()
) -> ElementWriter:
    index = context.target.index
    return ElementWriter(writer, members, context.load, context.pointer, context.needs, merged, index)


# -- scalars -------------------------------------------------------------------------------------------------
def _emit_scalars(context: Context, group: StitchedUTask) -> None:
    """Straight-line code on registers."""
    elements = _elements(context, group.members, context.writer)
    for member in group.members:
        if member.kind == "dynamic_update_slice":
            _prepare_update(context, member)
            written, target = _update_destination(context, member, elements)
            value = elements.element(written, (Index(),) * written.type.rank)
            once = context.one_thread(of_one_unit=context.is_shared(member.output))
            context.writer.store(Load(target.pointer, target.base), down(value, target.dtype), once)
        elif member.output.type.is_scalar:
            zeros = (Index(),) * member.output.type.rank
            context.set_rounded(member.output, elements.element(member.output, zeros))
            elements.memo[(member.output, zeros)] = context.register(member.output)


# -- lane loops ----------------------------------------------------------------------------------------------
def _emit_lanes(context: Context, group: StitchedUTask) -> None:
    outside = _elements(context, (), context.writer)
    targets = []
    for member in group.members:
        if member.output not in group.outputs:
            continue
        if member.kind == "dynamic_update_slice":
            _prepare_update(context, member)
            targets.append(_update_destination(context, member, outside))
        else:
            targets.append((member.output, _whole(context, member.output)))
    emit_nest(context, group.members, targets, core(_iteration_shape(group)))


def _whole(context: Context, value: Value) -> ArrayView:
    """The buffer of a dense value."""
    return ArrayView(context.pointer(value), row_major(value.type.shape), value.type.dtype)


def _prepare_update(context: Context, update: UOperator) -> None:
    """Copies the array to the result's buffer, unless it is already there."""
    if context.same_place(update.inputs[0], update.output):
        return
    with context.alone(update.output) if update.inputs[1].type.is_scalar else nullcontext():
        emit_copy(context, update.inputs[0], update.output)
    context.fence()


def _update_destination(context: Context, update: UOperator, elements: ElementWriter) -> Destination:
    target, written, *starts = update.inputs
    base, strides = Index(), row_major(target.type.shape)
    sizes = zip(target.type.shape, written.type.shape, strict=True)
    for (n, size), start, stride in zip(sizes, starts, strides, strict=True):
        if n != size:
            base = base + elements.opaque(clamped(elements.element(start, ()), n - size)) * stride
    return written, replace(_whole(context, update.output), base=base)


def product_place(context: Context, group: StitchedUTask) -> ArrayView:
    """The part of an array into which a group computes a matrix product directly."""
    product, update = group.members[0], group.members[-1]
    _prepare_update(context, update)
    written, place = _update_destination(context, update, _elements(context, (), context.writer))
    kept = iter(s for n, s in zip(written.type.shape, place.strides, strict=True) if n != 1)
    strides = tuple(next(kept) if n != 1 else 0 for n in product.output.type.shape)
    return ArrayView(place.pointer + place.base, strides, place.dtype)


def emit_nest(
    context: Context, members: Sequence[UOperator], targets: Sequence[Destination], sizes: Shape
) -> None:
    """One loop nest over `sizes` that computes the elements of all targets, then stores them."""
    loops = axes_of(sizes)
    dry = _elements(context, members, Writer())
    dry.writer.add(*_nest_elements(dry, targets, loops))
    axes, merged = merge_axes(loops, dry)

    def body() -> list[Store]:
        return _nest_elements(_elements(context, members, context.writer, merged), targets, loops)

    found = batches(context, axes, dry.writer.nodes)
    if found is not None and may_copy(context, found, dry.writer.nodes):
        with copy_nest(context, axes):
            context.writer.add(*body())
        return
    if found is not None:
        with context.writer.block():
            _emit_batches(context, found, targets, body)
        return
    with lane_nest(context, axes):
        context.writer.add(*body())


def _emit_batches(
    context: Context, found: Batches, targets: Sequence[Destination], body: Callable[[], list[Store]]
) -> None:
    """A batch computes all of its elements into arrays before it stores any."""
    writer = context.writer
    with found.over(context):
        held = [Pointer(writer.fresh("h"), STORAGE[target.dtype]) for _, target in targets]
        for array in held:
            writer.line("{} {}[{}];", array.type, array, found.together)
        with found.each(context) as trip:
            stores = body()
            for array, store in zip(held, stores, strict=True):
                writer.store(Load(array, trip), store.value)
        with found.each(context) as trip:
            for array, store in zip(held, stores, strict=True):
                writer.store(store.element, Load(array, trip))
    if found.has_rest(context):
        with found.rest(context):
            writer.add(*body())


def _nest_elements(elements: ElementWriter, targets: Sequence[Destination], loops: Axes) -> list[Store]:
    """Computes an element of each target, and returns the stores that remain."""
    stores = []
    for value, target in targets:
        rest = iter(indices_of(loops))
        indices = tuple(next(rest) if n != 1 else Index() for n in value.type.shape)
        computed = elements.element(value, indices)
        place = target.place(indices)
        elements.addresses.append(place)
        element = Load(target.pointer, place.without(elements.merged))
        stores.append(Store(element, down(computed, target.dtype)))
    return stores


def merge_axes(axes: Axes, dry: ElementWriter) -> tuple[Axes, Merged]:
    """Merges adjacent loop axes that every access traverses contiguously (row-major). Returns the axes that
    remain, and the variables of those that do not."""
    kept: list[tuple[Name, int]] = []
    merged: set[Name] = set()
    terms = [dict(place.terms) for place in dry.addresses]
    for name, count in axes:
        if kept:
            outer, outer_count = kept[-1]
            free = name not in dry.inspected and outer not in dry.inspected
            if free and all(t.get(outer, 0) == count * t.get(name, 0) for t in terms):
                merged.add(outer)
                kept[-1] = (name, outer_count * count)
                continue
        kept.append((name, count))
    return kept, frozenset(merged)


# -- copies --------------------------------------------------------------------------------------------------
def emit_copy(context: Context, source: Value, target: Value) -> None:
    """Copies a value to the (dense) buffer of another of the same size."""
    if source.type.size == 0 or context.same_place(source, target):
        return
    layout = context.layout(source)
    if layout.is_dense:
        begin: Expression = context.pointer(source)
        begin = code("{} + {}", begin, layout.offset) if layout.offset else begin
        context.copy(context.pointer(target), begin, source.type.nbytes)
        return
    shape = source.type.shape
    dense = ArrayView(context.pointer(target), row_major(shape), source.type.dtype)
    outer = next(d for d in range(len(shape) + 1) if layout.strides[d:] == dense.strides[d:])
    run = source.type.nbytes // prod(shape[:outer])
    if not context.target.has_threads or run < BLOCK.load_bytes * context.target.threads:
        emit_nest(context, (), [(source, dense)], core(shape))
        return
    with context.writer.nest(shape[:outer]) as indices:  # runs without gaps, long enough for all threads
        begins = (*indices, *(Index() for _ in shape[outer:]))
        to, begin = (code("&{}", array.at(begins)) for array in (dense, context.array(source)))
        context.copy(to, begin, run)


# -- closers -------------------------------------------------------------------------------------------------
def _emit_concatenate(context: Context, group: StitchedUTask, anchor: UOperator) -> None:
    """One loop nest per operand, directly into its part of the result."""
    axis = cast(int, anchor["dimension"])
    base, stride = Index(), row_major(anchor.output.type.shape)[axis]
    for operand in anchor.inputs:
        if operand.type.size:
            target = operand, replace(_whole(context, anchor.output), base=base)
            with context.writer.block():
                emit_nest(context, group.members, [target], core(operand.type.shape))
        base += operand.type.shape[axis] * stride


@dataclass(frozen=True, slots=True)
class _Reduction:
    """A group that ends with a reduction. `indices`: of the element that is reduced; `kept`, `inner`: axes
    that the result has, and those that are reduced, without unit axes."""

    context: Context
    members: Sequence[UOperator]
    operator: UOperator
    indices: Indices
    kept: Axes
    inner: Axes

    @property
    def op(self) -> str:
        return cast(str, self.operator["op"])

    @property
    def dtype(self) -> str:
        return self.operator.output.type.dtype

    @property
    def is_empty(self) -> bool:
        return self.operator.inputs[0].type.size == 0

    def element(self, writer: Writer, merged: Merged = frozenset()) -> Expression:
        """The element at the position of the loops."""
        return _elements(self.context, self.members, writer, merged).element(
            self.operator.inputs[0], self.indices
        )

    def place(self) -> Load:
        """The location of the result element."""
        result, reduced = self.operator.output, self.operator.ints("axes")
        out = tuple(index for d, index in enumerate(self.indices) if d not in reduced)
        return Load(self.context.pointer(result), self.context.place(result, out))

    def is_long(self, elements: int) -> bool:
        """True if a plain f32 sum of this many elements would lose digits."""
        return self.op == "sum" and COMPUTE[self.dtype] == "f32" and elements > SUM_BLOCK

    def start(self, wide: bool) -> Name:
        """Declares the accumulator; a wide one is an f64."""
        type_, writer = "f64" if wide else COMPUTE[self.dtype], self.context.writer
        return writer.var(type_, writer.fresh("a"), identity(self.op, self.dtype))

    def finish(self, total: Name, wide: bool, condition: Expression = "") -> None:
        """Stores the total. A register is set without a condition: all threads of the unit have the total."""
        value, result = code("f32({})", total) if wide else total, self.operator.output
        if result.type.is_scalar:
            self.context.set_rounded(result, value)
        else:
            self.context.writer.store(self.place(), down(value, self.dtype), condition)


def _emit_reduce(context: Context, group: StitchedUTask, anchor: UOperator) -> None:
    shape, reduced, dtype = anchor.inputs[0].type.shape, anchor.ints("axes"), anchor.output.type.dtype
    axes = axes_of(shape)
    kept = iterated([axis for d, axis in enumerate(axes) if d not in reduced])
    inner = iterated([axis for d, axis in enumerate(axes) if d in reduced])
    reduction = _Reduction(context, group.members, anchor, indices_of(axes), kept, inner)
    fastest = max((d for d, n in enumerate(shape) if n != 1), default=-1)
    column = bool(kept) and bool(inner) and fastest not in reduced and COMPUTE[dtype] == STORAGE[dtype]
    column = column and not reduction.is_long(_positions(inner)) and not reduction.is_empty
    if context.target.has_threads:
        _emit_group_reduce(reduction)
    elif column:
        _emit_column_reduce(reduction)
    else:
        _emit_row_reduce(reduction)


def _emit_group_reduce(r: _Reduction) -> None:
    """A group of threads reduces each row, then combines its partial results."""
    context, writer = r.context, r.context.writer
    context.needs.add("block")
    length = _positions(r.inner)
    threads, warp = context.block
    groups = groups_for(_positions(r.kept), length, threads, warp)
    have = f", {length}" if warp < groups.size and length < groups.size else ""  # threads with an element
    wide = r.is_long(length // groups.size)
    with group_rows(context, groups, r.kept) as stores:
        total = r.start(wide)
        if not r.is_empty:
            with group_elements(context, groups, r.inner):
                writer.set(total, step(r.op, total, r.element(writer)))
        if groups.size > 1:
            writer.set(total, call(f"ck_group_reduce<{groups.size}, {functor(r.op)}{have}>", total))
        r.finish(total, wide, stores)


def _emit_row_reduce(r: _Reduction) -> None:
    """One accumulator per result element; the innermost reduced axis runs in vector lanes."""
    writer, inner, merged = r.context.writer, r.inner, Merged()
    if not r.is_empty:
        dry = _elements(r.context, r.members, Writer())
        dry.element(r.operator.inputs[0], r.indices)
        inner, merged = merge_axes(inner, dry)
    wide = r.is_long(_positions(inner))
    with writer.loops(r.kept):
        total = r.start(wide)
        if wide and not r.is_empty:
            _emit_long_sum(r, inner, merged, total)
        elif not r.is_empty:
            _emit_reduce_loop(r, inner, merged, total)
        r.finish(total, wide)


def _positions(axes: Axes) -> int:
    return prod(count for _, count in axes)


def _emit_reduce_loop(r: _Reduction, inner: Axes, merged: Merged, total: Name) -> None:
    """The reduced axes as loops; the last one in lanes."""
    context, writer, lanes_op = r.context, r.context.writer, vector_operator(r.op, r.dtype)
    if lanes_op.startswith("ck_"):
        context.needs.add("reduce")
    with writer.loops(inner, _pragma(context, lanes_op, total) if lanes_op else ""):
        writer.set(total, step(r.op, total, r.element(writer, merged)))


def _pragma(context: Context, op: str, total: Name) -> Expression:
    """What stands before the loop of a reduction, if the target has a spelling for it."""
    spelling = context.target.reduction
    return code(spelling, op=op, name=total) if spelling else ""


def _emit_long_sum(r: _Reduction, inner: Axes, merged: Merged, total: Name) -> None:
    """Adds blocks of the last axis in f32 lanes, and their sums in f64."""
    writer, (name, count) = r.context.writer, inner[-1]
    block, end, part = Name(f"{name.text}b"), Name(f"{name.text}e"), writer.fresh("a")
    with writer.loops(inner[:-1]), writer.loop(block, count, step=SUM_BLOCK):
        last = code("{} + {}", block, SUM_BLOCK)
        writer.let("i64", end, code("{} < {} ? {} : {}", last, count, last, count))
        writer.var("f32", part, "0")
        with writer.loop(name, end, _pragma(r.context, "+", part), start=block):
            writer.set(part, code("{} + {}", part, r.element(writer, merged)))
        writer.line("{} += {};", total, part)


def _emit_column_reduce(r: _Reduction) -> None:
    """Adds whole rows into the result, lane by lane: the innermost axis is kept."""
    writer, target, lanes = r.context.writer, r.place(), r.context.target.lanes
    lane, width = r.kept[-1]
    with writer.loops(r.kept[:-1]):
        with writer.loop(lane, width, lanes):
            writer.store(target, identity(r.op, r.dtype))
        with writer.loops(r.inner), writer.loop(lane, width, lanes):
            writer.store(target, step(r.op, target, r.element(writer)))
