"""Lane loops: stitched groups, reductions, copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from math import prod
from typing import cast

from jax_cocktail.codegen.context import ArrayView, Context, stored
from jax_cocktail.codegen.contraction import emit_dot
from jax_cocktail.codegen.element import ElementWriter, Indices
from jax_cocktail.codegen.mapping import Batches, batches, group_elements, group_rows, groups_for, lane_nest
from jax_cocktail.codegen.reduction import functor, identity, step, vector_operator
from jax_cocktail.codegen.text import COMPUTE, STORAGE, Index, Writer, variable
from jax_cocktail.utask.ir import StitchedUTask, UOperator
from jax_cocktail.utask.layout import core, row_major
from jax_cocktail.utask.types import Shape, Value

Rename = dict[str, tuple[str, int]]
SUM_BLOCK = 1024  # elements that are added in f32 before their sum goes to an f64


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the elements of `value` go: `pointer[base + sum(i_d * strides[d])]`."""

    value: Value
    pointer: str
    base: Index
    strides: tuple[int, ...]
    dtype: str


def emit_group(context: Context, group: StitchedUTask) -> None:
    closer = group.members[-1]
    if group.members[0].kind == "dot":
        _emit_product_into(context, group)
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
    context: Context, members: Sequence[UOperator], writer: Writer, rename: Rename
) -> ElementWriter:
    index = context.target.index
    return ElementWriter(writer, members, context.load, context.pointer, context.needs, rename, index)


# -- scalars -------------------------------------------------------------------------------------------------
def _emit_scalars(context: Context, group: StitchedUTask) -> None:
    """Straight-line code on registers."""
    elements = _elements(context, group.members, context.writer, {})
    for member in group.members:
        if member.kind == "dynamic_update_slice":
            _prepare_update(context, member)
            target = _update_destination(context, member, elements)
            value = elements.element(target.value, (Index(),) * target.value.type.rank)
            once = context.one_thread(of_one_unit=context.is_shared(member.output))
            text = f"{target.pointer}[{target.base.text()}] = {stored(value, target.dtype)};"
            context.writer.line(f"{once}{text}")
        elif member.output.type.is_scalar:
            zeros = (Index(),) * member.output.type.rank
            text = elements.element(member.output, zeros)
            name = context.register(member.output)
            context.writer.line(f"{name} = {context.rounded(text, member.output.type.dtype)};")
            elements.memo[(member.output, zeros)] = name


# -- lane loops ----------------------------------------------------------------------------------------------
def _emit_lanes(context: Context, group: StitchedUTask) -> None:
    outside = _elements(context, (), context.writer, {})
    targets = []
    for member in group.members:
        if member.output not in group.outputs:
            continue
        if member.kind == "dynamic_update_slice":
            _prepare_update(context, member)
            targets.append(_update_destination(context, member, outside))
        else:
            targets.append(_own_destination(context, member.output))
    emit_nest(context, group.members, targets, core(_iteration_shape(group)))


def _own_destination(context: Context, value: Value) -> Destination:
    pointer = context.pointer(value)
    return Destination(value, pointer, Index(), row_major(value.type.shape), value.type.dtype)


def _prepare_update(context: Context, update: UOperator) -> None:
    """Brings the array to the result's buffer, unless it is there."""
    if context.same_place(update.inputs[0], update.output):
        return
    with context.alone(update.output) if update.inputs[1].type.is_scalar else nullcontext():
        emit_copy(context, update.inputs[0], update.output)
    context.fence()


def _update_destination(context: Context, update: UOperator, elements: ElementWriter) -> Destination:
    target, written, *starts = update.inputs
    strides = row_major(target.type.shape)
    base = Index()
    sizes = zip(target.type.shape, written.type.shape, strict=True)
    for (n, size), start, stride in zip(sizes, starts, strides, strict=True):
        if n != size:
            text = f"ck_clamp_index({elements.element(start, ())}, {n - size})"
            base = base + elements.opaque(text) * stride
    dtype = update.output.type.dtype
    return Destination(written, context.pointer(update.output), base, strides, dtype)


def _emit_product_into(context: Context, group: StitchedUTask) -> None:
    """A matrix product computed straight into its part of an array."""
    product, update = group.members[0], group.members[-1]
    _prepare_update(context, update)
    place = _update_destination(context, update, _elements(context, (), context.writer, {}))
    kept = iter(s for n, s in zip(place.value.type.shape, place.strides, strict=True) if n != 1)
    strides = tuple(next(kept) if n != 1 else 0 for n in product.output.type.shape)
    pointer = f"({place.pointer} + {place.base.text()})"
    emit_dot(context, product, ArrayView(pointer, strides, place.dtype))


def emit_nest(
    context: Context, members: Sequence[UOperator], targets: Sequence[Destination], sizes: Shape
) -> None:
    """One loop nest over `sizes`: computes all targets' elements, then stores them."""
    names = [f"i{d}" for d in range(len(sizes))]
    dry = _elements(context, members, Writer(), {})
    _store(dry.writer, _nest_elements(dry, targets, names, {}))
    merged, rename = merge_axes(list(zip(names, sizes, strict=True)), dry)

    def body() -> list[tuple[str, str]]:
        return _nest_elements(_elements(context, members, context.writer, rename), targets, names, rename)

    found = batches(context, merged, dry.writer.lines)
    if found is not None:
        with context.writer.block():
            _emit_batches(context, found, targets, body)
        return
    with lane_nest(context, merged):
        _store(context.writer, body())


def _emit_batches(
    context: Context,
    found: Batches,
    targets: Sequence[Destination],
    body: Callable[[], list[tuple[str, str]]],
) -> None:
    writer = context.writer
    with found.over(context):
        held = [writer.fresh("h") for _ in targets]
        for name, target in zip(held, targets, strict=True):
            writer.line(f"{STORAGE[target.dtype]} {name}[{found.together}];")
        with found.each(context):
            stores = body()
            for name, (_, text) in zip(held, stores, strict=True):
                writer.line(f"{name}[j] = {text};")
        with found.each(context):
            _store(writer, [(place, f"{name}[j]") for name, (place, _) in zip(held, stores, strict=True)])
    if found.has_rest(context):
        with found.rest(context):
            _store(writer, body())


def _store(writer: Writer, stores: Sequence[tuple[str, str]]) -> None:
    for place, text in stores:
        writer.line(f"{place} = {text};")


def _nest_elements(
    elements: ElementWriter, targets: Sequence[Destination], names: Sequence[str], rename: Rename
) -> list[tuple[str, str]]:
    """Computes an element of each target. Returns where they go, and what goes there."""
    stores = []
    for target in targets:
        indices = _loop_indices(target.value.type.shape, names)
        text = elements.element(target.value, indices)
        place = target.base
        for index, stride in zip(indices, target.strides, strict=True):
            place = place + index * stride
        elements.addresses.append(place)
        stores.append((f"{target.pointer}[{place.text(rename)}]", stored(text, target.dtype)))
    return stores


def _loop_indices(shape: Shape, names: Sequence[str]) -> Indices:
    rest = iter(names)
    return tuple(variable(next(rest)) if n != 1 else Index() for n in shape)


def merge_axes(axes: list[tuple[str, int]], dry: ElementWriter) -> tuple[list[tuple[str, int]], Rename]:
    """Merges neighbouring loop axes that every access walks as one (row-major, without gaps)."""
    merged: list[tuple[str, int]] = []
    rename: Rename = {}
    terms = [dict(place.terms) for place in dry.addresses]
    for name, count in axes:
        if merged:
            outer, outer_count = merged[-1]
            free = name not in dry.inspected and outer not in dry.inspected
            if free and all(t.get(outer, 0) == count * t.get(name, 0) for t in terms):
                rename[outer] = (name, 0)
                merged[-1] = (name, outer_count * count)
                continue
        merged.append((name, count))
    return merged, rename


# -- copies --------------------------------------------------------------------------------------------------
def emit_copy(context: Context, source: Value, target: Value) -> None:
    """Copies a value to the (dense) buffer of another of the same size."""
    if source.type.size == 0 or context.same_place(source, target):
        return
    layout = context.layout(source)
    if layout.is_dense:
        offset = f" + {layout.offset}" if layout.offset else ""
        context.copy(context.pointer(target), context.pointer(source) + offset, source.type.nbytes)
        return
    strides = row_major(source.type.shape)
    destination = Destination(source, context.pointer(target), Index(), strides, source.type.dtype)
    emit_nest(context, (), [destination], core(source.type.shape))


# -- closers -------------------------------------------------------------------------------------------------
def _emit_concatenate(context: Context, group: StitchedUTask, anchor: UOperator) -> None:
    """One loop nest per operand, straight into its part of the result."""
    axis = cast(int, anchor["dimension"])
    strides = row_major(anchor.output.type.shape)
    pointer, dtype = context.pointer(anchor.output), anchor.output.type.dtype
    begin = 0
    for operand in anchor.inputs:
        if operand.type.size:
            base = Index(begin * strides[axis])
            target = Destination(operand, pointer, base, strides, dtype)
            with context.writer.block():
                emit_nest(context, group.members, [target], core(operand.type.shape))
        begin += operand.type.shape[axis]


def _emit_reduce(context: Context, group: StitchedUTask, anchor: UOperator) -> None:
    (operand,) = anchor.inputs
    shape = operand.type.shape
    reduced = set(cast(tuple[int, ...], anchor["axes"]))
    names = [f"i{d}" for d in range(len(shape))]
    indices = tuple(variable(n) if size != 1 else Index() for n, size in zip(names, shape, strict=True))
    kept = [(names[d], shape[d]) for d in range(len(shape)) if d not in reduced and shape[d] != 1]
    inner = [(names[d], shape[d]) for d in range(len(shape)) if d in reduced and shape[d] != 1]
    out = tuple(indices[d] for d in range(len(shape)) if d not in reduced)
    dtype = anchor.output.type.dtype
    fastest = max((d for d, n in enumerate(shape) if n != 1), default=-1)
    column = bool(kept) and bool(inner) and fastest not in reduced and COMPUTE[dtype] == STORAGE[dtype]
    column = column and not _is_long_sum(cast(str, anchor["op"]), dtype, inner)
    dry = _elements(context, group.members, Writer(), {})
    if operand.type.size:
        dry.element(operand, indices)
    if context.target.has_threads:
        _emit_group_reduce(context, group, anchor, indices, out, kept, inner)
        return
    if column and operand.type.size:
        _emit_column_reduce(context, group, anchor, indices, out, kept, inner)
        return
    inner, rename = merge_axes(inner, dry)
    _emit_row_reduce(context, group, anchor, indices, out, kept, inner, rename)


def _emit_group_reduce(
    context: Context,
    group: StitchedUTask,
    anchor: UOperator,
    indices: Indices,
    out: Indices,
    kept: list[tuple[str, int]],
    inner: list[tuple[str, int]],
) -> None:
    """Every row by a group of threads, which then combine what each of them has."""
    writer, op, result = context.writer, cast(str, anchor["op"]), anchor.output
    dtype, operand = result.type.dtype, anchor.inputs[0]
    context.needs.add("block")
    length = prod(count for _, count in inner)
    groups = groups_for(prod(count for _, count in kept), length, context.target.threads)
    wide = _is_long_sum(op, dtype, [("", length // groups.size)])
    compute = "f64" if wide else COMPUTE[dtype]
    with group_rows(context, groups, kept) as stores:
        total = writer.fresh("a")
        writer.line(f"{compute} {total} = {identity(op, dtype)};")
        if operand.type.size:
            with group_elements(context, groups, inner):
                text = _elements(context, group.members, writer, {}).element(operand, indices)
                writer.line(f"{total} = {step(op, total, text)};")
        if groups.size > 1:
            writer.line(f"{total} = ck_group_reduce<{groups.size}, {functor(op)}>({total});")
        total = f"f32({total})" if wide else total
        if result.type.is_scalar:
            writer.line(f"{context.register(result)} = {context.rounded(total, dtype)};")
            return
        place = context.load(result, out)
        assert isinstance(place, Index)
        writer.line(f"if ({stores}) {context.pointer(result)}[{place.text()}] = {stored(total, dtype)};")


def _emit_row_reduce(
    context: Context,
    group: StitchedUTask,
    anchor: UOperator,
    indices: Indices,
    out: Indices,
    kept: list[tuple[str, int]],
    inner: list[tuple[str, int]],
    rename: Rename,
) -> None:
    """One accumulator per result element; the innermost reduced axis runs in vector lanes."""
    writer, op, result = context.writer, cast(str, anchor["op"]), anchor.output
    dtype = result.type.dtype
    wide = _is_long_sum(op, dtype, inner)
    with ExitStack() as stack:
        for name, count in kept:
            stack.enter_context(writer.loop(name, count))
        total = writer.fresh("a")
        writer.line(f"{'f64' if wide else COMPUTE[dtype]} {total} = {identity(op, dtype)};")
        if anchor.inputs[0].type.size:
            with ExitStack() as loops:
                for name, count in inner[:-1] if wide else ():
                    loops.enter_context(writer.loop(name, count))
                if wide:
                    _emit_long_sum(context, group, anchor, indices, inner[-1], rename, total)
                else:
                    _emit_reduce_loop(context, group, anchor, indices, inner, rename, total)
        total = f"f32({total})" if wide else total
        if result.type.is_scalar:
            writer.line(f"{context.register(result)} = {context.rounded(total, dtype)};")
        else:
            place = context.load(result, out)
            assert isinstance(place, Index)
            writer.line(f"{context.pointer(result)}[{place.text()}] = {stored(total, dtype)};")


def _is_long_sum(op: str, dtype: str, inner: Sequence[tuple[str, int]]) -> bool:
    """True if adding one by one in f32 would lose digits."""
    elements = 1
    for _, count in inner:
        elements *= count
    return op == "sum" and COMPUTE[dtype] == "f32" and elements > SUM_BLOCK


def _emit_reduce_loop(
    context: Context,
    group: StitchedUTask,
    anchor: UOperator,
    indices: Indices,
    inner: Sequence[tuple[str, int]],
    rename: Rename,
    total: str,
) -> None:
    """The reduced axes as loops; the last one in lanes."""
    writer, op, dtype = context.writer, cast(str, anchor["op"]), anchor.output.type.dtype
    lanes_op = vector_operator(op, dtype)
    if lanes_op.startswith("ck_"):
        context.needs.add("reduce")
    with ExitStack() as loops:
        for position, (name, count) in enumerate(inner):
            last = position == len(inner) - 1 and bool(lanes_op)
            pragma = context.target.reduction.format(op=lanes_op, name=total) if last else ""
            loops.enter_context(writer.loop(name, count, pragma))
        text = _elements(context, group.members, writer, rename).element(anchor.inputs[0], indices)
        writer.line(f"{total} = {step(op, total, text)};")


def _emit_long_sum(
    context: Context,
    group: StitchedUTask,
    anchor: UOperator,
    indices: Indices,
    axis: tuple[str, int],
    rename: Rename,
    total: str,
) -> None:
    """Blocks are added in f32 lanes, their sums in f64."""
    writer, (name, count) = context.writer, axis
    block, part = f"{name}b", writer.fresh("a")
    with writer.block(f"for (i64 {block} = 0; {block} < {count}; {block} += {SUM_BLOCK})"):
        writer.line(f"const i64 {name}e = {block} + {SUM_BLOCK} < {count} ? {block} + {SUM_BLOCK} : {count};")
        writer.line(f"f32 {part} = 0;")
        writer.line(context.target.reduction.format(op="+", name=part))
        with writer.block(f"for (i64 {name} = {block}; {name} < {name}e; ++{name})"):
            text = _elements(context, group.members, writer, rename).element(anchor.inputs[0], indices)
            writer.line(f"{part} = {part} + {text};")
        writer.line(f"{total} += {part};")


def _emit_column_reduce(
    context: Context,
    group: StitchedUTask,
    anchor: UOperator,
    indices: Indices,
    out: Indices,
    kept: list[tuple[str, int]],
    inner: list[tuple[str, int]],
) -> None:
    """The fastest axis is kept: whole rows are added into the result, lane by lane."""
    writer, op, result = context.writer, cast(str, anchor["op"]), anchor.output
    place = context.load(result, out)
    assert isinstance(place, Index)
    target = f"{context.pointer(result)}[{place.text()}]"
    lane, width = kept[-1]
    with ExitStack() as stack:
        for name, count in kept[:-1]:
            stack.enter_context(writer.loop(name, count))
        with writer.loop(lane, width, context.target.lanes):
            writer.line(f"{target} = {identity(op, result.type.dtype)};")
        for name, count in inner:
            stack.enter_context(writer.loop(name, count))
        with writer.loop(lane, width, context.target.lanes):
            text = _elements(context, group.members, writer, {}).element(anchor.inputs[0], indices)
            writer.line(f"{target} = {step(op, target, text)};")
