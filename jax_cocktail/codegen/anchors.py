"""Emits anchors: operators that have a template of their own."""

from __future__ import annotations

from contextlib import nullcontext
from math import prod
from typing import cast

from jax_cocktail.codegen import contraction, linalg, ordering, scans, windows
from jax_cocktail.codegen.context import ArrayView, Context, Emitter
from jax_cocktail.codegen.exchange import emit_exchange
from jax_cocktail.codegen.failure import emit_fail
from jax_cocktail.codegen.kernel import Expression, Index, Load
from jax_cocktail.codegen.lanes import emit_copy
from jax_cocktail.codegen.mapping import lane_nest
from jax_cocktail.codegen.reduction import step
from jax_cocktail.codegen.writer import (
    axes_of,
    call,
    clamped,
    code,
    down,
    indices_of,
    iterated,
    joined,
    variable,
)
from jax_cocktail.utask.ir import UOperator


def emit_anchor(context: Context, operator: UOperator) -> None:
    if any(v.type.size for v in operator.outputs):
        ANCHORS[operator.kind](context, operator)


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
            inside.append(call("ck_index_within", start, limit))
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
    **scans.EMITTERS,
    **windows.EMITTERS,
    "copy": _emit_copy,
    "scatter": _emit_scatter,
    "dynamic_update_slice": _emit_update,
    "exchange": emit_exchange,
    "fail": emit_fail,
}
