"""How a block makes a matrix product: the choices of `gpu_src/cocktail_dot_plan.h`, for the cost model.

The names are the header's. A test compares the two on random products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Literal

from jax_cocktail.device.block import Block
from jax_cocktail.utask.tensor_order import PACKED

Path = Literal["serial", "columns", "lanes", "fma", "mma"]

_FEW_ROWS, _FEW_ROWS_MMA = 8, 4
_SHORT = 8
_TILE_OUTPUTS = 4096
_STAGE_BYTES = 128
_STAGES = 4
_MOST_SCRATCH = 65536
_BLOCK = 16
_MOST_DEPTH = 512


@dataclass(frozen=True, slots=True)
class DotForm:
    """One product: sizes, strides in elements, bytes of an element of the operands and of a sum. `terms`: so
    many products of these sizes are added up."""

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
    """The fields of `CkDotPlan`; those of other paths are 0."""

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


@lru_cache(maxsize=4096)
def dot_plan(given: DotForm, block: Block, room: int) -> DotPlan:
    """The plan for a block with `room` bytes of scratch."""
    f = given.normal()
    if f.is_packed:
        return _tensor(f, block, room)
    few = _FEW_ROWS_MMA if f.mma else _FEW_ROWS
    slim = f.m <= few or f.n <= few
    if slim:
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
    """The part of one thread: as small as lets all of them hold the tile."""
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
        waits = stages < min(2, tiles) and area > 512
        if p.scratch <= room and not waits:
            return p
        area //= 2
    return replace(p, path="serial", scratch=0)


# ---- tiles for tensor cores --------------------------------------------------------------------------------


def _sums_bytes(p: DotPlan) -> int:
    """Of all slices."""
    return p.slices * p.bm * (p.bn + 8 if p.bn % 32 == 16 else p.bn) * 4


def _depth(f: DotForm, p: DotPlan, room: int) -> DotPlan:
    """As much of k in a tile as there is room for; without stages if there is none."""
    pack = 4 // f.a_size
    every = above(f.k, _BLOCK * pack) * _BLOCK
    words, found = min(every, _MOST_DEPTH), replace(p, stages=0)
    while found.stages == 0 and words >= _BLOCK:
        found = replace(found, bk=words * pack)
        stage, tiles = _stage_bytes(f, found), above(every, words)
        stages = min(_STAGES, tiles, room // stage)
        kept = stages if stages >= min(2, tiles) else 0
        found = replace(found, stages=kept, scratch=stages * stage)
        words = power(words) // 2
    if p.slices > 1:
        found = replace(found, scratch=max(found.scratch, _sums_bytes(p)))
    fits = found.scratch <= room and p.slices * _BLOCK * pack <= found.bk
    return found if fits else replace(found, stages=0)


def _whole(f: DotForm, p: DotPlan, room: int) -> DotPlan:
    """Beside a packed matrix: warps read what they multiply, and scratch is for their sums."""
    scratch = _sums_bytes(p) if p.slices > 1 else 0
    fits = scratch <= room and p.slices * _BLOCK * 4 <= f.k * f.a_size
    return replace(p, bk=f.k, scratch=scratch, stages=int(fits))


def _whole_cycles(f: DotForm, p: DotPlan, warps: int) -> int:
    cells, tiles = p.tm * p.tn, above(f.m, p.bm) * above(f.n, p.bn)
    blocks = f.terms * above(f.k * f.a_size, 4 * _BLOCK * p.slices)
    block = max(16 * cells + 100 * p.tm, 16 * cells * above(warps, 4), warps * (8 * p.tm + 4 * p.tn))
    return tiles * (700 + blocks * block + (120 + warps * cells * 3 if p.slices > 1 else 0))


def _cycles(f: DotForm, p: DotPlan, warps: int) -> int:
    cells = p.tm * p.tn
    tiles, depths = above(f.m, p.bm) * above(f.n, p.bn), above(f.k, p.bk)
    step = max(36, 8 * cells * above(warps, 4), warps * (4 * p.tm + 2 * p.tn))
    steps = above(p.bk * f.a_size, 32 * p.slices) * step
    copied = _stage_bytes(f, p) // 64
    return tiles * (300 + depths * (100 + copied + steps) + (120 + warps * cells * 3 if p.slices > 1 else 0))


def _tensor(f: DotForm, block: Block, room: int) -> DotPlan:
    """Every way to share a tile among the warps, by the cycles that it takes."""
    warps, best, least = block.warps, DotPlan("serial"), 0
    most = min(16 if f.is_packed else 12, 4096 // block.threads)
    for down, across, tm, tn in _tensor_shares(f, block, most):
        slices = 1
        while slices * down * across <= warps:
            bm, bn = 16 * tm * down, block.cell_columns * tn * across
            form = DotPlan("mma", bm=bm, bn=bn, tm=tm, tn=tn, slices=slices)
            p = _whole(f, form, room) if f.is_packed else _depth(f, form, room)
            cycles = (_whole_cycles if f.is_packed else _cycles)(f, p, down * across * slices)
            if p.stages and (least == 0 or cycles < least):
                best, least = p, cycles
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
