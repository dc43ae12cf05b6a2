"""The plan of a convolution on a GPU: the way in which a block of threads makes it.

`codegen.contraction` writes it into the call of the template, and `cost.latency` prices it. The names are
those of `gpu_src/cocktail_conv_plan.h`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, product
from math import prod
from typing import Literal

from jax_cocktail.cost.dot_plan import above, is_rounded
from jax_cocktail.device.block import Block
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import FLOATS, ITEM_SIZE

_PAD = 4  # elements between lines of sums: rows fall on different banks
_FEW = 4  # output features of boxes, at most
_SUMS = 64  # bytes of sums of a thread, at most
_SEEN = 288  # bytes of a box's input that a thread has under way, at most


@dataclass(frozen=True, slots=True)
class ConvAxis:
    """An axis as loops over it see it; an axis that is not there has one position."""

    size: int = 1
    out: int = 1
    taps: int = 1
    stride: int = 1
    spread: int = 1

    def seen(self, count: int) -> int:
        """Input positions that neighbouring output positions see."""
        return (count - 1) * self.stride + (self.taps - 1) * self.spread + 1


@dataclass(frozen=True, slots=True)
class ConvCase:
    """The facts that a plan depends on: the convolution as one matrix product per group, its types, and its
    last axes. `item`, `sum`: bytes of operands and sums; `step`: depth of one tensor core instruction, 0
    where there is none; `boxes`: false for numbers that are not floats, and for inputs with holes."""

    rows: int
    columns: int
    depth: int
    features: int
    groups: int
    item: int
    sum: int
    step: int
    x: ConvAxis = ConvAxis()
    y: ConvAxis = ConvAxis()
    boxes: bool = True

    @property
    def a_chunk(self) -> int:
        """Input elements that are copied at once."""
        return self.chunk(16)

    def chunk(self, most: int) -> int:
        """Neighbouring features of at most `most` bytes."""
        chunk = most // self.item
        while chunk > 1 and self.features % chunk:
            chunk //= 2
        return chunk

    def is_small(self, threads: int) -> bool:
        """Too little to fill tiles: an output element per thread."""
        products = self.rows * self.columns * self.groups * self.depth
        slim = self.groups > 1 and self.columns < 8
        return self.depth < 8 or self.rows == 0 or slim or products < 64 * threads


@dataclass(frozen=True, slots=True)
class ConvPlan:
    """The way to make a convolution. All fields are 0 if `kind` is "simple": a thread makes an element.

    A tile of the result has `rows` x `columns` elements; `depth` elements of both operands are in shared
    memory at a time, `stages` times. `slices` parts of the block share that depth. "fma": a slice is
    row_parts x column_parts threads with height x width sums each. "mma": it is row_parts x column_parts
    warps with height x width cells of 16 x `Block.cell_columns` sums. "few": column_parts lanes make height
    x width positions, without tiles; each adds `depth` features at a time. `cost`: clocks, times 64.
    """

    kind: Literal["simple", "fma", "mma", "few"]
    rows: int = 0
    columns: int = 0
    depth: int = 0
    stages: int = 0
    slices: int = 0
    row_parts: int = 0
    column_parts: int = 0
    height: int = 0
    width: int = 0
    cost: int = -1


def conv_case(operator: UOperator) -> ConvCase:
    """A convolution on canonical layouts, as a block sees it."""
    (x, w), out = operator.inputs, operator.output
    groups, dtype, result = operator.number("feature_group_count"), x.type.dtype, out.type.dtype
    item, summed, halves = ITEM_SIZE[dtype], _summed(dtype, result), dtype in FLOATS and ITEM_SIZE[dtype] == 2
    rounded = 8 if is_rounded(operator) else 0
    return ConvCase(
        rows=int(prod(out.type.shape[:-1])),
        columns=int(out.type.shape[-1]) // groups,
        depth=int(prod(w.type.shape[:-1])),
        features=int(w.type.shape[-2]),
        groups=groups,
        item=item,
        sum=summed,
        step=0 if summed > 4 or result not in FLOATS else 16 if halves else rounded,
        x=_axis(operator, 0),
        y=_axis(operator, 1),
        boxes=dtype in FLOATS and set(operator.ints("lhs_dilation")) <= {1},
    )


def _summed(dtype: str, result: str) -> int:
    """Bytes of a sum, which is float64 if the operands are, else what the result is computed in."""
    if dtype == "float64":
        return 8
    return max(ITEM_SIZE[result], 4) if result in FLOATS else ITEM_SIZE[result]


def _axis(conv: UOperator, from_last: int) -> ConvAxis:
    """A spatial axis."""
    (x, w), out = (v.type.shape for v in conv.inputs), conv.output.type.shape
    axis = len(x) - 3 - from_last
    if axis < 0:
        return ConvAxis()
    stride, spread = conv.ints("window_strides")[axis], conv.ints("rhs_dilation")[axis]
    return ConvAxis(int(x[axis + 1]), int(out[axis + 1]), int(w[axis]), stride, spread)


@lru_cache(maxsize=1024)
def conv_plan(case: ConvCase, block: Block, room: int) -> ConvPlan:
    """The plan for a block with `room` bytes of scratch."""
    best = ConvPlan("simple")
    if case.is_small(block.threads):
        return best
    tiles = (_fit(case, form, block, room) for form in _forms(case, block.threads))
    for found in chain(tiles, _boxes(case, block, room)):
        if found.cost >= 0 and (best.kind == "simple" or found.cost < best.cost):
            best = found
    return best


def _boxes(c: ConvCase, block: Block, room: int) -> Iterator[ConvPlan]:
    """Boxes of positions for few output features. `column_parts`: lanes that share the input features."""
    weights = c.depth * c.columns * c.item if c.columns > 1 else 0
    if not c.boxes or c.groups > 1 or c.columns > _FEW or weights > room:
        return
    chunk = c.chunk(8)
    shares = [1 << bit for bit in range(block.warp.bit_length())]
    for lanes, height, width in product(shares, (1, 2, 4), (1, 2, 4)):
        seen = c.x.seen(width) * c.y.seen(height) * chunk * c.item
        fits = height * width * c.columns * c.sum <= _SUMS and seen <= _SEEN
        if fits and (lanes == 1 or lanes * chunk <= c.features):
            p = ConvPlan("few", depth=chunk, column_parts=lanes, height=height, width=width)
            yield replace(p, cost=_box_cost(c, p, block))


def _box_cost(c: ConvCase, p: ConvPlan, block: Block) -> int:
    """Clocks (times 64) of all boxes: what the threads issue, or what the first cache delivers, and what
    comes to it from the second one."""
    taps, cells, warps = c.x.taps * c.y.taps, p.height * p.width, block.warps
    seen = c.x.seen(p.width) * c.y.seen(p.height)
    outer, deep = c.rows // (c.x.out * c.y.out), c.depth // c.features // taps
    rounds = above(outer * above(c.y.out, p.height) * above(c.x.out, p.width) * p.column_parts, block.threads)
    steps = rounds * deep * above(c.features, p.column_parts * p.depth)
    weights, math = p.height * taps * c.columns, cells * taps * p.depth * c.columns
    issued = (seen * 2 + weights + math * c.sum // 4) * above(warps, 4)
    reads = (seen * max(1, p.depth * c.item // 4) + weights) * warps
    sums = rounds * (300 + 2 * cells * c.columns * warps)
    image = outer * deep * c.x.size * c.y.size * c.features * c.item // 32
    return 64 * (steps * (max(issued, reads) + 300) + sums + image)


def _forms(c: ConvCase, threads: int) -> Iterator[ConvPlan]:
    """Every way to share tiles among the threads or the warps."""
    few, some = threads <= 256, threads <= 512
    registers = 256 if few else 128 if some else 32
    for form in product((1, 2, 4, 8), (4, 8), (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16), (16, 32, 64)):
        height, width, across, slices, depth = form
        if height * width * c.sum <= registers:
            yield ConvPlan("fma", depth=depth, slices=slices, column_parts=across, height=height, width=width)
    most = 16 if few else 8 if some else 4
    for form in product((1, 2) if c.step else (), (2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8), (16, 32, 64)):
        height, width, across, slices, depth = form
        if height * width <= most:
            yield ConvPlan("mma", depth=depth, slices=slices, column_parts=across, height=height, width=width)


def _fit(c: ConvCase, p: ConvPlan, block: Block, room: int) -> ConvPlan:
    """Fills in what follows from the parts; the cost is negative if it does not fit."""
    fma = p.kind == "fma"
    high, wide = (p.height, p.width) if fma else (16 * p.height, block.cell_columns * p.width)
    most = (block.threads if fma else block.warps) // (p.column_parts * p.slices)
    if most < 1 or p.depth % (p.slices * (4 if fma else c.step)) or p.depth % c.a_chunk:
        return p
    if block.threads % (p.depth // c.a_chunk):
        return p
    needed = above(c.rows, high)
    row_parts = above(needed, above(needed, most))
    rows, columns = row_parts * high, p.column_parts * wide
    if rows > 256 or columns >= 2 * above(c.columns, wide) * wide:
        return p
    sixteen = 16 // c.item
    spare = 0 if fma else 8 if c.item == 4 else sixteen
    b_line = above(columns, sixteen) * sixteen + spare
    stage = (rows * (p.depth + sixteen) + p.depth * b_line) * c.item
    sums = p.slices * rows * (columns + _PAD) * c.sum
    for stages in (4, 3, 2):
        if rows * 16 + max(stages * stage, sums) <= room:
            sizes = (rows, columns, p.depth, stages, p.slices, row_parts, p.column_parts, p.height, p.width)
            return ConvPlan(p.kind, *sizes, cost=_cost(c, ConvPlan(p.kind, *sizes), block.warp))
    return p


def _busy(c: ConvCase, p: ConvPlan, warp: int) -> int:
    """Clocks (times 64) for one step of depth of one tile, operands being there: what the pipelines of four
    warps issue, what shared memory delivers (128 bytes per clock), and how long a warp alone takes, whose
    loads come after 48 clocks."""
    fma = p.kind == "fma"
    parts = p.row_parts * p.column_parts * p.slices
    warps = above(parts, warp) if fma else parts
    loads = p.height + p.width if fma else 4 * p.height + 2 * p.width
    math = p.height * p.width * (c.sum if fma else 7)
    reads = warps * loads * (3 * c.item // 4 if fma else 2) // 2
    clocks = max((warps + 3) // 4 * (math + loads), reads, math + 2 * loads + 48)
    return clocks * 64 // (p.slices * (4 if fma else c.step))


def _cost(c: ConvCase, p: ConvPlan, warp: int) -> int:
    """Clocks (times 64) of all tiles of a group. The second cache delivers about 32 bytes per clock; a step
    from stage to stage costs 600 clocks, beginning and end of a tile 1000."""
    copies, busy = (p.rows + p.columns) * c.item * 2, _busy(c, p, warp)
    step = (busy + copies + max(busy, copies)) // 2 * (9 if p.stages == 2 else 8) // 8
    depth = above(c.depth, p.depth) * p.depth
    sums = (p.slices + 1) * p.rows * p.columns * c.sum // 2
    tiles = above(c.rows, p.rows) * above(c.columns, p.columns)
    return tiles * (depth * step + depth // p.depth * 38400 + sums + 64000)
