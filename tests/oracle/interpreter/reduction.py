"""Reductions, cumulative operators, sorting in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax_cocktail.utask.arrays import Array, identity_element, numpy_dtype
from jax_cocktail.utask.ir import UOperator
from tests.oracle.interpreter.common import Evaluate, doubled, is_float, rounded, widened

UFUNC: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "logsumexp": np.logaddexp,
}


_SIGN = {"max": np.logical_and, "min": np.logical_or}  # of a zero, from the signs of the operands


def _signed(op: str, result: Array, sign: Callable[[np.ufunc], Array]) -> Array:
    """A maximum or minimum with the right zero: +0 is above -0. `sign` combines the sign bits."""
    if op not in _SIGN or not is_float(result):
        return result
    zero = np.copysign(result.dtype.type(0), np.where(sign(_SIGN[op]), -1, 1))
    return np.where(result == 0, zero, result)


def reduce(operator: UOperator, operands: Sequence[Array]) -> Array:
    (x,) = operands
    op, axes = operator.text("op"), operator.ints("axes")
    wide = doubled(x)
    initial = identity_element(op, wide.dtype)
    result = UFUNC[op].reduce(wide, axis=axes, dtype=wide.dtype, initial=initial)
    result = _signed(op, result, lambda ufunc: ufunc.reduce(np.signbit(wide), axis=axes))
    return rounded(np.asarray(result), x.dtype)


def arg_reduce(operator: UOperator, operands: Sequence[Array]) -> Array:
    x = widened(operands[0])
    find = np.argmax if operator.text("op") == "max" else np.argmin
    return np.asarray(find(x, axis=operator.number("axis"))).astype(numpy_dtype(operator.output.type.dtype))


def cumulative(operator: UOperator, operands: Sequence[Array]) -> Array:
    (x,) = operands
    axis, backwards = operator.number("axis"), bool(operator["reverse"])
    wide = doubled(x)
    wide = np.flip(wide, axis) if backwards else wide
    op = operator.text("op")
    result = UFUNC[op].accumulate(wide, axis=axis, dtype=wide.dtype)
    result = _signed(op, result, lambda ufunc: ufunc.accumulate(np.signbit(wide), axis=axis))
    return rounded(np.flip(result, axis) if backwards else result, x.dtype)


def _sort_keys(x: Array) -> list[Array]:
    """Sort keys as in XLA's comparator, most significant first: NaNs last and equal, -0 equals 0."""
    if not is_float(x):
        return [x]
    nan = np.isnan(widened(x))
    zero = np.float64(0)
    return [nan, np.where(nan, zero, doubled(x) + zero)]


def sort(operator: UOperator, operands: Sequence[Array]) -> tuple[Array, ...]:
    axis = operator.number("dimension")
    keys = [key for x in operands[: operator.number("num_keys")] for key in _sort_keys(x)]
    order = np.lexsort(tuple(reversed(keys)), axis=axis)
    return tuple(np.take_along_axis(x, order, axis) for x in operands)


def _total_order(x: Array) -> Array:
    """Maps floats to integers in IEEE 754 total order (-0 below 0, NaN beyond infinity)."""
    if not is_float(x):
        return x
    bits = np.asarray(x, order="C").view(f"i{x.dtype.itemsize}")
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def top_k(operator: UOperator, operands: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = operands
    axis, count = operator.number("axis"), operator.number("k")
    key: Any = np.invert(_total_order(x))  # reverses the order of signed and unsigned integers alike
    order = np.argsort(key, axis=axis, kind="stable")
    order = np.take(order, np.arange(count), axis=axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int32)


REDUCTION: dict[str, Evaluate] = {
    "reduce": reduce,
    "arg_reduce": arg_reduce,
    "cumulative": cumulative,
    "sort": sort,
    "top_k": top_k,
}
