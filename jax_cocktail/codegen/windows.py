"""Pooling: reduce_window and its transpose, select_and_scatter_add."""

from __future__ import annotations

from typing import cast

from jax_cocktail.codegen.context import Context, stored
from jax_cocktail.codegen.loops import loop_over
from jax_cocktail.codegen.mapping import rows_over
from jax_cocktail.codegen.reduction import identity, step
from jax_cocktail.codegen.text import COMPUTE, Index
from jax_cocktail.utask.ir import UOperator


def _lows(operator: UOperator) -> list[int]:
    return [low for low, _ in cast(tuple[tuple[int, int], ...], operator["padding"])]


def emit_reduce_window(context: Context, operator: UOperator) -> None:
    """Every result element reduces a (dilated) window; what lies outside counts as the identity."""
    (x,) = operator.inputs
    op, dtype, shape = cast(str, operator["op"]), x.type.dtype, x.type.shape
    source, writer = context.array(x), context.writer
    strides, spread = operator.ints("strides"), operator.ints("base_dilation")
    dilation, lows = operator.ints("window_dilation"), _lows(operator)
    with context.result(operator.output) as target:

        def element(out: tuple[Index, ...]) -> None:
            total = writer.fresh("a")
            writer.line(f"{COMPUTE[dtype]} {total} = {identity(op, dtype)};")

            def tap(window: tuple[Index, ...]) -> None:
                inside: list[str] = []
                place: list[Index] = []
                for d, n in enumerate(shape):
                    position = out[d] * strides[d] + window[d] * dilation[d] + -lows[d]
                    place.append(_inside(position, n, spread[d], inside))
                guard = f"if ({' && '.join(inside)}) " if inside else ""
                writer.line(f"{guard}{total} = {step(op, total, source.read(place))};")

            loop_over(writer, operator.ints("window"), tap, "k")
            writer.line(f"{target.at(out)} = {stored(total, dtype)};")

        rows_over(context, operator.output.type.shape, element)


def _inside(position: Index, size: int, spread: int, inside: list[str]) -> Index:
    """Adds the range checks of one axis; returns the operand's index."""
    text = position.text()
    if position.terms == () and spread == 1 and 0 <= position.constant < size:
        return position
    limit = (size - 1) * spread
    inside.append(f"({text}) >= 0 && ({text}) <= {limit}")
    if spread == 1:
        return position
    inside.append(f"({text}) % {spread} == 0")
    return Index(0, ((f"(({text}) / {spread})", 1),))


def emit_select_and_scatter_add(context: Context, operator: UOperator) -> None:
    """Adds every source element to the place of its window's first largest (smallest) operand element."""
    source, operand = operator.inputs
    dtype, shape = operand.type.dtype, operand.type.shape
    given, values, writer = context.array(source), context.array(operand), context.writer
    strides, lows = operator.ints("strides"), _lows(operator)
    compare = ">" if operator["select"] == "ge" else "<"
    with context.result(operator.output) as target:
        zero = stored(COMPUTE[dtype] + "(0)", dtype)
        rows_over(context, shape, lambda i: writer.line(f"{target.at(i)} = {zero};"))
        context.fence()

        def window(out: tuple[Index, ...]) -> None:
            best, at, found = writer.fresh("a"), writer.fresh("n"), writer.fresh("f")
            writer.line(f"{COMPUTE[dtype]} {best} = 0; i64 {at} = 0; bool {found} = false;")

            def tap(inner: tuple[Index, ...]) -> None:
                inside: list[str] = []
                place = [
                    _inside(out[d] * strides[d] + inner[d] + -lows[d], n, 1, inside)
                    for d, n in enumerate(shape)
                ]
                with writer.block(f"if ({' && '.join(inside) or 'true'})"):
                    writer.line(f"const {COMPUTE[dtype]} x = {values.read(place)};")
                    take = f"!{found} || x {compare} {best} || (x != x && {best} == {best})"
                    writer.line(
                        f"if ({take}) {{ {best} = x; {at} = {target.place(place).text()}; {found} = true; }}"
                    )

            loop_over(writer, operator.ints("window"), tap, "k")
            old = f"{target.pointer}[{at}]"
            read = f"ck_up({old})" if dtype in ("bfloat16", "float16") else old
            new = stored(f"{read} + {given.read(out)}", dtype)
            if context.target.has_threads:  # every element has one thread that adds to it, in order
                found = f"{found} && {at} % {context.target.threads} == ck_lane()"
            writer.line(f"if ({found}) {old} = {new};")

        loop_over(writer, source.type.shape, window)
