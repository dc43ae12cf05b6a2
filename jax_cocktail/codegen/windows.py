"""Emits pooling: reduce_window and its transpose, select_and_scatter_add."""

from __future__ import annotations

from typing import cast

from jax_cocktail.codegen.context import Context, Emitter
from jax_cocktail.codegen.kernel import Expression, Index, Load, Name
from jax_cocktail.codegen.mapping import rows_over
from jax_cocktail.codegen.reduction import identity, step
from jax_cocktail.codegen.text import COMPUTE
from jax_cocktail.codegen.writer import code, down, joined, up
from jax_cocktail.utask.ir import UOperator


def _lows(operator: UOperator) -> list[int]:
    return [low for low, _ in cast(tuple[tuple[int, int], ...], operator["padding"])]


def emit_reduce_window(context: Context, operator: UOperator) -> None:
    """Each result element reduces a (dilated) window; elements outside the operand count as the identity."""
    (x,) = operator.inputs
    op, dtype, shape = cast(str, operator["op"]), x.type.dtype, x.type.shape
    source, writer = context.array(x), context.writer
    strides, spread = operator.ints("strides"), operator.ints("base_dilation")
    dilation, lows = operator.ints("window_dilation"), _lows(operator)
    with context.result(operator.output) as target, rows_over(context, operator.output.type.shape) as out:
        total = writer.var(COMPUTE[dtype], writer.fresh("a"), identity(op, dtype))
        with writer.nest(operator.ints("window"), "k") as window:
            inside: list[Expression] = []
            place: list[Index] = []
            for d, n in enumerate(shape):
                position = out[d] * strides[d] + window[d] * dilation[d] + -lows[d]
                place.append(_inside(position, n, spread[d], inside))
            guard = joined(" && ", inside) if inside else ""
            writer.set(total, step(op, total, source.read(place)), guard)
        writer.add(target.store(out, total))


def _inside(position: Index, size: int, spread: int, inside: list[Expression]) -> Index:
    """Adds the range checks of one axis; returns the operand's index."""
    if position.terms == () and spread == 1 and 0 <= position.constant < size:
        return position
    inside.append(code("({}) >= 0 && ({}) <= {}", position, position, (size - 1) * spread))
    if spread == 1:
        return position
    inside.append(code("({}) % {} == 0", position, spread))
    return Index(0, ((code("(({}) / {})", position, spread), 1),))


def emit_select_and_scatter_add(context: Context, operator: UOperator) -> None:
    """Adds each source element at the first largest (smallest) operand element of its window."""
    source, operand = operator.inputs
    dtype, shape = operand.type.dtype, operand.type.shape
    given, values, writer = context.array(source), context.array(operand), context.writer
    strides, lows = operator.ints("strides"), _lows(operator)
    compare = ">=" if operator["select"] == "ge" else "<="
    with context.result(operator.output) as target:
        with rows_over(context, shape) as place:
            writer.add(target.store(place, f"{COMPUTE[dtype]}(0)"))
        context.fence()
        with writer.nest(source.type.shape) as out:
            best, at, found = writer.fresh("a"), writer.fresh("n"), writer.fresh("b")
            start = "{} {} = 0; i64 {} = 0; bool {} = false;"
            writer.line(start, COMPUTE[dtype], best, at, found)
            with writer.nest(operator.ints("window"), "k") as inner:
                inside: list[Expression] = []
                moved = [o * s + i + -low for o, s, i, low in zip(out, strides, inner, lows, strict=True)]
                place = tuple(_inside(i, n, 1, inside) for i, n in zip(moved, shape, strict=True))
                with writer.block(code("if ({})", joined(" && ", inside) if inside else "true")):
                    x = writer.let(COMPUTE[dtype], Name("x"), values.read(place))
                    # as in XLA: an element stays only if it compares, so a NaN gives way to what follows
                    take = code("!{} || !({} {} {})", found, best, compare, x)
                    keep = "if ({}) {{ {} = {}; {} = {}; {} = true; }}"
                    writer.line(keep, take, best, x, at, target.place(place), found)
            owned: Expression = found
            if context.target.has_threads:  # every element has one thread that adds to it, in order
                owned = code("{} && {} % {} == ck_lane()", found, at, context.target.threads)
            old = Load(target.pointer, at)
            writer.store(old, down(code("{} + {}", up(old, dtype), given.read(out)), dtype), owned)


EMITTERS: dict[str, Emitter] = {
    "reduce_window": emit_reduce_window,
    "select_and_scatter_add": emit_select_and_scatter_add,
}
