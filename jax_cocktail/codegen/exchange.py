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
    places = [0]
    for value, blocks in zip(operator.inputs, blocks_of(operator), strict=True):
        places.append(places[-1] + blocks.words(value.type.shape))
    for value, blocks, place in zip(operator.inputs, blocks_of(operator), places, strict=False):
        rows, run, row = blocks.rows(value.type.shape)
        numbers = f"{blocks.parts}, {blocks.first}, {rows}, {run}, {row}"
        pointer = context.array(value).pointer
        writer.line("ck_send_parts<{}>(unit, {}, {});", numbers, place, pointer)
    blocks, end = widest(operator), places[-1]
    idle = context.plan.most_units > blocks.parts
    if idle:
        writer.line(f"ck_send_nothing<{blocks.parts}, {blocks.first}>(unit, {end});")
    for value, blocks, place in zip(operator.outputs, blocks_of(operator), places, strict=False):
        rows, run, row = blocks.rows(value.type.shape)
        numbers = f"{rows}, {blocks.parts * run}, {row}"
        pointer = context.array(value).pointer
        writer.line("ck_receive_parts<{}>(unit, {}, {});", numbers, place, pointer)
    if idle:
        writer.line(f"ck_receive_nothing<{blocks.parts}>(unit, {end});")
