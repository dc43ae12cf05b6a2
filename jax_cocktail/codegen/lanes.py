"""Emits lane loops: groups of element operators, updates, copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import prod
from typing import cast

from jax_cocktail.codegen.context import ArrayView, Context
from jax_cocktail.codegen.element import ElementWriter
from jax_cocktail.codegen.kernel import Expression, Index, Load, Name, Pointer, Store
from jax_cocktail.codegen.mapping import (
    Batches,
    batches,
    copy_nest,
    lane_nest,
    may_copy,
)
from jax_cocktail.codegen.text import STORAGE
from jax_cocktail.codegen.writer import Axes, Writer, axes_of, code, down, indices_within
from jax_cocktail.cost.footprint import written
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import StitchedUTask, UOperator
from jax_cocktail.utask.layout import core, row_major
from jax_cocktail.utask.types import Shape, Value

Merged = frozenset[Name]
Destination = tuple[Value, ArrayView]  # the value whose elements are computed, and where they go


def elements_of(
    context: Context, members: Sequence[UOperator], writer: Writer, merged: Merged = frozenset()
) -> ElementWriter:
    index = context.target.index
    access = context.load, context.pointer, context.literal
    return ElementWriter(writer, members, *access, context.needs, merged, index, context.start)


# -- scalars -------------------------------------------------------------------------------------------------
def emit_scalars(context: Context, group: StitchedUTask) -> None:
    """Straight-line code on registers."""
    elements = elements_of(context, group.members, context.writer)
    for member in group.members:
        if member.kind == "dynamic_update_slice":
            _prepare_update(context, member)
            part, target = _update_destination(context, member, elements)
            value = elements.element(part, (Index(),) * part.type.rank)
            once = context.one_thread(of_one_unit=context.is_shared(member.output))
            context.writer.store(Load(target.pointer, target.base), down(value, target.dtype), once)
        elif member.output.type.is_scalar:
            zeros = (Index(),) * member.output.type.rank
            context.set_rounded(member.output, elements.element(member.output, zeros))
            elements.memo[(member.output, zeros)] = context.register(member.output)


# -- lane loops ----------------------------------------------------------------------------------------------
def emit_lanes(context: Context, group: StitchedUTask) -> None:
    sizes = core(written(group.members[-1]).type.shape)
    emit_nest(context, group.members, stored_by(context, group), sizes)


def stored_by(context: Context, group: StitchedUTask) -> list[Destination]:
    """The elements that a group stores, but for what its reductions combine. Prepares its updates."""
    outside = elements_of(context, (), context.writer)
    targets = []
    for member in group.members:
        if member.output not in group.outputs or member.kind == "reduce":
            continue
        if member.kind == "dynamic_update_slice":
            _prepare_update(context, member)
            targets.append(_update_destination(context, member, outside))
        else:
            targets.append((member.output, whole(context, member.output)))
    return targets


def whole(context: Context, value: Value) -> ArrayView:
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
    target, part, *starts = update.inputs
    base, strides = Index(), row_major(target.type.shape)
    sizes = zip(target.type.shape, part.type.shape, strict=True)
    for (n, size), start, stride in zip(sizes, starts, strides, strict=True):
        if n != size:
            place = elements.start(start, elements.element(start, ()), n - size)
            base = base + elements.opaque(place) * stride
    return part, replace(whole(context, update.output), base=base)


def product_place(context: Context, group: StitchedUTask) -> ArrayView:
    """The part of an array into which a group computes a matrix product directly."""
    product, update = group.members[0], group.members[-1]
    _prepare_update(context, update)
    part, place = _update_destination(context, update, elements_of(context, (), context.writer))
    kept = iter(s for n, s in zip(part.type.shape, place.strides, strict=True) if n != 1)
    strides = tuple(next(kept) if n != 1 else 0 for n in product.output.type.shape)
    return ArrayView(place.pointer + place.base, strides, place.dtype)


def emit_nest(
    context: Context, members: Sequence[UOperator], targets: Sequence[Destination], sizes: Shape
) -> None:
    """One loop nest over `sizes` that computes the elements of all targets, then stores them."""
    loops = axes_of(sizes)
    dry = elements_of(context, members, Writer())
    dry.writer.add(*nest_elements(dry, targets, loops))
    axes, merged = merge_axes(loops, dry)

    def body() -> list[Store]:
        return nest_elements(elements_of(context, members, context.writer, merged), targets, loops)

    found = batches(context, axes, dry.writer.nodes)
    if found is not None and may_copy(context, found, dry.writer.nodes):
        with copy_nest(context, axes):
            context.writer.add(*body())
        return
    if found is not None:
        with context.writer.block():
            emit_batches(context, found, targets, body)
        return
    with lane_nest(context, axes):
        context.writer.add(*body())


def emit_batches(
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
                writer.store(store.element, Load(array, trip), store.condition)
    if found.has_rest():
        with found.rest(context):
            writer.add(*body())


def nest_elements(elements: ElementWriter, targets: Sequence[Destination], loops: Axes) -> list[Store]:
    """Computes an element of each target, and returns the stores that remain."""
    stores = []
    for value, target in targets:
        indices = indices_within(loops, value.type.shape)
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
def emit_concatenate(context: Context, group: StitchedUTask, anchor: UOperator) -> None:
    """One loop nest per operand, directly into its part of the result."""
    axis = cast(int, anchor["dimension"])
    base, stride = Index(), row_major(anchor.output.type.shape)[axis]
    for operand in anchor.inputs:
        if operand.type.size:
            target = operand, replace(whole(context, anchor.output), base=base)
            with context.writer.block():
                emit_nest(context, group.members, [target], core(operand.type.shape))
        base += operand.type.shape[axis] * stride
