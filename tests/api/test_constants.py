"""Constants at the ends of every type, as scalars and as arrays, in a program of ours and in stock XLA's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")


def ends(dtype: str) -> list[float]:
    """The values of a type that are written in a way of their own."""
    if dtype == "bool":
        return [False, True]
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return [info.min, info.min + 1, -1 if info.min else 1, 0, info.max - 1, info.max]
    limits = jnp.finfo(dtype)
    return [*map(float, (limits.min, limits.max, limits.tiny)), -0.0, 0.1, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_constants(dtype: str) -> None:
    with jax.enable_x64(True):
        values = np.array(ends(dtype), dtype=jnp.dtype(dtype))

        def chosen(which: jax.Array, x: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
            """Every constant as a scalar and as an array, an operand of `select` and of `maximum`."""

            scalars, arrays = [], []
            for value in values:

                def body(_: jax.Array, state: jax.Array, value: np.generic = value) -> jax.Array:
                    return jnp.where(which > 0, value, jnp.maximum(state, value))

                scalars.append(lax.fori_loop(0, 2, body, x[0]))
                arrays.append(lax.fori_loop(0, 2, body, x))
            return scalars, arrays

        ours = jax_cocktail.jit(chosen, options={"force": "cocktail", "strict": True})
        for which in (0, 1):
            arguments = jnp.int32(which), jnp.zeros(3, jnp.dtype(dtype))
            found, expected = (jax.tree.leaves(run(*arguments)) for run in (ours, jax.jit(chosen)))
            for left, right in zip(found, expected, strict=True):
                assert left.dtype == right.dtype
                np.testing.assert_array_equal(_bits(left), _bits(right))


def _bits(array: jax.Array) -> np.ndarray:
    """The bytes of an array; all NaNs are one."""
    data = np.asarray(array)
    if data.dtype.kind in "fV":
        data = np.where(np.isnan(data.astype(np.float64)), np.zeros_like(data), data)
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
