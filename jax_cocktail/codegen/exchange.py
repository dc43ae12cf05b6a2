"""Exchanges: values that units have written part by part, sent to all as tagged words."""

from __future__ import annotations

from jax_cocktail.codegen.context import Context
from jax_cocktail.utask.exchange import blocks_of, value_words, widest
from jax_cocktail.utask.ir import UOperator


def emit_exchange(context: Context, operator: UOperator) -> None:
    """Every unit sends its parts of all operands before it receives any."""
    context.needs.add("exchange")
    writer = context.writer
    writer.line("ck_next_step(unit);")
    places = [0]
    for value in operator.inputs:
        places.append(places[-1] + value.type.size)
    for value, blocks, place in zip(operator.inputs, blocks_of(operator), places, strict=False):
        rows, run = blocks.rows(value.type.shape)
        numbers = f"{blocks.parts}, {blocks.first}, {rows}, {run}"
        writer.line(f"ck_send_parts<{numbers}>(unit, {place}, {context.array(value).pointer});")
    blocks, end = widest(operator), value_words(operator)
    idle = context.plan.most_units > blocks.parts
    if idle:
        writer.line(f"ck_send_nothing<{blocks.parts}, {blocks.first}>(unit, {end});")
    for value, place in zip(operator.outputs, places, strict=False):
        writer.line(f"ck_receive(unit, {place}, {context.array(value).pointer}, {value.type.size});")
    if idle:
        writer.line(f"ck_receive_nothing<{blocks.parts}>(unit, {end});")
