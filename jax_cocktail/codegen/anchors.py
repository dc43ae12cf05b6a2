"""Emits anchors: operators that have a template of their own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import prod
from typing import cast

from jax_cocktail.codegen import contraction, linalg, ordering, windows
from jax_cocktail.codegen.context import ArrayView, Context, Emitter
from jax_cocktail.codegen.exchange import emit_exchange
from jax_cocktail.codegen.failure import emit_fail
from jax_cocktail.codegen.kernel import Expression, Index, Load, Name
from jax_cocktail.codegen.lanes import emit_copy
from jax_cocktail.codegen.mapping import lane_nest, rows_over
from jax_cocktail.codegen.reduction import functor, identity, step
from jax_cocktail.codegen.text import COMPUTE
from jax_cocktail.codegen.writer import (
    Writer,
    axes_of,
    call,
    clamped,
    code,
    down,
    indices_of,
    iterated,
    joined,
    replaced,
    variable,
)
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import UOperator


def emit_anchor(context: Context, operator: UOperator) -> None:
    if any(v.type.size for v in operator.outputs):
        ANCHORS[operator.kind](context, operator)


def _emit_cumulative(context: Context, operator: UOperator) -> None:
    """Scans along one axis; every other axis runs in parallel."""
    (x,) = operator.inputs
    axis, op = cast(int, operator["axis"]), cast(str, operator["op"])
    shape, dtype, writer = x.type.shape, x.type.dtype, context.writer
    source = context.array(x)
    outer = replaced(shape, axis, 1)
    # long running sums of f32 lose digits: they are kept in f64
    wide = "f64" if COMPUTE[dtype] == "f32" and op in ("sum", "prod") else COMPUTE[dtype]
    by_block = context.target.has_threads and prod(outer) * BLOCK.scan_threads < context.target.threads
    if by_block and not x.type.is_scalar:
        _emit_scan(context, operator, outer, wide)
        return
    with context.result(operator.output) as target, rows_over(context, outer) as indices:
        start = identity("max" if op == "logsumexp" else op, dtype)
        total = writer.var(wide, writer.fresh("a"), start)
        with writer.loop(Name("k"), shape[axis]):
            along = variable(Name("k"))
            if operator["reverse"]:
                along = along * -1 + (shape[axis] - 1)
            here = replaced(indices, axis, along)
            if op == "logsumexp":
                context.needs.add("math")
                _logaddexp(writer, total, source.read(here), COMPUTE[dtype])
            else:
                writer.set(total, step(op, total, source.read(here)))
            writer.add(target.store(here, total if wide == COMPUTE[dtype] else code("f32({})", total)))


def _emit_scan(context: Context, operator: UOperator, outer: Sequence[int], wide: str) -> None:
    """The whole block scans one row after the other."""
    (x,) = operator.inputs
    axis, op = cast(int, operator["axis"]), cast(str, operator["op"])
    source, target = context.array(x), context.array(operator.output)
    context.needs |= {"block", "math"} if op == "logsumexp" else {"block"}
    name = "CkLogAddExp" if op == "logsumexp" else functor(op)
    reverse = "true" if operator["reverse"] else "false"
    with context.writer.nest(outer) as indices:
        here = [code("&{}, {}", array.at(indices), array.strides[axis]) for array in (source, target)]
        scan = "ck_block_scan<{}, {}>({}, {}, {});"
        context.writer.line(scan, name, wide, joined(", ", here), x.type.shape[axis], reverse)


def _logaddexp(writer: Writer, total: Name, element: Expression, compute: str) -> None:
    """log(exp(total) + exp(x)) without overflow; equal infinities add no NaN."""
    x, high, gap = Name("x"), Name("high"), Name("gap")
    writer.let(compute, x, element)
    writer.let(compute, high, call("ck_max", total, x))
    writer.let(compute, gap, code("-{}", call("ck_abs", code("{} - {}", total, x))))
    double = code("{} + {}", high, call("ck_log", f"{compute}(2)"))
    sum_ = code("{} + {}", high, call("ck_log1p", call("ck_exp", gap)))
    writer.set(total, code("{} == {} ? {} : {}", total, x, double, sum_))


def _emit_scatter(context: Context, operator: UOperator) -> None:
    """stablehlo.scatter: applies updates in order; the index vector is the last axis of the indices."""
    operand, table, updates = operator.inputs
    if not operand.type.is_scalar:
        emit_copy(context, operand, operator.output)
    if 0 in updates.type.shape:
        if operand.type.is_scalar:
            context.set(operator.output, context.register(operand))
        return
    starts, source = context.array(table), context.array(updates)
    with context.result(operator.output) as target:
        if operand.type.is_scalar:
            held = down(context.register(operand), operand.type.dtype)
            once = context.one_thread(of_one_unit=False)
            context.writer.store(Load(target.pointer, "0"), held, once)
        context.fence()
        axes, window = axes_of(updates.type.shape), operator.ints("update_window_dims")
        shared = context.target.has_threads and _can_share_windows(operator)
        inner = iterated([axes[d] for d in window]) if shared else []
        outer = [axis for axis in iterated(axes) if axis not in inner]
        with context.writer.loops(outer), lane_nest(context, inner) if shared else nullcontext():
            _scatter_one(context, operator, indices_of(axes), starts, source, target)


def _can_share_windows(operator: UOperator) -> bool:
    """True if threads can share each window of a scatter: no two of them then update the same element. There
    is one window, or every window is as long as the operand where it is not one element."""
    operand, updates = operator.inputs[0].type.shape, operator.inputs[2].type.shape
    window = [updates[d] for d in operator.ints("update_window_dims")]
    hidden = operator.ints("inserted_window_dims") + operator.ints("operand_batching_dims")
    whole = [n for d, n in enumerate(operand) if d not in hidden]
    return prod(window) > 1 and (prod(window) == prod(updates) or window == whole)


def _scatter_one(
    context: Context,
    operator: UOperator,
    u: tuple[Index, ...],
    starts: ArrayView,
    source: ArrayView,
    target: ArrayView,
) -> None:
    operand, updates = operator.inputs[0], operator.inputs[2]
    window = operator.ints("update_window_dims")
    batch = [i for d, i in enumerate(u) if d not in window]
    hidden = set(operator.ints("inserted_window_dims")) | set(operator.ints("operand_batching_dims"))
    sizes = [updates.type.shape[d] for d in window]
    rest = iter([(u[d], n) for d, n in zip(window, sizes, strict=True)])
    spans = [(Index(), 1) if d in hidden else next(rest) for d in range(operand.type.rank)]
    place = [index for index, _ in spans]
    batching = operator.ints("operand_batching_dims")
    for d, b in zip(batching, operator.ints("scatter_indices_batching_dims"), strict=True):
        place[d] = place[d] + batch[b]
    writer, inside = context.writer, list[Expression]()
    for component, d in enumerate(operator.ints("scatter_dims_to_operand_dims")):
        start = starts.read((*batch, Index(component)))
        limit = operand.type.shape[d] - spans[d][1]
        if operator["mode"] != "clip":
            inside.append(call("ck_index_within", start, str(limit)))
        place[d] = place[d] + variable(writer.let("i64", writer.fresh("n"), clamped(start, limit)))
    dtype, op = operand.type.dtype, cast(str, operator["op"])
    new = source.read(u)
    if op == "sub":
        new = code("{} - {}", target.read(place), new)
    elif op != "set":
        new = step({"add": "sum", "mul": "prod"}.get(op, op), target.read(place), new)
    if dtype == "bool" and op in ("add", "mul"):
        new = code("bool({})", new)
    # Every element has one thread that applies its updates, in their order.
    if context.target.has_threads and not _can_share_windows(operator):
        inside.append(code("({}) % {} == ck_lane()", target.place(place), context.target.threads))
    writer.add(target.store(place, new, joined(" && ", inside) if inside else ""))


def _emit_copy(context: Context, operator: UOperator) -> None:
    (source,) = operator.inputs
    if operator.output.type.is_scalar:
        context.set(operator.output, context.register(source))
    else:
        emit_copy(context, source, operator.output)


def _emit_update(context: Context, operator: UOperator) -> None:
    """This template is left with updates of one-element arrays and by empty arrays."""
    target, update = operator.inputs[:2]
    if operator.output.type.is_scalar:
        source = update if update.type.size else target
        context.set(operator.output, context.register(source))
    else:
        emit_copy(context, target, operator.output)


ANCHORS: dict[str, Emitter] = {
    **contraction.EMITTERS,
    **linalg.EMITTERS,
    **ordering.EMITTERS,
    **windows.EMITTERS,
    "copy": _emit_copy,
    "cumulative": _emit_cumulative,
    "scatter": _emit_scatter,
    "dynamic_update_slice": _emit_update,
    "exchange": emit_exchange,
    "fail": emit_fail,
}
