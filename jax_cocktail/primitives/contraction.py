"""Contractions and windowed reductions: dot, convolution, pooling (jax.lax)."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.equation import Atom, Equation, Literal
from jax_cocktail.primitives.reduction import combiner_of
from jax_cocktail.primitives.rule import ints, output_type, rule
from jax_cocktail.primitives.rule import without_bool as ordered
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.types import ITEM_SIZE, Value


def _operands(builder: Builder, inputs: tuple[Value, ...], result: str) -> tuple[Value, Value, str]:
    """Both operands in one dtype, and the accumulation dtype, which is never narrower."""
    x, y = inputs
    if x.type.dtype != y.type.dtype:
        wider = max((x.type.dtype, y.type.dtype, result), key=ITEM_SIZE.__getitem__)
        x, y = builder.convert(x, wider), builder.convert(y, wider)
    own = x.type.dtype
    return x, y, own if ITEM_SIZE[own] > ITEM_SIZE[result] else result


def _precision(equation: Equation, accumulator: str) -> dict[str, str]:
    """The precision attribute. `jax.lax.Precision.DEFAULT`, explicit or implied, and algorithms for TF32
    allow rounding of f32 operands to TF32; everything else is computed in full precision."""
    asked = equation.params.get("precision")
    words = {str(p) for p in (asked if isinstance(asked, tuple | list) else (asked,))}
    rounds = words <= {"None", "DEFAULT"} or words == {"TF32_TF32_F32"}
    return {"precision": "default"} if rounds and accumulator == "float32" else {}


@rule("dot_general", library=True)
def dot_general(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    result = output_type(equation)
    x, y, accumulator = _operands(builder, inputs, result.dtype)
    product = builder.emit(
        "dot",
        (x, y),
        accumulator,
        result.shape,
        lhs_batch=ints(lhs_batch),
        lhs_contract=ints(lhs_contract),
        rhs_batch=ints(rhs_batch),
        rhs_contract=ints(rhs_contract),
        **_precision(equation, accumulator),
    )
    return builder.convert(product, result.dtype)


def _pairs(padding: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(ints(pair) for pair in padding)


@rule("conv_general_dilated", library=True)
def conv_general_dilated(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    params, result = equation.params, output_type(equation)
    x, w, accumulator = _operands(builder, inputs, result.dtype)
    if accumulator == "bool":
        raise UnsupportedError("convolution of bool operands")
    lhs_spec, rhs_spec, out_spec = params["dimension_numbers"]
    product = builder.emit(
        "conv",
        (x, w),
        accumulator,
        result.shape,
        batch_group_count=int(params["batch_group_count"]),
        feature_group_count=int(params["feature_group_count"]),
        lhs_dilation=ints(params["lhs_dilation"]),
        lhs_spec=ints(lhs_spec),
        out_spec=ints(out_spec),
        padding=_pairs(params["padding"]),
        rhs_dilation=ints(params["rhs_dilation"]),
        rhs_spec=ints(rhs_spec),
        window_strides=ints(params["window_strides"]),
        **_precision(equation, accumulator),
    )
    return builder.convert(product, result.dtype)


def _pool(builder: Builder, equation: Equation, x: Value, op: str) -> Value:
    params, result = equation.params, output_type(equation)
    if x.type.dtype == "bool" and op not in ("max", "min"):
        raise UnsupportedError(f"reduce_window_{op} of bool operands")
    values = ordered(builder, x)
    pooled = builder.emit(
        "reduce_window",
        (values,),
        values.type.dtype,
        result.shape,
        base_dilation=ints(params["base_dilation"]),
        op=op,
        padding=_pairs(params["padding"]),
        strides=ints(params["window_strides"]),
        window=ints(params["window_dimensions"]),
        window_dilation=ints(params["window_dilation"]),
    )
    return builder.convert(pooled, result.dtype)


@rule("reduce_window_sum", "reduce_window_max", "reduce_window_min")
def pooling(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    return _pool(builder, equation, inputs[0], equation.primitive.removeprefix("reduce_window_"))


def _is_identity(atom: Atom, op: str) -> bool:
    if not isinstance(atom, Literal) or atom.shape:
        return False
    number = atom.value.item()
    if op in ("sum", "prod"):
        return bool(number == (0 if op == "sum" else 1))
    limits = np.iinfo(atom.dtype) if atom.value.dtype.kind in "iu" else None
    low, high = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
    return bool(number == (low if op == "max" else high))


@rule("reduce_window")
def reduce_window(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    op = combiner_of(equation.params["jaxpr"]) if len(inputs) == 2 else ""
    if op not in ("sum", "prod", "max", "min") or not _is_identity(equation.inputs[1], op):
        raise UnsupportedError("reduce_window other than sum, prod, max, min from the identity")
    return _pool(builder, equation, inputs[0], op)


@rule("select_and_scatter_add")
def select_and_scatter_add(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    params, result = equation.params, output_type(equation)
    select = str(getattr(params["select_prim"], "name", params["select_prim"]))
    if select not in ("ge", "le"):
        raise UnsupportedError(f"select_and_scatter_add that selects by {select!r}")
    source, operand = inputs
    return builder.emit(
        "select_and_scatter_add",
        (source, operand),
        result.dtype,
        result.shape,
        padding=_pairs(params["padding"]),
        select=select,
        strides=ints(params["window_strides"]),
        window=ints(params["window_dimensions"]),
    )
