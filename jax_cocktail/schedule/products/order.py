"""The orders in which machines read the right factor (k, columns) of a product: a row for each.

Columns make blocks, which follow each other. A core reads panels of so many neighbouring columns as fill a
cache line, row by row; tensor cores read blocks as `utask.tensor_order` says. In a program, only
reshapes and transposes say so: results are the sums of the same products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from jax_cocktail.device.tuning import FACTORS
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.tensor_order import COLUMNS, depth_shape
from jax_cocktail.utask.types import ITEM_SIZE, Shape, TensorType, Value


class Row(NamedTuple):
    """A machine's order. `columns`: of a block, by the type of elements; `depth`: the axes that k becomes, of
    which the second one, if there is one, lies inside a column of a block; `joins`: a block may consist of
    columns of several groups, whose sums then lie side by side."""

    columns: Callable[[str], int]
    depth: Callable[[int, str], Shape]
    joins: bool


PANELS = Row(lambda dtype: FACTORS.panel_bytes // ITEM_SIZE[dtype], lambda k, dtype: (k,), joins=False)
TENSOR_CORES = Row(lambda dtype: COLUMNS, depth_shape, joins=True)


@dataclass(frozen=True, slots=True)
class Order:
    """The way in which the columns of a factor become blocks without a copy.

    `axes`: from the outermost one on, divided into those of the blocks and those inside a block; the columns
    may have several. `depth`: the axes that k becomes. `padding`: zeros behind the columns.
    """

    axes: tuple[int, ...]
    blocks: Shape
    inside: Shape
    depth: Shape
    padding: int = 0

    @classmethod
    def of(cls, factor: TensorType, row: Row) -> Order | None:
        """Takes whole runs of the last axis; or a column of all groups together with its neighbours; or all
        columns one after another, and zeros."""
        k, *groups, last = factor.shape
        depth, width = row.depth(k, factor.dtype), row.columns(factor.dtype)
        every, count = tuple(range(len(groups) + 1)), prod((*groups, last))
        if last % width == 0:
            return cls(every, (*groups, last // width), (width,), depth)
        whole = row.joins and len(groups) == 1 and width % groups[0] == 0
        together = width // groups[0] if whole else 0
        if together and last % together == 0:
            return cls((1, 0), (last // together,), (together, groups[0]), depth)
        blocks = -(-count // width)
        return cls(every, (blocks,), (width,), depth, blocks * width - count) if count >= width else None

    @property
    def shape(self) -> Shape:
        """The shape of a factor in the new order."""
        return (*self.blocks, self.depth[0], *self.inside, *self.depth[1:])

    @property
    def wide(self) -> int:
        """The number of columns, zeros included."""
        return prod((*self.blocks, *self.inside))

    def moved(self, factor: Value, b: Builder) -> Value:
        """The factor in the new order. Its columns may be of any shape if the order of their axes stays."""
        if self.axes != tuple(range(len(self.axes))):
            factor = b.transpose(factor, (0, *(1 + axis for axis in self.axes)))
        if not self.padding:
            return self._apart(factor, self.blocks, b)
        k, columns = prod(self.depth), self.wide - self.padding
        flat, whole = b.reshape(factor, (k, columns)), self.wide - prod(self.inside)
        if len(self.depth) > 1:  # for threads, each of which loads its own elements
            return self._apart(_filled(flat, self.wide, b), self.blocks, b)
        last = _filled(b.slice(flat, (0, whole), (k, columns - whole)), self.wide - whole, b)
        first = self._apart(b.slice(flat, (0, 0), (k, whole)), (self.blocks[0] - 1,), b)
        parts = (first, self._apart(last, (1,), b))  # a core copies whole lines of the first
        return b.emit("concatenate", parts, flat.type.dtype, self.shape, dimension=0)

    def _apart(self, factor: Value, blocks: Shape, b: Builder) -> Value:
        """The factor in the new order, given its columns in order. They become so many blocks."""
        outer, count = len(self.depth), len(blocks) + len(self.depth)
        apart = b.reshape(factor, (*self.depth, *blocks, *self.inside))
        inside = range(count, count + len(self.inside))
        return b.transpose(apart, (*range(outer, count), 0, *inside, *range(1, outer)))

    def product(self, dot: UOperator, factor: Value, b: Builder) -> Value:
        """The product with a factor in the new order: its columns are those of blocks."""
        (axis,), left = dot.ints("lhs_contract"), dot.inputs[0]
        before, after = left.type.shape[:axis], left.type.shape[axis + 1 :]
        block = len(self.blocks)
        contracted = {
            "lhs_contract": tuple(range(axis, axis + len(self.depth))),
            "rhs_contract": (block, block + 1 + len(self.inside))[: len(self.depth)],
        }
        left = b.reshape(left, (*before, *self.depth, *after))
        shape = (*before, *after, *self.blocks, *self.inside)
        attributes = dict(dot.attributes) | contracted
        return b.emit("dot", (left, factor), dot.output.type.dtype, shape, **attributes)


def _filled(factor: Value, columns: int, b: Builder) -> Value:
    """The factor with columns of zeros behind its own."""
    zero, wide = b.constant(0, factor.type.dtype), factor.type.resized(1, columns)
    return b.emit("pad", (factor, zero), wide, low=(0, 0), interior=(0, 0))
