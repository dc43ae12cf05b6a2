"""The rule of the primitive `failure`: errors at run time (`recursion.failure`)."""

from __future__ import annotations

from jax_cocktail.primitives.equation import Equation
from jax_cocktail.primitives.reduction import reduce_value
from jax_cocktail.primitives.rule import rule, spread
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.types import Value


@rule("failure")
def _failure(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    """Checks the maximum of all batch elements' statuses, and adds a 0 that depends on the check to each."""
    (status,) = inputs
    text = equation.params["text"]
    shape = status.type.shape
    if not shape:
        return builder.emit("fail", (status,), "int32", (), text=text)
    if 0 in shape:
        return status
    worst = reduce_value(builder, status, range(len(shape)), "max")
    checked = builder.emit("fail", (worst,), "int32", (), text=text)
    nothing = spread(builder, builder.binary("sub", checked, worst), shape)
    return builder.binary("add", status, nothing)
