"""Rewrites slices and updates at constant positions, such as those of an unrolled loop.

dynamic_slice becomes slice; a slice within the part that a dynamic_update_slice has just written reads the
update instead; a slice of a broadcast is a smaller broadcast. (See `peephole` for the form of a rewrite.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from jax_cocktail.utask.arrays import decode
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.sizes import is_general, size_in, within
from jax_cocktail.utask.types import FLOATS, Shape, Value

Definitions = Mapping[Value, UOperator]


def numbers(value: Value, definitions: Definitions) -> tuple[int, ...] | None:
    """The integers of a constant, also through broadcasts of one number, reshapes and concatenations."""
    made = definitions.get(value)
    if made is None or value.type.dtype in FLOATS or value.type.size > 16:
        return None
    if made.kind == "constant":
        size = size_in(made.data)
        if size is not None:
            return (size,)
        array = decode(made.data, value.type)
        return tuple(int(n) for n in np.ravel(array))
    if made.kind == "reshape":
        return numbers(made.inputs[0], definitions)
    if made.kind == "broadcast":
        one = numbers(made.inputs[0], definitions)
        return one * value.type.size if one is not None and len(one) == 1 else None
    if made.kind == "concatenate" and value.type.rank == 1:
        parts = [numbers(x, definitions) for x in made.inputs]
        return None if None in parts else tuple(n for part in parts for n in cast(tuple[int, ...], part))
    return None


def clamped_starts(
    starts: tuple[Value, ...], whole: Shape, part: Shape, definitions: Definitions
) -> tuple[int, ...] | None:
    """The constant starts of a slice, clamped so that it fits."""
    found = []
    for start, n, size in zip(starts, whole, part, strict=True):
        known = (0,) if n == size else numbers(start, definitions)
        if known is None or len(known) != 1:
            return None
        if is_general(n - size) or is_general(known[0]):  # where they lie depends on the call
            if not within(known[0], n - size):
                return None
            found.append(known[0])
        else:
            found.append(min(max(known[0], 0), n - size))
    return tuple(found)


def fixed_slice(operator: UOperator, definitions: Definitions) -> UOperator | None:
    """dynamic_slice at constant starts is a slice."""
    x, *starts = operator.inputs
    begin = clamped_starts(tuple(starts), x.type.shape, operator.output.type.shape, definitions)
    if begin is None:
        return None
    attributes = (("starts", begin), ("strides", (1,) * len(begin)))
    return replace(operator, kind="slice", inputs=(x,), attributes=attributes)


def slice_of_update(operator: UOperator, definitions: Definitions) -> UOperator | None:
    """A slice within the part just written is a slice of that part.

    (A disjoint slice stays: a later read of the old array would keep the update from being in place.)
    """
    made = definitions.get(operator.inputs[0])
    if made is None or made.kind != "dynamic_update_slice" or not operator.output.type.size:
        return None
    whole, update, *starts = made.inputs
    begin = clamped_starts(tuple(starts), whole.type.shape, update.type.shape, definitions)
    if begin is None:
        return None
    first = operator.ints("starts")
    steps = operator.ints("strides")
    moved = tuple(a - b for a, b in zip(first, begin, strict=True))
    sizes = operator.output.type.shape
    for start, step, size, limit in zip(moved, steps, sizes, update.type.shape, strict=True):
        if not (within(start, limit - 1) and within(start + (size - 1) * step, limit - 1)):
            return None
    return replace(operator, inputs=(update,), attributes=(("starts", moved), ("strides", steps)))


def slice_of_broadcast(operator: UOperator, definitions: Definitions) -> UOperator | None:
    """A slice along the added axes of a broadcast is a smaller broadcast of the same operand."""
    made = definitions.get(operator.inputs[0])
    if made is None or made.kind != "broadcast":
        return None
    (x,), dimensions = made.inputs, made.ints("dimensions")
    before, after = made.output.type.shape, operator.output.type.shape
    if any(x.type.shape[d] != 1 and before[axis] != after[axis] for d, axis in enumerate(dimensions)):
        return None
    return replace(made, outputs=operator.outputs, source=operator.source)


def row_written(operator: UOperator, definitions: Definitions) -> tuple[int, Value] | None:
    """The index and the new value of the row of the leading axis that an operator replaces, if just one.

    The operator is a dynamic_update_slice at constant starts, or a scatter of one window, as from
    `x.at[3].set(row)`; the new row may lack unit axes.
    """
    if operator.kind == "dynamic_update_slice":
        x, update, *starts = operator.inputs
        shape: Shape = update.type.shape
        begin = clamped_starts(tuple(starts), x.type.shape, shape, definitions)
    elif operator.kind == "scatter":
        x, indices, update = operator.inputs
        shape, begin = _window(operator, numbers(indices, definitions))
    else:
        return None
    if begin is None or x.type.rank < 2 or shape != (1, *x.type.shape[1:]):
        return None
    return (begin[0], update) if within(begin[0], x.type.shape[0] - 1) else None


def _window(operator: UOperator, at: tuple[int, ...] | None) -> tuple[Shape, tuple[int, ...] | None]:
    """Shape, in the operand's rank, and position of the only window that a scatter writes."""
    x, _, updates = operator.inputs
    window = operator.ints("update_window_dims")
    axes = operator.ints("scatter_dims_to_operand_dims")
    inserted = operator.ints("inserted_window_dims")
    plain = operator["op"] == "set" and not operator["operand_batching_dims"]
    if not plain or at is None or len(at) != len(axes) or window != tuple(range(updates.type.rank)):
        return (), None
    sizes = iter(updates.type.shape)
    shape = tuple(1 if d in inserted else next(sizes) for d in range(x.type.rank))
    place = dict(zip(axes, at, strict=True))
    return shape, tuple(place.get(d, 0) for d in range(x.type.rank))
