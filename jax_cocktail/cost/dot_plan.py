"""The plan of a matrix product on a GPU: the way in which a block of threads makes it.

`codegen.contraction` writes it into the call of the template, and `cost.latency` prices it. The names are
those of `gpu_src/cocktail_dot_plan.h`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Literal

from jax_cocktail.analysis.contraction import Contraction
from jax_cocktail.device.block import Block
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.tensor_order import PACKED
from jax_cocktail.utask.types import FLOATS, ITEM_SIZE

Path = Literal["serial", "columns", "lanes", "fma", "mma"]

_FEW_ROWS_MMA = 4  # as `BLOCK.few_rows`, where tensor cores make the tiles
_SHORT = 8  # no deeper than this: not worth sharing k
_TILE_OUTPUTS = 4096
_STAGE_BYTES = 128  # of k in one tile
_STAGES = 4  # enough to hide the way from the second cache
_MOST_SCRATCH = 65536  # for stages beyond the first
_BLOCK = 16  # words of k that a warp reads at a time, for two instructions
_MOST_DEPTH = 512  # words of k in one tile for tensor cores


@dataclass(frozen=True, slots=True)
class DotForm:
    """One product: sizes, strides in elements, bytes of an element of the operands and of a sum. `mma`:
    tensor cores take its operands. `terms`: so many products of these sizes are added up; those of several
    have packed right matrices."""

    m: int
    n: int
    k: int
    a_m: int
    a_k: int
    b_k: int
    b_n: int
    o_m: int
    o_n: int
    a_size: int
    b_size: int
    w_size: int
    mma: bool
    terms: int = 1

    @property
    def is_packed(self) -> bool:
        """True if the right matrix is packed for tensor cores."""
        return self.b_k == PACKED

    def normal(self) -> DotForm:
        """A stride over one element does not matter."""
        found = replace(self, a_m=0, o_m=0) if self.m == 1 else self
        return replace(found, b_n=0, o_n=0) if self.n == 1 else found

    def turned(self) -> DotForm:
        """The operands change places."""
        f = self
        strides = (f.b_n, f.b_k, f.a_k, f.a_m, f.o_n, f.o_m)
        return DotForm(f.n, f.m, f.k, *strides, f.b_size, f.a_size, f.w_size, f.mma, f.terms)


@dataclass(frozen=True, slots=True)
class DotPlan:
    """The way to make a product. The fields of other paths are 0.

    Attributes:
      path: "serial": a thread makes an element. "columns": few rows, and the right matrix is contiguous
        along n: columns over lanes, k over groups of lanes. "lanes": few rows, contiguous along k: k over
        lanes. "fma": tiles in scratch, sums in registers. "mma": tiles for tensor cores.
      turned: the operands change places, so that few rows are rows of the left one.
      v, kv: elements of a load of the right and of the left operand.
      lanes: along n ("columns"), or of a group ("lanes").
      columns: of a chunk, made by one team.
      parts: warps of a team, which share k; 1: each warp, or group of lanes, is a team.
      bm, bn, bk: the tile.
      tm, tn: its part for one thread; for one warp, in cells of 16 rows and `Block.cell_columns`.
      slices: of k, made side by side.
      stages: tiles of the operands in scratch; beside a packed matrix, 1 if the plan fits.
      scratch: bytes.
    """

    path: Path
    turned: bool = False
    v: int = 0
    kv: int = 0
    lanes: int = 0
    columns: int = 0
    parts: int = 0
    bm: int = 0
    bn: int = 0
    bk: int = 0
    tm: int = 0
    tn: int = 0
    slices: int = 0
    stages: int = 0
    scratch: int = 0


def above(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def power(x: int) -> int:
    """The smallest power of two that is not below x."""
    return 1 << max(x - 1, 0).bit_length()


def vector(size: int, most: int, extent: int, step: int) -> int:
    """Elements that one load takes when a line has `extent` of them and lines lie `step` apart."""
    v = min(16 // size, 8)
    while v > 1 and (v > most or extent % v or step % v):
        v //= 2
    return v


def is_rounded(operator: UOperator) -> bool:
    """True if tensor cores may round the factors of a product or convolution of float32 numbers."""
    values = (*operator.inputs, *operator.outputs)
    return operator.may_round and all(v.type.dtype == "float32" for v in values)


def dot_form(product: Contraction, dtypes: tuple[str, str, str], rounded: bool, terms: int = 1) -> DotForm:
    """The form of a template's call. `dtypes`: of left and right operand and result; `rounded`: tensor cores
    may round float32 factors. Sums have the types of the header's `CkDotTypes`."""
    left, right, result = dtypes
    work = 8 if "float64" in (left, right) else max(ITEM_SIZE[result], 4)
    halves = left == right and left in FLOATS and ITEM_SIZE[left] == 2
    mma = work == 4 and result in FLOATS and (halves or (rounded and left == right == "float32"))
    m, n, k, a_m, a_k, b_k, b_n = map(int, product.read)
    o_m, o_n = map(int, product.written)
    sizes = ITEM_SIZE[left], ITEM_SIZE[right], work
    return DotForm(m, n, k, a_m, a_k, b_k, b_n, o_m, o_n, *sizes, mma, terms)


@lru_cache(maxsize=4096)
def dot_plan(given: DotForm, block: Block, room: int) -> DotPlan:
    """The plan for a block with `room` bytes of scratch."""
    f = given.normal()
    if f.is_packed:
        return _tensor(f, block, room)
    few = _FEW_ROWS_MMA if f.mma else BLOCK.few_rows
    slim = f.m <= few or f.n <= few
    if slim:  # of two slim sides the one that its matrix runs along is spread over lanes
        turned = f.n < f.m if f.m != f.n else f.a_k != 1 and f.b_k == 1
    else:
        turned = (f.m < 16 and f.n > f.m) if f.mma else (f.o_m == 1 and f.o_n != 1)
    f = f.turned() if turned else f
    if f.k <= _SHORT or f.m * f.n == 0:
        plan = DotPlan("serial")
    elif not slim:
        plan = _tensor(f, block, room) if f.mma else _tiles(f, block, room)
    elif f.b_k == 1 or f.n < 4 or (f.b_n != 1 and f.b_k < f.b_n):
        plan = _lanes(f, block, room)
    else:
        plan = _columns(f, block, room)
    return replace(plan, turned=turned)


def _columns(f: DotForm, block: Block, room: int) -> DotPlan:
    v = vector(f.b_size, 32 // power(f.m), f.n, f.b_k) if f.b_n == 1 else 1
    lanes = min(block.warp, power(f.n // v))
    columns = lanes * v
    # neighbouring groups read lines that are kv apart: shorter ones would meet in the banks
    wide = columns * f.b_size >= 128 and f.a_k == 1
    kv = vector(f.a_size, 4, f.k, f.a_m) if wide else 1
    warps, chunks = block.warps, above(f.n, columns)
    parts, shares = max(1, min(warps // chunks, f.k * lanes // 128)), warps * f.m * columns * f.w_size
    parts = 1 if shares > room else parts
    scratch = shares if parts > 1 else 0
    return DotPlan("columns", v=v, kv=kv, lanes=lanes, columns=columns, parts=parts, scratch=scratch)


def _lanes(f: DotForm, block: Block, room: int) -> DotPlan:
    v = vector(f.b_size, 32 // power(f.m), f.k, f.b_n) if f.b_k == 1 else 1
    if f.a_k == 1:
        v = min(v, vector(f.a_size, v, f.k, f.a_m))
    lanes = min(block.warp, power(f.k // v))
    # fewer lanes shuffle less: as long as they read whole lines, and all left factors are under way together
    while lanes * v * f.b_size > 128 and f.n * lanes > block.threads and f.k * f.m * 2 <= 32 * lanes:
        lanes //= 2
    warps, groups = block.warps, block.threads // lanes
    columns = min(8, max(1, 16 // power(f.m)), power(above(f.n, groups)))
    parts = 1
    if lanes == block.warp and columns == 1:
        parts = max(1, min(warps // f.n, f.k // (block.warp * v)))
    shares = warps * f.m * f.w_size
    parts = 1 if shares > room else parts
    scratch = shares if parts > 1 else 0
    return DotPlan("lanes", v=v, kv=v, lanes=lanes, columns=columns, parts=parts, scratch=scratch)


def _side(size: int, low: int, high: int) -> int:
    """The power of two from `low` to `high` that covers `size` at once, or else often with little waste."""
    if size <= high:
        return max(low, power(size))
    needed, side = above(size, low) * low, high
    while side > low and above(size, side) * side * 4 > needed * 5:
        side //= 2
    return side


def along_k(along_row: int, along_depth: int) -> bool:
    """True if the lines of an operand's tile in scratch run along k."""
    return along_row != 1 or along_depth == 1


def _pitch(elements: int, size: int, along: bool, mma: bool) -> int:
    """Bytes of a line of a tile in scratch, as `ck_dot_pitch` has them: lines start in other banks."""
    size_of_all = elements * size
    if along or size == 2:
        return size_of_all + 16
    return size_of_all + 32 if mma and size_of_all % 64 == 0 else size_of_all


def _stage_bytes(f: DotForm, p: DotPlan) -> int:
    size = f.a_size if f.mma else f.w_size

    def tile(rows: int, along: bool) -> int:
        return (rows if along else p.bk) * _pitch(p.bk if along else rows, size, along, f.mma)

    return tile(p.bm, along_k(f.a_m, f.a_k)) + tile(p.bn, along_k(f.b_n, f.b_k))


def _shares(f: DotForm, p: DotPlan, threads: int) -> DotPlan:
    """The part of one thread: as small as lets all of them hold the tile. What is left of them shares k."""
    tm = tn = 2
    while p.bm * p.bn > threads * tm * tn:
        if tm >= p.bm or (tn < tm and tn < p.bn):
            tn *= 2
        else:
            tm *= 2
    used, slices = p.bm * p.bn // (tm * tn), p.bk * f.w_size // 16
    while slices > 1 and slices * used > threads:
        slices //= 2
    return replace(p, tm=tm, tn=tn, slices=slices)


def _tiles(f: DotForm, block: Block, room: int) -> DotPlan:
    bk = _STAGE_BYTES // f.w_size
    bk = bk // 2 if f.k * 2 <= bk else bk
    area = power(min(_TILE_OUTPUTS, 32 * block.threads) + 1) // 2
    p = DotPlan("fma", bk=bk)
    while area >= 256:
        bm = _side(f.m, 16, min(64, area // 16))
        bn = _side(f.n, 16, min(256, area // bm))
        p = _shares(f, replace(p, bm=_side(f.m, 16, min(256, area // bn)), bn=bn), block.threads)
        stage, tiles = _stage_bytes(f, p), above(f.k, bk)
        stages, slices = min(_STAGES, tiles), p.slices
        while stages > 1 and stages * stage > min(room, _MOST_SCRATCH):
            stages -= 1
        while slices > 1 and slices * p.bm * p.bn * f.w_size > room:
            slices //= 2
        sums = slices * p.bm * p.bn * f.w_size if slices > 1 else 0
        p = replace(p, slices=slices, stages=stages, scratch=max(stages * stage, sums))
        # a smaller tile that the next one follows beats one that all wait for
        waits = stages < min(2, tiles) and area > 512
        if p.scratch <= room and not waits:
            return p
        area //= 2
    return replace(p, path="serial", scratch=0)


# ---- tiles for tensor cores --------------------------------------------------------------------------------


def _sums_bytes(bm: int, bn: int) -> int:
    """The sums of one slice in scratch; their lines are those of `ck_dot_sums_pitch`."""
    return bm * (bn + 8 if bn % 32 == 16 else bn) * 4


def _panels(f: DotForm, bm: int, bn: int, room: int) -> DotPlan:
    """The plan with as much of k in a tile as there is room for, and then the next tile on its way; without
    stages if there is no room. Beside a packed matrix warps read what they multiply: all of k at once."""
    p = DotPlan("mma", bm=bm, bn=bn, bk=f.k, stages=1)
    if f.is_packed:
        return p
    pack = 4 // f.a_size
    every = above(f.k, _BLOCK * pack) * _BLOCK
    words, p = min(every, _MOST_DEPTH), replace(p, stages=0)
    while p.stages == 0 and words >= _BLOCK:
        p = replace(p, bk=words * pack)
        stage, tiles = _stage_bytes(f, p), above(every, words)
        stages = min(_STAGES, tiles, room // stage)
        if stages >= min(2, tiles):
            p = replace(p, stages=stages, scratch=stages * stage)
        words = power(words) // 2
    return p


def _whole_cycles(f: DotForm, p: DotPlan, tm: int, tn: int, slices: int, warps: int) -> int:
    """Cycles, about: a block of k takes the tensor cores, the way from the operands, or what one warp does
    alone."""
    cells, tiles = tm * tn, above(f.m, p.bm) * above(f.n, p.bn)
    blocks = f.terms * above(f.k * f.a_size, 4 * _BLOCK * slices)
    block = max(16 * cells + 100 * tm, 16 * cells * above(warps, 4), warps * (8 * tm + 4 * tn))
    return tiles * (700 + blocks * block + (120 + warps * cells * 3 if slices > 1 else 0))


def _cycles(f: DotForm, p: DotPlan, tm: int, tn: int, slices: int, warps: int) -> int:
    """Cycles, about, of a product by tiles. A step of all warps takes the sums that wait for each other, four
    tensor cores, or reads of scratch."""
    cells = tm * tn
    tiles, depths = above(f.m, p.bm) * above(f.n, p.bn), above(f.k, p.bk)
    step = max(36, 8 * cells * above(warps, 4), warps * (4 * tm + 2 * tn))
    steps = above(p.bk * f.a_size, 32 * slices) * step
    copied = p.scratch // p.stages // 64
    return tiles * (300 + depths * (100 + copied + steps) + (120 + warps * cells * 3 if slices > 1 else 0))


def _tensor(f: DotForm, block: Block, room: int) -> DotPlan:
    """Every way to share a tile among the warps, by the cycles that it takes."""
    best, least, cycles_of = DotPlan("serial"), 0, _whole_cycles if f.is_packed else _cycles
    # sums of larger parts leave too few registers for the places of two operands that are copied
    most = min(16 if f.is_packed else 12, 4096 // block.threads)
    panels = dict[tuple[int, int], DotPlan]()
    for down, across, tm, tn in _tensor_shares(f, block, most):
        tile = 16 * tm * down, block.cell_columns * tn * across
        p = panels[tile] = panels.get(tile) or _panels(f, *tile, room)
        slices, most_slices = 1, min(block.warps // (down * across), p.bk * f.a_size // (4 * _BLOCK))
        while p.stages and slices <= most_slices:
            scratch = max(p.scratch, slices * _sums_bytes(*tile) if slices > 1 else 0)
            cycles = cycles_of(f, p, tm, tn, slices, down * across * slices)
            if scratch <= room and (least == 0 or cycles < least):
                best, least = replace(p, tm=tm, tn=tn, slices=slices, scratch=scratch), cycles
            slices *= 2
    return best


def _tensor_shares(f: DotForm, block: Block, most: int) -> Iterator[tuple[int, int, int, int]]:
    """Warps below each other and side by side, and the cells of each."""
    warps, powers = block.warps, [1 << bit for bit in range(block.warps.bit_length())]
    for down, across in product(powers, powers):
        if down * across > warps:
            continue
        for tm in (1, 2, 4):
            if tm > 1 and tm * 8 * down >= f.m:
                break
            for tn in range(1, most // tm + 1):
                if tn > 1 and (tn - 1) * block.cell_columns * across >= f.n:
                    break
                yield down, across, tm, tn
