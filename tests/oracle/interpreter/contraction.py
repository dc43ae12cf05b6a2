"""Contractions and windowed reductions in NumPy: dot, convolution, pooling and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from jax_cocktail.utask.arrays import Array, identity_element, numpy_dtype
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import Shape
from tests.oracle.interpreter.common import Evaluate, doubled, rounded, widened
from tests.oracle.interpreter.elementwise import maximum, minimum
from tests.oracle.interpreter.reduction import UFUNC


def _product_operands(operator: UOperator, operands: Sequence[Array]) -> list[Array]:
    """The operands in the accumulation type."""
    if operator.output.type.dtype == "bool":
        return [x.astype(np.int64) for x in operands]
    dtype = numpy_dtype(operator.output.type.dtype)
    if dtype.kind in "iu":
        return [x.astype(dtype) for x in operands]
    return [x.astype(np.float64) for x in operands]


def _finish(operator: UOperator, total: Array) -> Array:
    if operator.output.type.dtype == "bool":
        return np.asarray(total != 0)
    return rounded(total, numpy_dtype(operator.output.type.dtype))


def _as_matrix(x: Array, batch: Shape, contract: Shape, contract_last: bool) -> tuple[Array, Shape]:
    """x as (batch, free, contracted) or (batch, contracted, free), and the shape of its free axes."""
    free = [d for d in range(x.ndim) if d not in batch and d not in contract]
    order = [*batch, *free, *contract] if contract_last else [*batch, *contract, *free]
    free_shape = tuple(x.shape[d] for d in free)
    sizes = [prod(x.shape[d] for d in batch), prod(free_shape), prod(x.shape[d] for d in contract)]
    if not contract_last:
        sizes[1], sizes[2] = sizes[2], sizes[1]
    return x.transpose(order).reshape(sizes), free_shape


def dot(operator: UOperator, operands: Sequence[Array]) -> Array:
    wide = _product_operands(operator, operands)
    left = operator.ints("lhs_batch"), operator.ints("lhs_contract")
    right = operator.ints("rhs_batch"), operator.ints("rhs_contract")
    total = np.zeros((), wide[0].dtype)
    for x, y in zip(wide[::2], wide[1::2], strict=True):
        total = total + np.matmul(_as_matrix(x, *left, True)[0], _as_matrix(y, *right, False)[0])
    return _finish(operator, total.reshape(operator.output.type.shape))


def _spread_out(
    x: Array, axes: Shape, dilation: Shape, padding: Sequence[tuple[int, int]], fill: Any
) -> Array:
    """Dilates the given axes, then pads them (or crops, if negative)."""
    for axis, step, (low, high) in zip(axes, dilation, padding, strict=True):
        size = x.shape[axis]
        dilated = max((size - 1) * step + 1, 0) if size else 0
        shape = list(x.shape)
        shape[axis] = low + dilated + high
        places = low + np.arange(size) * step
        kept = np.flatnonzero((places >= 0) & (places < shape[axis]))
        result = np.full(shape, fill, x.dtype)
        target = (slice(None),) * axis + (places[kept],)
        result[target] = np.take(x, kept, axis=axis)
        x = result
    return x


def _strided(x: Array, axes: Shape, starts: Shape, steps: Shape, counts: Shape) -> Array:
    place: list[slice] = [slice(None)] * x.ndim
    for axis, start, step, count in zip(axes, starts, steps, counts, strict=True):
        place[axis] = slice(start, start + (count - 1) * step + 1 if count else start, step)
    return x[tuple(place)]


def conv(operator: UOperator, operands: Sequence[Array]) -> Array:
    """Sums one product per kernel position; operands are (batch, feature, spatial...)."""
    x, w = _product_operands(operator, operands)
    x, w = x.transpose(operator.ints("lhs_spec")), w.transpose(operator.ints("rhs_spec"))
    out_spec = operator.ints("out_spec")
    out_shape = tuple(operator.output.type.shape[d] for d in out_spec)
    groups, batch_groups = operator.number("feature_group_count"), operator.number("batch_group_count")
    if batch_groups > 1:
        # contiguous batches of a group become feature groups
        parts = x.reshape(batch_groups, x.shape[0] // batch_groups, *x.shape[1:])
        x = np.moveaxis(parts, 0, 1).reshape(x.shape[0] // batch_groups, -1, *x.shape[2:])
        groups = batch_groups
    axes = tuple(range(2, x.ndim))
    x = _spread_out(x, axes, operator.ints("lhs_dilation"), operator.pairs("padding"), 0)
    spatial = out_shape[2:]
    x = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    w = w.reshape(groups, -1, *w.shape[1:])
    total = np.zeros((x.shape[0], groups, w.shape[1], *spatial), x.dtype)
    moved = tuple(axis + 1 for axis in axes)
    dilation, strides = operator.ints("rhs_dilation"), operator.ints("window_strides")
    for place in np.ndindex(*w.shape[3:]):
        starts = tuple(p * d for p, d in zip(place, dilation, strict=True))
        window = _strided(x, moved, starts, strides, spatial)
        total += np.einsum("ngc...,goc->ngo...", window, w[(..., *place)])
    result = total.reshape(out_shape)
    return _finish(operator, result.transpose(np.argsort(out_spec)))


def reduce_window(operator: UOperator, operands: Sequence[Array]) -> Array:
    (x,) = operands
    op = operator.text("op")
    wide = doubled(x)
    start = identity_element(op, wide.dtype)
    axes = tuple(range(x.ndim))
    spread = _spread_out(wide, axes, operator.ints("base_dilation"), operator.pairs("padding"), start)
    shape = operator.output.type.shape
    combine = {"max": maximum, "min": minimum}.get(op, UFUNC[op])
    total = np.full(shape, start, wide.dtype)
    for place in np.ndindex(*operator.ints("window")):
        starts = tuple(p * d for p, d in zip(place, operator.ints("window_dilation"), strict=True))
        total = combine(total, _strided(spread, axes, starts, operator.ints("strides"), shape))
    return rounded(np.asarray(total), x.dtype)


def select_and_scatter_add(operator: UOperator, operands: Sequence[Array]) -> Array:
    """Adds each source element to the operand position that its window selects. Padding is never selected.
    The first position in row-major order wins ties."""
    source, x = operands
    wide = widened(x)
    axes, ones = tuple(range(x.ndim)), (1,) * x.ndim
    padding, strides = operator.pairs("padding"), operator.ints("strides")
    spread = _spread_out(wide, axes, ones, padding, 0)
    positions = _spread_out(np.arange(x.size).reshape(x.shape), axes, ones, padding, -1)
    keeps = np.greater_equal if operator.text("select") == "ge" else np.less_equal
    best = np.zeros(source.shape, wide.dtype)
    chosen = np.full(source.shape, -1, np.int64)
    for place in np.ndindex(*operator.ints("window")):
        value = _strided(spread, axes, place, strides, source.shape)
        position = _strided(positions, axes, place, strides, source.shape)
        better = (position >= 0) & ((chosen < 0) | ~keeps(best, value))
        best, chosen = np.where(better, value, best), np.where(better, position, chosen)
    result = np.zeros(x.size, source.dtype)
    found = chosen.reshape(-1) >= 0
    np.add.at(result, chosen.reshape(-1)[found], source.reshape(-1)[found])
    return result.reshape(x.shape)


CONTRACTION: dict[str, Evaluate] = {
    "dot": dot,
    "conv": conv,
    "reduce_window": reduce_window,
    "select_and_scatter_add": select_and_scatter_add,
}
