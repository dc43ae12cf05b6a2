"""Indexing with run-time positions: dynamic slices, gather, scatter (jax.lax).

Typed keys are indexed in their physical form, with the whole trailing word axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.equation import Equation
from jax_cocktail.primitives.rule import ints, output_type, rule
from jax_cocktail.primitives.rule import without_bool as ordered
from jax_cocktail.utask.builder import Builder, to_bytes
from jax_cocktail.utask.types import FLOATS, ITEM_SIZE, SIGNED, TensorType, Value

_GATHER_MODES = {"CLIP": "clip", "FILL_OR_DROP": "fill", "PROMISE_IN_BOUNDS": "promise_in_bounds"}
_SCATTER_MODES = _GATHER_MODES | {"FILL_OR_DROP": "fill_or_drop"}


def _is_key(equation: Equation) -> bool:
    return bool(equation.inputs[0].key_impl)


def _starts(builder: Builder, equation: Equation, starts: Sequence[Value]) -> tuple[Value, ...]:
    if not _is_key(equation):
        return tuple(starts)
    dtype = starts[0].type.dtype if starts else "int32"
    return (*starts, builder.constant(0, dtype))


@rule("dynamic_slice")
def dynamic_slice(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    x, *starts = inputs
    result = output_type(equation)
    if result == x.type:
        return x
    operands = (x, *_starts(builder, equation, starts))
    return builder.emit("dynamic_slice", operands, result.dtype, result.shape)


@rule("dynamic_update_slice")
def dynamic_update_slice(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    x, update, *starts = inputs
    if update.type == x.type:
        return update
    operands = (x, update, *_starts(builder, equation, starts))
    return builder.emit("dynamic_update_slice", operands, x.type.dtype, x.type.shape)


def _mode(mode: Any, names: dict[str, str]) -> str:
    name = str(getattr(mode, "name", mode)).upper()
    if name not in names:
        raise UnsupportedError(f"index mode {name}")
    return names[name]


def _fill_value(value: Any, dtype: str) -> np.ndarray:
    """JAX's default for reads out of bounds: NaN, the minimum of signed, the maximum of unsigned integers."""
    if value is not None:
        return np.asarray(value)
    if dtype in FLOATS:
        return np.asarray(np.nan)
    if dtype == "bool":
        return np.asarray(True)
    limits = np.iinfo(dtype)
    return np.asarray(limits.min if dtype in SIGNED else limits.max)


def _index_dtype(operand: TensorType) -> str:
    return "int32" if all(d < 2**31 for d in operand.shape) else "int64"


@rule("gather")
def gather(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    x, indices = inputs
    params, result = equation.params, output_type(equation)
    numbers, mode = params["dimension_numbers"], _mode(params["mode"], _GATHER_MODES)
    offset_dims, slice_sizes = ints(numbers.offset_dims), ints(params["slice_sizes"])
    if _is_key(equation):
        offset_dims, slice_sizes = (*offset_dims, len(result.shape) - 1), (*slice_sizes, 2)
    fill = np.asarray(0)
    if mode == "fill":
        fill = _fill_value(None if _is_key(equation) else params["fill_value"], x.type.dtype)
        # stock XLA tests bounds in this type and wraps wider indices
        indices = builder.convert(indices, _index_dtype(x.type))
    return builder.emit(
        "gather",
        (x, indices),
        result.dtype,
        result.shape,
        collapsed_slice_dims=ints(numbers.collapsed_slice_dims),
        fill_value=to_bytes(fill, x.type.dtype)[: ITEM_SIZE[x.type.dtype]],
        mode=mode,
        offset_dims=offset_dims,
        operand_batching_dims=ints(numbers.operand_batching_dims),
        slice_sizes=slice_sizes,
        start_index_map=ints(numbers.start_index_map),
        start_indices_batching_dims=ints(numbers.start_indices_batching_dims),
    )


def _replaces(jaxpr: Any) -> bool:
    """True if the update computation of a `scatter` returns the update itself."""
    if jaxpr is None:
        return True
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return not inner.eqns and inner.outvars[0] is inner.invars[1]


@rule("scatter", "scatter-add", "scatter_add", library=True)
@rule("scatter-sub", "scatter-mul", "scatter-min", "scatter-max")
@rule("scatter_sub", "scatter_mul", "scatter_min", "scatter_max")
def scatter(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    params = equation.params
    op = equation.primitive[len("scatter-") :] or "set"
    if op == "set" and not _replaces(params.get("update_jaxpr")):
        raise UnsupportedError("scatter that applies a function (ndarray.at[...].apply)")
    x, indices, updates = inputs
    if x.type.dtype == "bool" and op not in ("set", "min", "max"):
        raise UnsupportedError(f"scatter-{op} of bool operands")
    numbers = params["dimension_numbers"]
    window = ints(numbers.update_window_dims)
    if _is_key(equation):
        window = (*window, updates.type.rank - 1)
    operand, values = (x, updates) if op == "set" else (ordered(builder, x), ordered(builder, updates))
    y = builder.emit(
        "scatter",
        (operand, indices, values),
        operand.type,
        inserted_window_dims=ints(numbers.inserted_window_dims),
        mode=_mode(params["mode"], _SCATTER_MODES),
        op=op,
        operand_batching_dims=ints(numbers.operand_batching_dims),
        scatter_dims_to_operand_dims=ints(numbers.scatter_dims_to_operand_dims),
        scatter_indices_batching_dims=ints(numbers.scatter_indices_batching_dims),
        update_window_dims=window,
    )
    return builder.convert(y, x.type.dtype)
