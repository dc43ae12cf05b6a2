"""How a block makes a matrix product: the choices of `gpu_src/cocktail_dot_plan.h`, for the cost model.

The names are the header's. A test compares the two on random products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

Path = Literal["serial", "columns", "lanes", "fma", "mma"]

_WARP = 32
_FEW_ROWS, _FEW_ROWS_MMA = 8, 4
_SHORT = 8
_TILE_OUTPUTS = 4096
_STAGE_BYTES = 128
_STAGES = 4
_MOST_SCRATCH = 65536


@dataclass(frozen=True, slots=True)
class DotForm:
    """One product: sizes, strides in elements, bytes of an element of the operands and of a sum."""

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

    def normal(self) -> DotForm:
        """A stride over one element does not matter."""
        found = replace(self, a_m=0, o_m=0) if self.m == 1 else self
        return replace(found, b_n=0, o_n=0) if self.n == 1 else found

    def turned(self) -> DotForm:
        """The operands change places."""
        f = self
        strides = (f.b_n, f.b_k, f.a_k, f.a_m, f.o_n, f.o_m)
        return DotForm(f.n, f.m, f.k, *strides, f.b_size, f.a_size, f.w_size, f.mma)


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
def dot_plan(given: DotForm, threads: int, room: int) -> DotPlan:
    """The plan for a block of `threads` threads with `room` bytes of scratch."""
    f = given.normal()
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
        plan = _tiles(f, threads, room)
    elif f.b_k == 1 or f.n < 4 or (f.b_n != 1 and f.b_k < f.b_n):
        plan = _lanes(f, threads, room)
    else:
        plan = _columns(f, threads, room)
    return replace(plan, turned=turned)


def _columns(f: DotForm, threads: int, room: int) -> DotPlan:
    v = vector(f.b_size, 32 // power(f.m), f.n, f.b_k) if f.b_n == 1 else 1
    lanes = min(_WARP, power(f.n // v))
    columns = lanes * v
    wide = columns * f.b_size >= 128 and f.a_k == 1
    kv = vector(f.a_size, 4, f.k, f.a_m) if wide else 1
    warps, chunks = threads // _WARP, above(f.n, columns)
    parts = max(1, min(warps // chunks, f.k * lanes // 128))

    def bytes_of(parts: int) -> int:
        return warps // parts * parts * f.m * columns * f.w_size

    while parts > 1 and bytes_of(parts) > room:
        parts //= 2
    scratch = bytes_of(parts) if parts > 1 else 0
    return DotPlan("columns", v=v, kv=kv, lanes=lanes, columns=columns, parts=parts, scratch=scratch)


def _lanes(f: DotForm, threads: int, room: int) -> DotPlan:
    v = vector(f.b_size, 32 // power(f.m), f.k, f.b_n) if f.b_k == 1 else 1
    if f.a_k == 1:
        v = min(v, vector(f.a_size, v, f.k, f.a_m))
    lanes = min(_WARP, power(f.k // v))
    warps, groups = threads // _WARP, threads // lanes
    columns = min(8, max(1, 16 // power(f.m)), power(above(f.n, groups)))
    parts = 1
    if lanes == _WARP and columns == 1:
        parts = max(1, min(warps // f.n, f.k // (_WARP * v)))

    def bytes_of(parts: int) -> int:
        return warps // parts * parts * f.m * f.w_size

    while parts > 1 and bytes_of(parts) > room:
        parts //= 2
    scratch = bytes_of(parts) if parts > 1 else 0
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
    return elements * size + (16 if along or size == 2 else 32 if mma else 0)


def _stage_bytes(f: DotForm, p: DotPlan) -> int:
    size = f.a_size if f.mma else f.w_size

    def tile(rows: int, along: bool) -> int:
        return (rows if along else p.bk) * _pitch(p.bk if along else rows, size, along, f.mma)

    return tile(p.bm, along_k(f.a_m, f.a_k)) + tile(p.bn, along_k(f.b_n, f.b_k))


def _shares(f: DotForm, p: DotPlan, threads: int) -> DotPlan:
    """The part of one thread or warp: as small as lets all of them hold the tile."""
    cell_m, cell_n, workers = (16, 8, threads // _WARP) if f.mma else (1, 1, threads)
    tm = tn = 1 if f.mma else 2
    while p.bm * p.bn > workers * tm * tn * cell_m * cell_n:
        across = tn <= tm if f.mma else tn < tm
        full_m, full_n = tm * cell_m >= p.bm, tn * cell_n >= p.bn
        if full_m or (across and not full_n):
            tn *= 2
        else:
            tm *= 2
    used = p.bm * p.bn // (tm * tn * cell_m * cell_n)
    slices = p.bk * f.a_size // 32 if f.mma else p.bk * f.w_size // 16
    while slices > 1 and slices * used > workers:
        slices //= 2
    return replace(p, tm=tm, tn=tn, slices=slices)


def _tiles(f: DotForm, threads: int, room: int) -> DotPlan:
    bk, low_n = _STAGE_BYTES // (f.a_size if f.mma else f.w_size), 8 if f.mma else 16
    bk = bk // 2 if f.k * 2 <= bk else bk
    area = power(min(_TILE_OUTPUTS, 32 * threads) + 1) // 2
    p = DotPlan("mma" if f.mma else "fma", bk=bk)
    while area >= 16 * low_n:
        bm = _side(f.m, 16, min(64, area // low_n))
        bn = _side(f.n, low_n, min(256, area // bm))
        p = replace(p, bm=_side(f.m, 16, min(256, area // bn)), bn=bn)
        p = _shares(f, p, threads)
        stage, tiles = _stage_bytes(f, p), above(f.k, bk)
        stages, slices = min(_STAGES, tiles), p.slices
        while stages > 1 and stages * stage > min(room, _MOST_SCRATCH):
            stages -= 1
        while slices > 1 and slices * p.bm * p.bn * f.w_size > room:
            slices //= 2
        sums = slices * p.bm * p.bn * f.w_size if slices > 1 else 0
        p = replace(p, slices=slices, stages=stages, scratch=max(stages * stage, sums))
        waits = stages < min(2, tiles) and area > 32 * low_n
        if p.scratch <= room and not waits:
            return p
        area //= 2
    return replace(p, path="serial", scratch=0)
