"""NumPy representation of IR values, shared by the interpreter's families.

16-bit floats are computed in float32 and rounded once per operator. Transcendental functions, sums and
products of float32 are computed in float64 and rounded once. The oracle is then as close to the exact result
as the element type allows, whatever the order in which a target adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax_cocktail.errors import CocktailError
from jax_cocktail.utask.arrays import Array
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import FLOATS

Evaluate = Callable[[UOperator, Sequence[Array]], Array | tuple[Array, ...]]

NARROW = frozenset({"bfloat16", "float16"})


class ProgramFailure(CocktailError):
    """Raised when a program executes `fail`, such as a recursion that is too deep."""


def dtype_name(array: Array) -> str:
    return str(array.dtype)


def is_float(array: Array) -> bool:
    return dtype_name(array) in FLOATS


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


def as_index(array: Array) -> Array:
    """Integers as int64. Larger uint64 values saturate, which keeps them out of bounds."""
    if array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(np.iinfo(np.int64).max))
    return array.astype(np.int64)
