"""NumPy arrays of IR types: their dtypes, the contents of constants, the identities of reductions."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import numpy as np

from jax_cocktail.utask.types import ITEM_SIZE, TensorType

Array = np.ndarray[Any, np.dtype[Any]]


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of an IR dtype name."""
    if name == "bfloat16":
        import ml_dtypes  # only programs with bfloat16 need it

        return cast(np.dtype[Any], np.dtype(ml_dtypes.bfloat16))
    return np.dtype(name)


def decode(data: bytes, type_: TensorType) -> Array:
    """The array whose row-major little-endian bytes are `data`."""
    dtype = numpy_dtype(type_.dtype)
    flat = np.frombuffer(data, dtype=f"<u{ITEM_SIZE[type_.dtype]}").astype(f"u{ITEM_SIZE[type_.dtype]}")
    return flat.view(dtype).reshape(type_.shape)


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
