"""The truth of flags for batch elements of which some flags are known."""

from __future__ import annotations

from collections.abc import Mapping

from jax_cocktail.schedule.simplify.peephole import splat
from jax_cocktail.utask.ir import Region, UOperator, is_a
from jax_cocktail.utask.types import Value


def truths(body: Region, known: Mapping[Value, bool], made: Mapping[Value, UOperator]) -> dict[Value, bool]:
    """The truth of values of a body for a batch element of which some values are `known`, where it is
    certain."""
    found = dict(known)

    def of(value: Value) -> bool | None:
        constant = splat(value, made)
        return any(constant) if constant is not None else found.get(value)

    for operator in body.body:
        if not is_a(operator, "and", "or", "not", "select") or operator.output.type.dtype != "bool":
            continue
        first, *others = map(of, operator.inputs)
        if operator.kind == "select":
            on_true, on_false = others
            both = on_true if on_true is on_false else None
            truth = both if first is None else (on_true if first else on_false)
        elif operator.kind == "not":
            truth = None if first is None else not first
        else:
            decisive, sides = operator.kind == "or", (first, *others)
            truth = decisive if decisive in sides else None if None in sides else not decisive
        if truth is not None:
            found[operator.output] = truth
    return found
