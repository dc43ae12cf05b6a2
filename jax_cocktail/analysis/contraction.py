"""A product as the templates take it: one axis each of batch, rows, columns and depth, inside of loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.layout import row_major
from jax_cocktail.utask.tensor_order import COLUMNS, PACKED, depth_shape, depth_strides, line_length

Strides = tuple[int, ...]


PANELS = 1 << 61  # in place of a stride: columns lie in panels (kCkPanels in cpu_src/cocktail_panels.h)


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop of the contraction: its size and its stride in lhs, rhs and result (0 where it is absent)."""

    size: int
    strides: tuple[int, int, int]


NONE = Axis(1, (0, 0, 0))


@dataclass(frozen=True, slots=True)
class Contraction:
    """The axes of a template's call, and those of the loops around it, the outermost first."""

    batch: Axis
    rows: Axis
    columns: Axis
    depth: Axis
    outer: tuple[Axis, ...]

    @property
    def turned(self) -> Contraction:
        """The contraction of the transposes: the operands change places, and so do rows and columns."""
        batch, rows, columns, depth = (
            Axis(axis.size, (axis.strides[1], axis.strides[0], axis.strides[2]))
            for axis in (self.batch, self.rows, self.columns, self.depth)
        )
        return Contraction(batch, columns, rows, depth, self.outer)

    def with_panels(self, width: int) -> Contraction:
        """The contraction with all columns on one axis, if they lie in panels of so many, each a matrix by
        itself, and side by side in the result."""
        n, k = self.columns, self.depth
        if (n.size, n.strides[1], k.strides[1]) != (width, 1, width):
            return self
        panels = next((a for a in self.outer if a.strides == (0, width * k.size, width * n.strides[2])), None)
        if panels is None:
            return self
        columns = Axis(panels.size * width, (0, PANELS, n.strides[2]))
        return replace(self, columns=columns, outer=tuple(a for a in self.outer if a is not panels))

    @property
    def read(self) -> tuple[int, int, int, int, int, int, int]:
        """m, n, k and the strides of a (m, k) and of b (k, n), as the templates take them."""
        m, n, k = self.rows, self.columns, self.depth
        return m.size, n.size, k.size, m.strides[0], k.strides[0], k.strides[1], n.strides[1]

    @property
    def written(self) -> tuple[int, int]:
        """The strides of the result."""
        return self.rows.strides[2], self.columns.strides[2]


def contraction(operator: UOperator, strides: tuple[Strides, Strides, Strides]) -> Contraction:
    """The axes of a `dot` whose operands and result have these strides, in elements."""
    batch, rows, columns, contracted = _classify(operator, strides)
    inner_batch, outer = _split(batch)
    m, outer_rows = _split(rows)
    depths = _collapse(contracted) or [NONE]
    if len(depths) > 1:  # only `schedule.products` divides the axis
        n, depth, outer_columns = _ordered(columns, contracted, operator.inputs[1].type.dtype)
    else:
        depth, (n, outer_columns) = depths[0], _split(columns)
    return Contraction(inner_batch, m, n, depth, (*outer, *outer_rows, *outer_columns))


def _ordered(
    columns: Sequence[Axis], contracted: Sequence[Axis], dtype: str
) -> tuple[Axis, Axis, list[Axis]]:
    """The axes of columns and depth, and those of loops around the call, if the right factor lies in the
    order of tensor cores: as many columns at once as lie in the result side by side."""
    size = prod(axis.size for axis in contracted)
    step, across, deep = contracted[-1].strides[0], columns[-1].strides[2], depth_shape(size, dtype)
    places = zip(deep, row_major(deep), depth_strides(dtype), strict=True)
    lines = [Axis(n, (step * left, right, 0)) for n, left, right in places]
    assert _collapse(contracted) == _collapse(lines), "the depth of an ordered factor"
    line = Axis(COLUMNS, (0, line_length(dtype), across))
    for first in range(len(columns)):
        blocks = prod(axis.size for axis in columns[first:]) // COLUMNS
        side = Axis(blocks, (0, COLUMNS * size, COLUMNS * across))
        if _collapse(columns[first:]) == _collapse([side, line]):
            outer = [axis for axis in columns[:first] if axis.size > 1]
            return Axis(blocks * COLUMNS, (0, 0, across)), Axis(size, (step, PACKED, 0)), outer
    raise AssertionError("the columns of an ordered factor")


def _collapse(axes: Sequence[Axis]) -> list[Axis]:
    """Merges adjacent axes that are contiguous in every array; drops unit axes."""
    merged: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if merged and all(o == axis.size * i for o, i in zip(merged[-1].strides, axis.strides, strict=True)):
            merged[-1] = Axis(merged[-1].size * axis.size, axis.strides)
        else:
            merged.append(axis)
    return merged


def _split(axes: Sequence[Axis]) -> tuple[Axis, list[Axis]]:
    """The innermost axis, for the template, and the others, for loops around it."""
    merged = _collapse(axes)
    return (merged[-1], merged[:-1]) if merged else (NONE, [])


def _classify(
    operator: UOperator, strides: tuple[Strides, Strides, Strides]
) -> tuple[list[Axis], list[Axis], list[Axis], list[Axis]]:
    a, b, o = strides
    left, right = operator.inputs[0].type.shape, operator.inputs[1].type.shape
    lb, lc = operator.ints("lhs_batch"), operator.ints("lhs_contract")
    rb, rc = operator.ints("rhs_batch"), operator.ints("rhs_contract")
    out = iter(o)
    batch = [Axis(left[i], (a[i], b[j], next(out))) for i, j in zip(lb, rb, strict=True)]
    rows = [Axis(left[d], (a[d], 0, next(out))) for d in range(len(left)) if d not in lb + lc]
    columns = [Axis(right[d], (0, b[d], next(out))) for d in range(len(right)) if d not in rb + rc]
    contracted = [Axis(left[i], (a[i], b[j], 0)) for i, j in zip(lc, rc, strict=True)]
    return batch, rows, columns, contracted
