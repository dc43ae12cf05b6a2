"""Emits exchanges: each unit sends its tiles of a value to all units, as tagged words."""

from __future__ import annotations

from jax_cocktail.codegen.context import Context
from jax_cocktail.utask.exchange import blocks_of, widest
from jax_cocktail.utask.ir import UOperator


def emit_exchange(context: Context, operator: UOperator) -> None:
    """Every unit sends its tiles of all operands before it receives any."""
    context.needs.add("exchange")
    writer = context.writer
    writer.line("ck_next_step(unit);")
    places, end = list[int](), 0  # of the operands among the words
    for value, blocks in zip(operator.inputs, blocks_of(operator), strict=True):
        rows, run, row = blocks.rows(value.type.shape)
        numbers = f"{blocks.parts}, {blocks.first}, {rows}, {run}, {row}"
        writer.line("ck_send_parts<{}>(unit, {}, {});", numbers, end, context.array(value).pointer)
        places.append(end)
        end += blocks.words(value.type.shape)
    blocks = widest(operator)
    idle = context.plan.most_units > blocks.parts
    if idle:
        writer.line(f"ck_send_nothing<{blocks.parts}, {blocks.first}>(unit, {end});")
    context.stamp_within(operator)
    for value, blocks, place in zip(operator.outputs, blocks_of(operator), places, strict=True):
        rows, run, row = blocks.rows(value.type.shape)
        numbers = f"{rows}, {blocks.parts * run}, {row}"
        writer.line("ck_receive_parts<{}>(unit, {}, {});", numbers, place, context.array(value).pointer)
    if idle:
        writer.line(f"ck_receive_nothing<{blocks.parts}>(unit, {end});")
