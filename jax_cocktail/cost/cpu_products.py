"""The loads and stores of matrix products and convolutions on a CPU, by operand.

The choices are those of `cpu_src/cocktail_dot.h` and `cocktail_conv.h`: a kernel holds a block of sums in
registers, so it loads the left operand once for each group of columns that it makes at once, and the right
operand once for each group of rows. Longer sums wait in the result in between. Panels and tiles on the stack
do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd, prod

from jax_cocktail.analysis.contraction import PANELS, Contraction
from jax_cocktail.cost.vector import Vector
from jax_cocktail.device.host import SERVER
from jax_cocktail.device.tuning import FACTORS
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import FLOATS, ITEM_SIZE

VECTOR_BYTES = ITEM_SIZE["float32"] * SERVER.vector_lanes  # of the widest vectors of a core
_TILE_ROWS, _INNER_ROWS, _INNER_BLOCK, _FEW_PRODUCTS = 192, 16, 4096, 256
_LINES, _LINE_BYTES, _LEAST_LINE, _LINE_ROWS, _FAR_ROWS = 4, 8 << 10, 2 << 10, 4, 12  # cocktail_lines.h
_FAR_BYTES, _FAR_MATRIX = 8 << 10, 4 << 20


@dataclass(frozen=True, slots=True)
class Loads(Vector):
    """Elements: loaded of the left and the right operand and of the result, and stored to the result."""

    left: float
    right: float
    result: float
    stored: float

    def turned(self) -> Loads:
        return replace(self, left=self.right, right=self.left)


@dataclass(frozen=True, slots=True)
class Form:
    """One product: sizes, strides in elements, bytes of a lane (0: no vectors for these types) and of a
    vector. `alike`: operands have the type of the lanes."""

    m: int
    n: int
    k: int
    a_m: int
    a_k: int
    b_k: int
    b_n: int
    o_m: int
    o_n: int
    lane: int
    vector: int
    alike: bool = True

    def normal(self) -> Form:
        """A stride over one element does not matter."""
        f = replace(self, a_m=1, o_m=1) if self.m == 1 else self
        f = replace(f, b_n=1, o_n=1) if f.n == 1 else f
        return replace(f, a_k=1, b_k=1) if f.k <= 1 else f

    def turned(self) -> Form:
        """The operands change places."""
        strides = (self.b_n, self.b_k, self.a_k, self.a_m, self.o_n, self.o_m)
        return Form(self.n, self.m, self.k, *strides, self.lane, self.vector, self.alike)

    @property
    def lanes(self) -> int:
        return self.vector // self.lane

    @property
    def most_vectors(self) -> int:
        """Vectors of columns beside the tallest block of rows (kCkColumnVectors)."""
        return 4 if self.vector == 64 else 2

    @property
    def chunk(self) -> int:
        """Products that are summed in registers (kCkDepth)."""
        return 128 if self.vector == 64 else 256

    @property
    def chunks(self) -> int:
        return _above(self.k, self.chunk)

    def has_lines(self, lanes: int) -> bool:
        """True if lines of the right operand and of the result fill vectors of so many lanes."""
        return self.b_n == self.o_n == 1 and self.n >= lanes


def dot_loads(operator: UOperator, axes: Contraction, vector: int = VECTOR_BYTES) -> Loads:
    """The loads of a `dot` with such axes. `vector`: bytes of a vector register."""
    axes = core_product(axes, (value.type.dtype for value in (*operator.inputs, operator.output)))
    sizes = axes.rows.size, axes.columns.size, axes.depth.size
    strides = (*axes.read[3:], *axes.written)
    lane = _lane(operator)
    alike = all(ITEM_SIZE[value.type.dtype] == lane for value in operator.inputs[:2])
    form = Form(*sizes, *strides, lane, vector, alike)
    return product_loads(form) * (axes.batch.size * prod(axis.size for axis in axes.outer))


def reads_panels(dtypes: Iterable[str]) -> bool:
    """True if a product of these types can read panels as they are: others are converted on the way."""
    return {*dtypes} in ({"float32"}, {"float64"})


def core_product(product: Contraction, dtypes: Iterable[str]) -> Contraction:
    """The product as a core makes it. `dtypes`: of the factors and the result."""
    (dtype, *others), found = dtypes, product
    if reads_panels((dtype, *others)):
        found = product.with_panels(FACTORS.panel_bytes // ITEM_SIZE[dtype])
    # groups of rows read columns while they are in the cache
    return replace(found, outer=tuple(sorted(found.outer, key=lambda axis: not axis.strides[1])))


def product_loads(form: Form) -> Loads:
    """The loads of one product; the choice of a kernel is `ck_plan`."""
    f = form.normal()
    kernel, turned = (_strided, False) if not f.lane or f.k == 0 else _choice(f)
    return kernel(f.turned()).turned() if turned else kernel(f)


def _choice(f: Form) -> tuple[Callable[[Form], Loads], bool]:
    """The kernel of a product, and True if its operands change places."""
    if f.b_n == PANELS:
        return _panels, False
    lanes, few, t = f.lanes, 12 if f.vector == 64 else 6, f.turned()
    wide, tall = f.has_lines(lanes), t.has_lines(lanes)
    if wide or tall:
        turned = not wide or (f.m > few and tall and f.n < f.m)
        used = t if turned else f
        if used.alike and _reads_lines(used):
            return _lines, turned
        return partial(_columns, lanes=lanes) if used.m <= few else _blocks, turned
    if f.a_k == f.b_k == 1 and f.k >= lanes and min(f.m, f.n) <= _INNER_ROWS:
        return _inner, f.n < f.m
    narrow = 16 // f.lane
    for each in (f, t):
        if each.has_lines(narrow) and each.m <= few:
            return partial(_columns, lanes=narrow), each is t
    if f.m * f.n * f.k <= _FEW_PRODUCTS:
        return _strided, False
    return _blocks, f.o_n != 1 and f.o_m == 1


def _strided(f: Form) -> Loads:
    """Sum by sum."""
    products = f.m * f.n * f.k
    return Loads(products, products, 0, f.m * f.n)


def _columns(f: Form, lanes: int) -> Loads:
    """All rows at once: the right operand is read once, where it is (`ck_gemv`)."""
    registers = 24 if f.vector == 64 else 12
    widest = 8 if f.m == 1 or 8 * f.m <= registers else 4 if 4 * f.m <= registers else 2
    whole, over = divmod(f.n, lanes)
    groups = _halving(whole, widest)
    read = (whole + bool(over)) * lanes  # the last group overlaps its neighbour
    groups += bool(over)
    return Loads(f.m * f.k * groups, f.k * read, f.m * read * (f.chunks - 1), f.m * read * f.chunks)


def _reads_lines(f: Form) -> bool:
    """True if whole lines of the right operand are read (`ck_reads_lines`)."""
    apart = f.b_k * f.lane
    far = apart % _FAR_BYTES == 0 or f.k * apart >= _FAR_MATRIX
    alike = apart > 0 and apart % FACTORS.alike_bytes == 0
    many = f.k >= _LINES and f.n % f.lanes == 0 and f.n * f.lane >= _LEAST_LINE
    return alike and many and f.m <= (_FAR_ROWS if far else _LINE_ROWS)


def _lines(f: Form) -> Loads:
    """Few whole lines of the right operand at a time, whose sums wait in the nearest cache (`ck_lines`)."""
    depths = [min(f.chunk, f.k - p) for p in range(0, f.k, f.chunk)]
    passes = sum(depth // _LINES + depth % _LINES for depth in depths)
    groups, sums, later = _above(f.n * f.lane, _LINE_BYTES), f.m * f.n, len(depths) - 1
    right = f.k * f.n * _above(f.m, 2)
    return Loads(f.m * f.k * groups, right, sums * (passes - 1 + later), sums * (passes + later))


def _panels(f: Form) -> Loads:
    """Blocks of rows over panels of columns that were packed before (`ck_panels`)."""
    blocks = _above(f.m, FACTORS.block_rows)
    tall, registers = _above(f.m, blocks), 24 if f.vector == 64 else 11
    widest = 8 if 8 * tall <= registers else 4 if 4 * tall <= registers else f.most_vectors
    groups = _halving(f.n // f.lanes, widest)
    dense = f.m * f.n if f.o_n == 1 else 0
    right = f.k * f.n * blocks
    return Loads(f.m * f.k * groups, right, dense * (f.chunks - 1), dense * (f.chunks - 1) + f.m * f.n)


def _blocks(f: Form) -> Loads:
    """Blocks of rows over packed panels of columns (`ck_gemm`)."""
    most = f.most_vectors  # of a panel
    width = most * f.lanes
    whole, rest = f.n // width, f.n % width
    vectors = _above(rest, f.lanes)
    last = most if vectors > 2 else vectors  # of the panel that is not full
    chunks, depth, full, part = f.chunks, f.k, whole * width, rest
    if f.b_k == 1 and f.b_n != 1 and f.k % f.chunk >= f.lanes and f.lane >= 4:  # transposed while packed
        depth, part = _above(f.k, f.lanes) * f.lanes, last * f.lanes
    right = depth * (full * _times(f, most, width) + part * _times(f, last, rest))
    dense = f.m * full if f.o_n == 1 else 0
    left = f.m * f.k * (whole + bool(rest))
    return Loads(left, right, dense * (chunks - 1), dense * (chunks - 1) + f.m * f.n)


def _times(f: Form, vectors: int, columns: int) -> int:
    """The number of reads of a panel of so many vectors where it is: for each tile of at most 192 rows, to
    pack it; for each block of rows if it is dense already."""
    most = (2 if 2 * vectors <= f.most_vectors else 1) * FACTORS.block_rows
    blocks = _above(f.m, most)
    if f.alike and f.b_n == 1 and f.b_k == columns == vectors * f.lanes:
        return blocks
    return _above(blocks, _TILE_ROWS // _above(f.m, blocks))


def _inner(f: Form) -> Loads:
    """Dot products along the contracted axis (`ck_inner`)."""
    groups = _groups(f.n // 64 * 64, (8,)) + _groups(f.n % 64, (8, 4, 1))
    depth = f.k // _INNER_BLOCK * _INNER_BLOCK + _above(f.k % _INNER_BLOCK, f.lanes) * f.lanes
    rows = _groups(f.m, (3, 2, 1) if f.vector == 64 else (1,))
    return Loads(f.m * depth * groups, f.n * depth * rows, 0, f.m * f.n)


def _groups(count: int, sizes: Sequence[int]) -> int:
    found = 0
    for size in sizes:
        found, count = found + count // size, count % size
    return found


def _halving(vectors: int, widest: int) -> int:
    """Groups of so many vectors, then of half as many, and so on."""
    return _groups(vectors, [size for size in (8, 4, 2, 1) if size <= widest])


def _above(x: int, y: int) -> int:
    return -(-x // y)


def _lane(operator: UOperator) -> int:
    """Bytes of the type that is summed in lanes (`CkLane`); 0: there is none."""
    a, b, o = operator.inputs[0].type.dtype, operator.inputs[1].type.dtype, operator.output.type.dtype
    if {a, b, o} == {"bool"}:
        return 1
    if o in FLOATS:
        return 8 if "float64" in (a, b, o) else 4
    if a in FLOATS or b in FLOATS or o == "bool":
        return 0
    return max(ITEM_SIZE[o], 2)


# ---- convolutions ------------------------------------------------------------------------------------------


def conv_loads(operator: UOperator, vector: int = VECTOR_BYTES) -> Loads:
    """The loads of a `conv` in canonical form: images (N, spatial, C), kernel (spatial, I, O)."""
    x, w, out = (v.type for v in (*operator.inputs, operator.output))
    lane, groups = _lane(operator), operator.number("feature_group_count")
    *kernel, channels, features = w.shape
    taps, positions, outs = prod(kernel), out.size // out.shape[-1], features // groups
    shares = list(_inside(operator))
    inside = prod(shares)
    if not lane or (groups != 1 and outs < vector // lane // 2):
        products = positions * taps * channels * features * inside
        return Loads(products, products, 0, out.size)
    alike = x.dtype == out.dtype and ITEM_SIZE[x.dtype] == lane
    form = Form(positions, outs, taps * channels, channels, 1, features, 1, features, 1, lane, vector, alike)
    blocks = _blocks(form) * groups
    lanes, row = vector // lane, features * ITEM_SIZE[x.dtype]
    near = row <= 512 or (out.shape[-2] <= 8 and taps * channels * row <= 1 << 20)
    if not alike or taps == 1 or outs % lanes or not near or channels < 16:
        return replace(blocks, left=blocks.left * inside)
    most = 8 if vector == 64 else 4
    lines, across = positions // out.shape[-2], _above(out.shape[-2], most)
    vectors = groups * _groups(outs // lanes, (2, 1))
    left = positions * taps * channels * vectors * inside
    right = lines * across * taps * channels * features * prod(shares[:-1])
    return Loads(left, right, 0, out.size)


def _inside(operator: UOperator) -> Iterator[float]:
    """The part, for each spatial axis, of the pairs of an output position and an element of the kernel that
    meet the image."""
    x, w, out = (v.type.shape for v in (*operator.inputs, operator.output))
    names = "window_strides", "lhs_dilation", "rhs_dilation"
    rules = zip(*(operator.ints(name) for name in names), operator.pairs("padding"), strict=True)
    sizes = zip(x[1:-1], w[:-2], out[1:-1], strict=True)
    for (n, kernel, count), (stride, gap, spread, (low, _)) in zip(sizes, rules, strict=True):
        yield pairs_inside(n, gap, count, stride, kernel, spread, low) / (count * kernel)


def pairs_inside(n: int, gap: int, windows: int, stride: int, size: int, spread: int, low: int) -> int:
    """Pairs of a window and one of its elements that meet an axis of `n` elements, `gap` places apart.

    Window `i` begins at place ``i * stride - low``, and its `size` elements are `spread` places apart.
    """
    period = gap // gcd(gap, stride)  # of the windows whose element meets an element, not a gap
    found = 0
    for element in range(size):
        shift = low - element * spread  # window i has this element at place i * stride - shift
        first, last = max(0, -(-shift // stride)), min(windows - 1, ((n - 1) * gap + shift) // stride)
        starts = range(first, min(first + period, last + 1))
        begin = next((i for i in starts if (i * stride - shift) % gap == 0), None)
        found += 0 if begin is None else (last - begin) // period + 1
    return found
