"""Arrays whose elements are written before they are read: stacks, tapes, tables.

The primitive `uninitialised` makes them. `lax.empty` fills its result with zeros on a CPU, which is a pass
over megabytes for a stack of which a call uses a few rows. Stock XLA gets zeros from `uninitialised` too; our
compiler allocates memory only. Rows that were never written have arbitrary contents, so under
`jax_debug_nans` the arrays are zeros as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex
from jax import lax
from jax.interpreters import mlir

from jax_cocktail.primitives.equation import Equation
from jax_cocktail.primitives.rule import physical_type, rule
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.types import Value

uninitialised_p = jex.Primitive("uninitialised")
uninitialised_p.def_abstract_eval(lambda *, shape, dtype: jax.core.ShapedArray(shape, dtype))
uninitialised_p.def_impl(lambda *, shape, dtype: lax.empty(shape, dtype))
mlir.register_lowering(
    uninitialised_p, mlir.lower_fun(lambda *, shape, dtype: lax.empty(shape, dtype), multiple_results=False)
)


def uninitialised(shape: Sequence[int], dtype: Any) -> Any:
    """An array with arbitrary contents."""
    if jax.config.jax_debug_nans:
        return lax.empty(shape, dtype)
    return uninitialised_p.bind(
        shape=tuple(shape), dtype=jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True)
    )


def row(array: Any, at: Any) -> Any:
    """A row of an array; `at` is never negative."""
    return lax.squeeze(lax.dynamic_slice_in_dim(array, at, 1, allow_negative_indices=False), (0,))


def put(array: Any, at: Any, value: Any) -> Any:
    """The array with one row replaced."""
    return put_rows(array, at, lax.expand_dims(value, (0,)))


def put_rows(array: Any, at: Any, values: Any) -> Any:
    """The array with rows replaced, starting at `at`."""
    return lax.dynamic_update_slice_in_dim(array, values, at, 0, allow_negative_indices=False)


def replaced(values: Sequence[Any], at: int, value: Any) -> list[Any]:
    """The list with one element replaced."""
    return [*values[:at], value, *values[at + 1 :]]


@rule("uninitialised")
def _uninitialised(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    result = physical_type(equation.outputs[0])
    return builder.emit("empty", (), result.dtype, result.shape)
