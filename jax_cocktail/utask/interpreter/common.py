"""NumPy representation of IR values, shared by the interpreter's families.

16-bit floats are computed in float32 and rounded once per operator. Transcendental functions, sums and
products of float32 are computed in float64 and rounded once. The oracle is then as close to the exact result
as the element type allows, whatever the order in which a target adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import numpy as np

from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import FLOATS, ITEM_SIZE, TensorType

Array = np.ndarray[Any, np.dtype[Any]]
Evaluate = Callable[[UOperator, Sequence[Array]], Array | tuple[Array, ...]]

NARROW = frozenset({"bfloat16", "float16"})


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of an IR dtype name."""
    if name == "bfloat16":
        import ml_dtypes  # only programs with bfloat16 need it

        return cast(np.dtype[Any], np.dtype(ml_dtypes.bfloat16))
    return np.dtype(name)


def dtype_name(array: Array) -> str:
    return str(array.dtype)


def is_float(array: Array) -> bool:
    return dtype_name(array) in FLOATS


def decode(data: bytes, type_: TensorType) -> Array:
    """The array whose row-major little-endian bytes are `data`."""
    dtype = numpy_dtype(type_.dtype)
    flat = np.frombuffer(data, dtype=f"<u{ITEM_SIZE[type_.dtype]}").astype(f"u{ITEM_SIZE[type_.dtype]}")
    return flat.view(dtype).reshape(type_.shape)


def widened(array: Array) -> Array:
    """16-bit floats as float32, anything else unchanged."""
    return array.astype(np.float32) if dtype_name(array) in NARROW else array


def doubled(array: Array) -> Array:
    """Any float as float64, anything else unchanged."""
    return array.astype(np.float64) if is_float(array) else array


def rounded(result: Array, dtype: np.dtype[Any]) -> Array:
    """Rounds `result` to `dtype`. float64 is rounded to 16-bit floats through float32, as in XLA."""
    result = np.asarray(result)
    if result.dtype == dtype:
        return result
    if str(dtype) in NARROW and result.dtype == np.float64:
        result = result.astype(np.float32)
    return result.astype(dtype)


def identity_element(op: str, dtype: np.dtype[Any]) -> Any:
    """The identity element of `op`: combining it with x gives x."""
    if op in ("sum", "or", "xor"):
        return dtype.type(0)
    if op == "prod":
        return dtype.type(1)
    if dtype == np.bool_:
        return np.bool_(op in ("and", "min"))
    if op == "and":
        return np.invert(dtype.type(0))
    if dtype.kind in "iu":
        return dtype.type(np.iinfo(dtype).min if op == "max" else np.iinfo(dtype).max)
    return dtype.type(-np.inf if op == "max" else np.inf)


def as_index(array: Array) -> Array:
    """Integers as int64. Larger uint64 values saturate, which keeps them out of bounds."""
    if array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(np.iinfo(np.int64).max))
    return array.astype(np.int64)
