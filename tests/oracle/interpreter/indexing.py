"""Gather and scatter in NumPy (the operations of the same names in StableHLO, with batching dimensions)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from jax_cocktail.utask.arrays import Array, decode
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import Shape, TensorType
from tests.oracle.interpreter.common import Evaluate, as_index

# By the attribute `op`.
_COMBINE: dict[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def _along(axis: int, shape: Shape) -> Array:
    """The position along one axis, broadcastable to `shape`."""
    view = [1] * len(shape)
    view[axis] = shape[axis]
    return np.arange(shape[axis]).reshape(view)


def _over(component: Array, axes: Sequence[int], rank: int) -> Array:
    """An array over `axes` (ascending), broadcastable to a result of `rank` axes."""
    view = [1] * rank
    for size, axis in zip(component.shape, axes, strict=True):
        view[axis] = size
    return component.reshape(view)


def gather(operator: UOperator, operands: Sequence[Array]) -> Array:
    x, indices = operands
    shape, sizes = operator.output.type.shape, operator.ints("slice_sizes")
    offsets = operator.ints("offset_dims")
    batch = [d for d in range(len(shape)) if d not in offsets]
    batching = operator.ints("operand_batching_dims")
    taken = {*operator.ints("collapsed_slice_dims"), *batching}
    (filler,) = decode(cast(bytes, operator["fill_value"]), TensorType(operator.output.type.dtype, (1,)))
    if x.size == 0:
        return np.full(shape, filler, x.dtype)
    window = iter(offsets)
    place = [np.zeros((), np.int64) if d in taken else _along(next(window), shape) for d in range(x.ndim)]
    for d, b in zip(batching, operator.ints("start_indices_batching_dims"), strict=True):
        place[d] = _along(batch[b], shape)
    inside = np.ones((), np.bool_)
    for component, d in enumerate(operator.ints("start_index_map")):
        start = _over(as_index(indices[..., component]), batch, len(shape))
        limit = x.shape[d] - sizes[d]
        inside = inside & (start >= 0) & (start <= limit)
        place[d] = place[d] + np.clip(start, 0, limit)
    value = np.broadcast_to(x[tuple(np.broadcast_arrays(*place))] if place else x, shape)
    return np.where(inside, value, filler) if operator.text("mode") == "fill" else value


def _scatter_places(operator: UOperator, shape: Shape, indices: Array, windows: Shape) -> tuple[Array, Array]:
    """Flat operand positions and validity of updates laid out as (scatter axes..., window axes...)."""
    batch = indices.ndim - 1
    total = (*indices.shape[:-1], *windows)
    batching = operator.ints("operand_batching_dims")
    missing = {*operator.ints("inserted_window_dims"), *batching}
    axes = iter(range(batch, len(total)))
    kept = {d: next(axes) for d in range(len(shape)) if d not in missing}
    place = [_along(kept[d], total) if d in kept else np.zeros((), np.int64) for d in range(len(shape))]
    for d, b in zip(batching, operator.ints("scatter_indices_batching_dims"), strict=True):
        place[d] = _along(b, total)
    valid = np.ones((), np.bool_)
    for component, d in enumerate(operator.ints("scatter_dims_to_operand_dims")):
        start = _over(as_index(indices[..., component]), range(batch), len(total))
        limit = shape[d] - (total[kept[d]] if d in kept else 1)
        if operator.text("mode") == "clip":
            start = np.clip(start, 0, max(limit, 0))
        valid = valid & (start >= 0) & (start <= limit)
        place[d] = place[d] + np.where((start >= 0) & (start <= limit), start, 0)
    flat = np.zeros((), np.int64)
    for d, n in enumerate(shape):
        flat = flat * n + place[d]
    return np.broadcast_to(flat, total), np.broadcast_to(valid, total)


def scatter(operator: UOperator, operands: Sequence[Array]) -> Array:
    """Applies updates in row-major order of the scatter axes and drops windows that are out of bounds."""
    x, indices, updates = operands
    window = operator.ints("update_window_dims")
    order = [d for d in range(updates.ndim) if d not in window] + list(window)
    updates = updates.transpose(order)
    flat, valid = _scatter_places(operator, x.shape, indices, updates.shape[indices.ndim - 1 :])
    result = x.reshape(-1).copy()
    where, values = flat[valid], updates[valid]
    if operator.text("op") == "set":
        for position, value in zip(where.tolist(), values, strict=True):
            result[position] = value
    else:
        _COMBINE[operator.text("op")].at(result, where, values)
    return result.reshape(x.shape)


INDEXING: dict[str, Evaluate] = {"gather": gather, "scatter": scatter}
