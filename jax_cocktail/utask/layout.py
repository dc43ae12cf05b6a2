"""Layouts of values in memory: strided views, composed from movement operators.

Broadcast, transpose, slice, reverse and most reshapes of a value in memory move no bytes: they are other
strides over the same buffer. A `dynamic_slice` is a view behind a pointer that is computed at run time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, prod

from jax_cocktail.utask.ir import UOperator, once
from jax_cocktail.utask.maps import axis_groups, positions
from jax_cocktail.utask.operators import ELEMENTWISE, MAPPED, RESHAPES
from jax_cocktail.utask.types import Shape, Value


@dataclass(frozen=True, slots=True)
class Layout:
    """Element (i0, i1, ...) lies at ``base + offset + sum(i_d * strides[d])``, in elements.

    `root` is the value that owns the memory; `base` is `root`, or the dynamic_slice value whose run-time
    pointer the offset counts from.
    """

    root: Value
    base: Value
    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def is_dense(self) -> bool:
        """True if the elements lie in row-major order without gaps."""
        step = 1
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n != 1 and stride != step:
                return False
            step *= max(int(n), 1)  # only compared: what it follows from does not matter
        return True

    @property
    def is_whole(self) -> bool:
        """True if the view is the whole buffer of its root, in order."""
        if self.offset or prod(map(int, self.shape)) != prod(map(int, self.root.type.shape)):
            return False
        return self.is_dense and self.base == self.root


def neighbours(axes: Iterable[tuple[int, int]]) -> int:
    """The number of elements that lie side by side in memory, by the sizes and strides of the axes."""
    found = 1
    for stride, n in sorted((stride, n) for n, stride in axes if n != 1 and stride):
        if stride != found:
            break
        found *= n
    return found


def row_major(shape: Shape) -> tuple[int, ...]:
    """Strides of a dense row-major array, in elements."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * max(shape[d + 1], 1)
    return tuple(strides)


def dense(value: Value) -> Layout:
    """The layout of a value that owns its memory."""
    return Layout(value, value, value.type.shape, row_major(value.type.shape))


def core(shape: Shape) -> Shape:
    """The shape without its unit axes, which decides if two values share a lane loop."""
    return tuple(n for n in shape if n != 1)


def reduced_axes(reduction: UOperator) -> tuple[int, ...]:
    """The axes of its operand that a reduction combines, counted without unit axes."""
    shape, axes = reduction.inputs[0].type.shape, reduction.ints("axes")
    kept = [d for d, n in enumerate(shape) if n != 1]
    return tuple(position for position, d in enumerate(kept) if d in axes)


def keeps_elements(operator: UOperator) -> bool:
    """True if element i of the result depends on element i of each operand alone, unit axes aside."""
    return operator.kind in ELEMENTWISE or is_unit_change(operator)


@once
def is_unit_change(operator: UOperator) -> bool:
    """True for a reshape, broadcast or transpose that only inserts, drops or moves unit axes."""
    if operator.kind not in RESHAPES:
        return False
    source, target = operator.inputs[0].type.shape, operator.output.type.shape
    if core(source) != core(target):
        return False
    if operator.kind == "transpose":
        permutation = operator.ints("permutation")
        kept = [d for d in permutation if source[d] != 1]
        return kept == sorted(kept)
    if operator.kind == "broadcast":
        dimensions = operator.ints("dimensions")
        kept = [dimensions[d] for d in range(len(source)) if source[d] != 1]
        return kept == sorted(kept)
    return True


def divided_axes(source: Shape, target: Shape) -> tuple[int, ...] | None:
    """The number of axes of `target` that each axis of `source` becomes, if a reshape only divides axes."""
    counts, rest = [], list(target)
    for n in source:
        size, count = 1, 0
        while rest and (size < n or (count == 0 and rest[0] == 1)):
            size, count = size * rest.pop(0), count + 1
        if size != n or count == 0:
            return None
        counts.append(count)
    return None if rest else tuple(counts)


def reshape_strides(shape: Shape, strides: tuple[int, ...], new: Shape) -> tuple[int, ...] | None:
    """Strides over the same memory for the shape `new`, or None if that takes a copy."""
    if 0 in shape:
        return row_major(new)
    result = [0] * len(new)
    for ins, outs in axis_groups(shape, new):
        if any(strides[a] != shape[b] * strides[b] for a, b in pairwise(ins)):
            return None
        step = strides[ins[-1]]
        for d in reversed(outs):
            result[d], step = step, step * new[d]
    return tuple(result)


def view(operator: UOperator, operand: Layout) -> Layout | None:
    """The layout of a movement operator's result over its operand's, or None if it takes a copy."""
    kind, shape = operator.kind, operator.output.type.shape
    if kind == "dynamic_slice":
        return Layout(operand.root, operator.output, shape, operand.strides, 0)
    if kind == "reshape":
        seen = reshape_strides(operand.shape, operand.strides, shape)
        return None if seen is None else Layout(operand.root, operand.base, shape, seen, operand.offset)
    if kind not in MAPPED:
        return None
    strides, offset = [0] * len(shape), operand.offset
    for (axis, step, start), stride in zip(positions(operator), operand.strides, strict=True):
        offset += start * stride
        if axis is not None:
            strides[axis] = step * stride
    return Layout(operand.root, operand.base, shape, tuple(strides), offset)


def divisors(extent: int) -> list[int]:
    """The numbers of equal parts into which an axis falls, ascending, from 1 on."""
    whole = int(extent)  # a remainder needs no launch parameters
    low = [n for n in range(1, isqrt(whole) + 1) if whole % n == 0]
    return sorted({*low, *(extent // n for n in low)})
