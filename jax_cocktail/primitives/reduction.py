"""Reductions, cumulative operators, sorting (jax.lax)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.equation import Equation
from jax_cocktail.primitives.rule import ON_BOOL, ints, output_type, physical_type, rule, spread
from jax_cocktail.primitives.rule import without_bool as ordered
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.types import Value

_COMBINERS = {
    "add": "sum",
    "mul": "prod",
    "max": "max",
    "min": "min",
    "and": "and",
    "or": "or",
    "xor": "xor",
}


def reduce_value(builder: Builder, x: Value, axes: Sequence[int], op: str) -> Value:
    """Reduces over `axes`. Maxima and minima of bools are disjunctions and conjunctions."""
    if not axes:
        return x
    if x.type.dtype == "bool":
        op = ON_BOOL.get(op, op)
        if op not in ("and", "or", "xor"):
            raise UnsupportedError(f"reduce_{op} of bool operands")
    shape = [d for axis, d in enumerate(x.type.shape) if axis not in axes]
    return builder.emit("reduce", (x,), x.type.dtype, shape, axes=tuple(sorted(axes)), op=op)


@rule(*(f"reduce_{op}" for op in _COMBINERS.values()))
def reduction(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    op = equation.primitive.removeprefix("reduce_")
    return reduce_value(builder, inputs[0], ints(equation.params["axes"]), op)


@rule("argmax", "argmin")
def arg_reduction(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    (axis,) = ints(equation.params["axes"])
    result, op = output_type(equation), equation.primitive.removeprefix("arg")
    x = ordered(builder, inputs[0])
    return builder.emit("arg_reduce", (x,), result.dtype, result.shape, axis=axis, op=op)


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    (x,) = inputs
    op = equation.primitive.removeprefix("cum")
    if x.type.dtype == "bool" and op not in ("max", "min"):
        raise UnsupportedError(f"cumulative {op} of bool operands")
    values = ordered(builder, x)
    axis, reverse = int(equation.params["axis"]), bool(equation.params["reverse"])
    y = builder.emit("cumulative", (values,), values.type, axis=axis, op=op, reverse=reverse)
    return builder.convert(y, x.type.dtype)


def combiner_of(jaxpr: Any) -> str:
    """The reduction that a two-argument scalar jaxpr computes, or "" if we do not support it."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    if len(inner.eqns) != 1 or len(inner.invars) != 2:
        return ""
    (equation,) = inner.eqns
    operands = list(equation.invars)
    if operands not in (list(inner.invars), list(reversed(inner.invars))):
        return ""
    if list(inner.outvars) != list(equation.outvars):
        return ""
    return _COMBINERS.get(equation.primitive.name, "")


@rule("reduce")
def reduce(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    op = combiner_of(equation.params["jaxpr"]) if len(inputs) == 2 else ""
    if not op:
        raise UnsupportedError("reduce with a custom function (only add, mul, max, min, and, or, xor)")
    x, initial = inputs
    y = reduce_value(builder, x, ints(equation.params["dimensions"]), op)
    kind = next(name for name, combined in _COMBINERS.items() if combined == op)
    if x.type.dtype == "bool":
        kind = ON_BOOL.get(kind, kind)
    return builder.binary(kind, spread(builder, initial, y.type.shape), y)


@rule("sort", library=True)
def sort(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    """Sorts stably in all cases, which is one of the orders that an unstable sort may produce."""
    results = [(x.type.dtype, x.type.shape) for x in inputs]
    dimension, num_keys = int(equation.params["dimension"]), int(equation.params["num_keys"])
    if any(atom.key_impl for atom in equation.inputs):
        raise UnsupportedError("sort of a typed key array")
    return builder.emit_many("sort", inputs, results, dimension=dimension, num_keys=num_keys)


@rule("top_k", library=True)
def top_k(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    x = ordered(builder, inputs[0])
    values, indices = (physical_type(output) for output in equation.outputs)
    axis = int(equation.params.get("axis", -1)) % x.type.rank
    found, where = builder.emit_many(
        "top_k",
        (x,),
        [(x.type.dtype, values.shape), ("int32", indices.shape)],
        axis=axis,
        k=int(equation.params["k"]),
    )
    return (builder.convert(found, values.dtype), builder.convert(where, indices.dtype))
