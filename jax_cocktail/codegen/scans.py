"""Emits operators that go along one axis: running totals, argmax, argmin.

If a unit is one thread, an axis whose neighbours are next to each other is taken element by element. Along
any other axis, neighbouring columns go side by side in vector lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from jax_cocktail.codegen.context import Context, Emitter
from jax_cocktail.codegen.kernel import Expression, Index, Name
from jax_cocktail.codegen.mapping import group_elements_again, group_rows, groups_for, rows_over
from jax_cocktail.codegen.reduction import functor, identity, step
from jax_cocktail.codegen.text import COMPUTE, MOST_ELEMENTS
from jax_cocktail.codegen.writer import (
    axes_of,
    call,
    code,
    indices_of,
    iterated,
    joined,
    replaced,
    variable,
)
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import Shape

_X, _K, _COLUMN, _TOTAL = Name("x"), Name("k"), Name("c"), Name("total")


def _columns(context: Context, shape: Shape, axis: int) -> int | None:
    """The axis whose positions go side by side along `axis`; None if each row is taken alone."""
    inner = [d for d, n in enumerate(shape) if d > axis and n != 1]
    return inner[-1] if inner and not context.target.has_threads else None


def _emit_arg_reduce(context: Context, operator: UOperator) -> None:
    """First position of the largest (smallest) element along an axis; NaN wins."""
    (x,) = operator.inputs
    axis, shape = cast(int, operator["axis"]), x.type.shape
    side = _columns(context, shape, axis)
    if context.target.has_threads:
        _emit_group_arg(context, operator)
    elif side is None or shape[axis] > MOST_ELEMENTS:
        _emit_arg_rows(context, operator)
    else:
        _emit_arg_columns(context, operator, side)


def _emit_arg_rows(context: Context, operator: UOperator) -> None:
    (x,) = operator.inputs
    axis, shape, writer = cast(int, operator["axis"]), x.type.shape, context.writer
    source, at = context.array(x), writer.fresh("n")
    context.needs.add("scan")
    outer = [n for d, n in enumerate(shape) if d != axis]
    with context.result(operator.output) as target, writer.nest(outer) as indices:
        element = source.read((*indices[:axis], variable(_K), *indices[axis:]))
        row = f"ck_arg_row<{_arg_types(operator)}>"
        read = code("[&](i64 k) CK_INLINED {{ return {}; }}", element)
        writer.let("i64", at, call(row, shape[axis], read))
        writer.add(target.store(indices, code("{}({})", COMPUTE[operator.output.type.dtype], at)))


def _emit_arg_columns(context: Context, operator: UOperator, side: int) -> None:
    (x,) = operator.inputs
    axis, shape, writer = cast(int, operator["axis"]), x.type.shape, context.writer
    source = context.array(x)
    context.needs.add("scan")
    outer = replaced(replaced(shape, axis, 1), side, 1)
    with context.result(operator.output) as target, writer.nest(outer) as indices:
        here = replaced(replaced(indices, axis, variable(_K)), side, variable(_COLUMN))
        read = code("[&](i32 k, i64 c) CK_INLINED {{ return {}; }}", source.read(here))
        head = code("ck_arg_columns<{}>({}, {}, {}, ", _arg_types(operator), shape[axis], shape[side], read)
        with writer.block(code("{}[&](i64 c, i32 k) CK_INLINED", head)):
            place = (*here[:axis], *here[axis + 1 :])
            result = code("{}({})", COMPUTE[operator.output.type.dtype], _K)
            writer.add(target.store(place, result))
        writer.line(");")


def _arg_types(operator: UOperator) -> str:
    """The template arguments: the direction, and the type of an element."""
    is_max = "true" if operator["op"] == "max" else "false"
    return f"{is_max}, {COMPUTE[operator.inputs[0].type.dtype]}"


def _emit_group_arg(context: Context, operator: UOperator) -> None:
    """Searches each row with a group of threads."""
    (x,) = operator.inputs
    axis, shape, dtype = cast(int, operator["axis"]), x.type.shape, x.type.dtype
    source, writer = context.array(x), context.writer
    context.needs.add("block")
    axes = axes_of(shape)
    indices = indices_of(axes)
    kept = iterated([*axes[:axis], *axes[axis + 1 :]])
    block = context.block
    groups = groups_for(prod(n for _, n in kept), shape[axis], block.threads, block.warp)
    out = (*indices[:axis], *indices[axis + 1 :])
    integer = COMPUTE[operator.output.type.dtype]
    with context.result(operator.output) as target, group_rows(context, groups, kept) as row:
        kind = f"CkArg<{_arg_types(operator)}>"
        seen = writer.var(kind, writer.fresh("a"), f"{{ck_group_lane<{groups.size}>()}}")
        with group_elements_again(context, groups, axes[axis]):
            writer.let(COMPUTE[dtype], _X, source.read(indices))
            writer.line("ck_arg_take({}, {}, {});", seen, _X, indices[axis])
        position = code("{}(ck_arg_position<{}>({}))", integer, groups.size, seen)
        at = writer.var(integer, writer.fresh("n"), position)  # by all threads, of which some store it
        writer.add(target.store(out, code("{}", at), row.stores))


def _emit_cumulative(context: Context, operator: UOperator) -> None:
    """Scans along one axis; every other axis runs in parallel."""
    (x,) = operator.inputs
    axis = cast(int, operator["axis"])
    outer = replaced(x.type.shape, axis, 1)
    side = _columns(context, x.type.shape, axis)
    by_block = context.target.has_threads and prod(outer) * BLOCK.scan_threads < context.target.threads
    if by_block and not x.type.is_scalar:
        _emit_scan(context, operator, outer)
        return
    context.needs |= {"math"} if operator["op"] == "logsumexp" else set()
    if side is None:
        _emit_row_totals(context, operator)
    else:
        _emit_column_totals(context, operator, side)


def _total_type(operator: UOperator) -> str:
    """The C type of a running total. Long sums of f32 lose digits: they are kept in f64."""
    compute, op = COMPUTE[operator.output.type.dtype], operator.text("op")
    if op == "logsumexp":
        return f"CkLogSum<{compute}>"
    return "f64" if compute == "f32" and op in ("sum", "prod") else compute


def _start(operator: UOperator) -> str:
    """A running total of nothing."""
    op, dtype = operator.text("op"), operator.output.type.dtype
    if op == "logsumexp":
        return f"{_total_type(operator)}{{{identity('max', dtype)}, 0}}"
    return f"{_total_type(operator)}({identity(op, dtype)})"


def _emit_row_totals(context: Context, operator: UOperator) -> None:
    (x,) = operator.inputs
    axis, writer = cast(int, operator["axis"]), context.writer
    outer = replaced(x.type.shape, axis, 1)
    with context.result(operator.output) as target, rows_over(context, outer) as indices:
        total = writer.var(_total_type(operator), writer.fresh("a"), _start(operator))
        with writer.loop(_K, x.type.shape[axis]):
            here = replaced(indices, axis, _along(operator))
            writer.add(target.store(here, _taken(context, operator, total, here)))


def _emit_column_totals(context: Context, operator: UOperator, side: int) -> None:
    (x,) = operator.inputs
    axis, shape, writer = cast(int, operator["axis"]), x.type.shape, context.writer
    context.needs.add("scan")
    kind, counts = _total_type(operator), (shape[axis], shape[side], _start(operator))
    outer = replaced(replaced(shape, axis, 1), side, 1)
    with context.result(operator.output) as target, writer.nest(outer) as indices:
        here = replaced(replaced(indices, axis, _along(operator)), side, variable(_COLUMN))
        head = code("ck_scan_columns<{}>({}, {}, {}, ", kind, *counts)
        with writer.block(code("{}[&](i64 k, i64 c, {}& total) CK_INLINED", head, kind)):
            writer.add(target.store(here, _taken(context, operator, _TOTAL, here)))
        writer.line(");")


def _along(operator: UOperator) -> Index:
    """The index of the element that is taken next."""
    count = operator.inputs[0].type.shape[cast(int, operator["axis"])]
    return variable(_K) * -1 + (count - 1) if operator["reverse"] else variable(_K)


def _taken(context: Context, operator: UOperator, total: Name, here: Sequence[Index]) -> Expression:
    """A total after one more element, which changes it, in the compute type of the result."""
    (x,) = operator.inputs
    element, op = context.array(x).read(here), operator.text("op")
    if op == "logsumexp":
        return call("ck_log_sum", code("&{}", total), element)
    context.writer.set(total, step(op, total, element))
    compute = COMPUTE[operator.output.type.dtype]
    return total if _total_type(operator) == compute else code("{}({})", compute, total)


def _emit_scan(context: Context, operator: UOperator, outer: Sequence[int]) -> None:
    """The whole block scans one row after the other."""
    (x,) = operator.inputs
    axis, op = cast(int, operator["axis"]), operator.text("op")
    source, target = context.array(x), context.array(operator.output)
    context.needs |= {"block", "math"} if op == "logsumexp" else {"block"}
    name = "CkLogAddExp" if op == "logsumexp" else functor(op)
    wide = COMPUTE[x.type.dtype] if op == "logsumexp" else _total_type(operator)
    reverse = "true" if operator["reverse"] else "false"
    with context.writer.nest(outer) as indices:
        here = [code("&{}, {}", array.at(indices), array.strides[axis]) for array in (source, target)]
        scan = "ck_block_scan<{}, {}>({}, {}, {});"
        context.writer.line(scan, name, wide, joined(", ", here), x.type.shape[axis], reverse)


EMITTERS: dict[str, Emitter] = {"arg_reduce": _emit_arg_reduce, "cumulative": _emit_cumulative}
