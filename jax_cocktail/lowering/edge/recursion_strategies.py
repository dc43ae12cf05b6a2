"""Describes the execution strategies of a marked call's recursions, for `explain`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from jax_cocktail.lowering.edge.adapter import holds_control_flow, primitive_name
from jax_cocktail.lowering.edge.flatten import Flat
from jax_cocktail.lowering.state import read_mark
from jax_cocktail.primitives.jaxprs import nested_jaxprs, open_jaxpr
from jax_cocktail.recursion.task import RECURSION


def on_stock(jaxpr: Any) -> tuple[str, ...]:
    """One sentence for each recursion of a jaxpr that stock XLA compiles unchanged."""
    found = [each for top in open_jaxpr(jaxpr).eqns for each in _within(top, False)]
    if not found:
        return ()
    from jax_cocktail.recursion.primitive import stock_text

    return tuple(stock_text(**each.params) for each in found)


def with_ours(flat: Flat, ours: Collection[int]) -> tuple[str, ...]:
    """One sentence for each recursion if our programs replace the equations at the positions `ours`."""
    from jax_cocktail.recursion.primitive import schedule_text, stock_text

    found: list[tuple[int, str]] = []
    spread = {position for _, positions in flat.recursions for position in positions}
    for equation, positions in flat.recursions:
        work = [p for p in positions if holds_control_flow(flat.equations[p])]
        is_ours = all(p in ours for p in work)
        found.append((positions.start, schedule_text(**equation.params, on_stock=not is_ours)))
    for position in sorted(set(range(len(flat.equations))) - spread):
        is_ours = position in ours
        text = schedule_text if is_ours else stock_text
        inside = _within(flat.equations[position], is_ours)
        found += ((position, text(**equation.params)) for equation in inside)
    return tuple(text for _, text in sorted(found))


def _within(equation: Any, marked: bool) -> Iterator[Any]:
    """The recursions in an equation, at any depth.

    `marked`: include those in marked calls, which are part of our program. On stock XLA, marked calls have
    reports of their own.
    """
    if primitive_name(equation) == RECURSION:
        yield equation
    if marked or read_mark(equation.params.get("name")) is None:
        for jaxpr in nested_jaxprs(equation):
            for inner in open_jaxpr(jaxpr).eqns:
                yield from _within(inner, marked)
