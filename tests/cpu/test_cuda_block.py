"""Templates of gpu_src/cocktail_block.h on emulated blocks, against NumPy; what nvcc makes of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.cpu.arrays import DTYPES, INTEGERS
from tests.cpu.cuda_text import NO_NVCC, NVCC, nvcc_facts, program
from tests.cpu.emulation import emulator

THREADS = (32, 64, 256)
BLOCKS = [(threads, emulator.CUDA) for threads in THREADS]
BLOCKS += [(64, emulator.WAVES_OF_64), (192, emulator.WAVES_OF_64), (96, emulator.WAVES_OF_32)]
FEW = (1, 2, 4, 8, 16, 32)  # groups inside a warp
ROWS, LENGTH = 37, 45  # rows of a reduction: no multiple of anything
OPERATORS = {
    "CkSum": np.add,
    "CkProd": np.multiply,
    "CkMax": np.maximum,
    "CkMin": np.minimum,
    "CkAnd": np.bitwise_and,
    "CkOr": np.bitwise_or,
    "CkXor": np.bitwise_xor,
}
ARITHMETIC = ("CkSum", "CkProd", "CkMax", "CkMin")
BLOCK = 0  # stands for the whole block in lists of groups

Array = np.ndarray


@dataclass(frozen=True)
class Reduction:
    """Rows of T, reduced by groups; `operator` "" stands for the position of the largest or smallest."""

    operator: str
    dtype: str
    group: int
    is_max: bool = True

    def text(self, place: int, operand: int) -> str:
        group = self.group or "CK_THREADS"
        if self.operator:
            call = f"reduce_rows<{group}, {self.operator}, {self.dtype}>"
        else:
            call = f"arg_rows<{group}, {str(self.is_max).lower()}, {self.dtype}>"
        return f"{call}(operands[{operand}], results[{place}]);"

    def result(self, threads: int) -> Array:
        """One result per row and thread of its group."""
        dtype = DTYPES[self.dtype] if self.operator else np.dtype(np.int32)
        return np.zeros((ROWS, self.group or threads), dtype)

    def wanted(self, x: Array) -> Array:
        if not self.operator:
            # NumPy too lets the first NaN win
            return (np.argmax if self.is_max else np.argmin)(x, axis=1)[:, None]
        wide = x.astype(np.float64) if x.dtype == np.float32 and self.operator in ("CkSum", "CkProd") else x
        return OPERATORS[self.operator].reduce(wide, axis=1, dtype=wide.dtype)[:, None]


PRELUDE = f"""
enum : i32 {{ ROWS = {ROWS}, LENGTH = {LENGTH} }};
template <i32 GROUP, class Op, class T>
CK_NOINLINE void reduce_rows(const void* operand, void* result) {{
  const T* x = (const T*)operand;
  CK_FOR_ROWS(GROUP, row, ROWS) {{
    T total = Op::template identity<T>();
    if (row < ROWS) CK_FOR_GROUP_LANES(GROUP, k, LENGTH) total = Op::apply(total, x[row * LENGTH + k]);
    total = ck_group_reduce<GROUP, Op, LENGTH>(total);
    if (row < ROWS) ((T*)result)[row * GROUP + ck_group_lane<GROUP>()] = total;
  }}
}}
template <i32 GROUP, bool IS_MAX, class T>
CK_NOINLINE void arg_rows(const void* operand, void* result) {{
  const T* x = (const T*)operand;
  CK_FOR_ROWS(GROUP, row, ROWS) {{
    CkArg<IS_MAX, T> seen = {{ck_group_lane<GROUP>()}};
    if (row < ROWS) CK_FOR_GROUP_LANES(GROUP, k, LENGTH) ck_arg_take(seen, x[row * LENGTH + k], k);
    i32 at = ck_arg_position<GROUP>(seen);
    if (row < ROWS) ((i32*)result)[row * GROUP + ck_group_lane<GROUP>()] = at;
  }}
}}
"""


def _reductions() -> list[Reduction]:
    groups = (*FEW, BLOCK)
    cases = [Reduction(op, "f32", g) for op in ("CkSum", "CkMax") for g in groups]
    cases += [Reduction(op, "f64", g) for op in ARITHMETIC for g in (4, BLOCK)]
    cases += [Reduction(op, "f32", BLOCK) for op in ("CkProd", "CkMin")]
    for dtype, shift in zip((*INTEGERS, "bool"), itertools.count()):
        for position, op in enumerate(OPERATORS):
            cases.append(Reduction(op, dtype, groups[(position + shift) % len(groups)]))
        cases += [Reduction("CkMax", dtype, BLOCK), Reduction("CkSum", dtype, 32)]
        cases.append(Reduction("", dtype, groups[shift % len(groups)], is_max=bool(shift % 2)))
    cases += [
        Reduction("", d, g, m) for d in ("f32", "f64") for g in (1, 8, 32, BLOCK) for m in (True, False)
    ]
    return list(dict.fromkeys(cases))


REDUCTIONS = _reductions()
REDUCED = tuple(dict.fromkeys(c.dtype for c in REDUCTIONS))


@cache
def _reduction_text(threads: int, every: int = 1) -> str:
    calls = [c.text(place, REDUCED.index(c.dtype)) for place, c in enumerate(REDUCTIONS)][::every]
    return program(
        "\n".join(calls),
        threads=threads,
        scratch=1024,
        operands=len(REDUCED),
        results=len(REDUCTIONS),
        prelude=PRELUDE,
    )


def _rows(dtype: str, seed: int) -> Array:
    """Rows with duplicates; rows 0, 1 ... of floats have NaN, infinities or both zeros."""
    draw = np.random.default_rng(seed)
    if dtype == "bool":
        return draw.random((ROWS, LENGTH)) < np.linspace(0, 1, ROWS)[:, None] ** 4
    if dtype in INTEGERS:
        info = np.iinfo(DTYPES[dtype])
        x = draw.integers(info.min, info.max, (ROWS, LENGTH), DTYPES[dtype], endpoint=True)
        x[1::3] = draw.integers(0, 4, x[1::3].shape)
        x[2::3] |= 1
        x[4], x[5] = info.min, info.max
        x[6, 10:30], x[7, 10:30] = info.min, info.max
        return x
    x = draw.choice([0.5, 1.0, 2.0, 1.25, -1.5, -0.75], (ROWS, LENGTH)).astype(DTYPES[dtype])
    x[0, [7, 31, 40]] = np.nan
    x[1, [3, 20]] = np.inf
    x[2, [3, 20]] = -np.inf
    x[3] = np.nan
    x[4], x[5] = np.inf, -np.inf
    x[6, 10:30] = -np.inf
    x[7, [8, 9]] = [np.nan, -np.nan]
    x[8, 5:] = -0.0
    x[9] = -1.0
    return x


def _equal(got: Array, wanted: Array, what: object) -> None:
    if got.dtype == np.float32:
        np.testing.assert_allclose(got, np.broadcast_to(wanted, got.shape), rtol=2e-6, err_msg=str(what))
    elif got.dtype == np.float64:
        np.testing.assert_allclose(got, np.broadcast_to(wanted, got.shape), rtol=1e-14, err_msg=str(what))
    else:
        np.testing.assert_array_equal(got, np.broadcast_to(wanted, got.shape), err_msg=str(what))


@pytest.mark.parametrize(("threads", "gpu"), BLOCKS, ids=str)
def test_reductions(threads: int, gpu: emulator.Gpu) -> None:
    built = emulator.build(_reduction_text(threads), gpu=gpu)
    for seed in (0, 1):
        operands = [_rows(dtype, seed) for dtype in REDUCED]
        results = [case.result(threads) for case in REDUCTIONS]
        built.launch(operands, results, units=1, seed=seed)
        for case, result in zip(REDUCTIONS, results, strict=True):
            with np.errstate(all="ignore"):
                wanted = case.wanted(operands[REDUCED.index(case.dtype)])
            _equal(result, wanted, case)


# -- running totals ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Scan:
    """One operator on rows of several lengths. `limit`: largest relative error."""

    operator: str
    wide: str
    dtype: str
    limit: float = 0

    def text(self, place: int) -> str:
        return f"scan_rows<{self.operator}, {self.wide}, {self.dtype}>(operands, {place}, results[{place}]);"

    def wanted(self, x: Array) -> Array:
        if self.operator == "CkLogAddExp":
            return np.logaddexp.accumulate(x.astype(np.float64))
        wide = DTYPES[self.wide]
        return OPERATORS[self.operator].accumulate(x.astype(wide), dtype=wide)


SCANS = (
    Scan("CkSum", "f64", "f32", 2e-7),
    Scan("CkSum", "f64", "bf16", 8e-3),
    Scan("CkSum", "f64", "f64", 1e-12),
    Scan("CkSum", "i32", "i32"),
    Scan("CkSum", "u8", "u8"),
    Scan("CkSum", "i64", "i64"),
    Scan("CkProd", "f64", "f32", 2e-7),
    Scan("CkProd", "i16", "i16"),
    Scan("CkMax", "f32", "f32"),
    Scan("CkMax", "f32", "f16"),
    Scan("CkMin", "f64", "f64"),
    Scan("CkMin", "i8", "i8"),
    Scan("CkMax", "u64", "u64"),
    Scan("CkLogAddExp", "f32", "f32", 4e-6),
    Scan("CkLogAddExp", "f64", "f64", 1e-13),
)


@dataclass(frozen=True)
class Row:
    """Where a row lies: its length and strides, in place or not, and from which end it is added up."""

    length: int
    x_stride: int
    y_stride: int
    reverse: bool
    in_place: bool


def _scan_rows(threads: int) -> list[Row]:
    lengths = (1, 2, 31, threads - 1, threads, threads + 1, 7 * threads + 3, 16 * threads, 35 * threads + 17)
    rows = [Row(n, 1, 1, bool(i % 2), in_place=i % 3 == 0) for i, n in enumerate(lengths)]
    rows += [Row(n, 3, 2, reverse, False) for n, reverse in ((5, True), (threads + 9, False))]
    return [*rows, Row(2 * threads + 1, 3, 3, True, True), Row(2 * threads, 1, 1, False, True)]


SCAN_PRELUDE = """
template <class Op, class Wide, class T>
CK_NOINLINE void scan_rows(const void* const* operands, i32 place, void* result) {
  const i64* row = (const i64*)operands[0];
  const T* x = (const T*)operands[1 + place];
  T* y = (T*)result;
  for (i64 left = *row++; left > 0; --left, row += 5) {
    const i32 n = i32(row[0]);
    if (row[4]) {
      ck_copy(y, x, ((n - 1) * row[1] + 1) * i64(sizeof(T)));
      ck_block_barrier();
      ck_block_scan<Op, Wide>(y, row[2], y, row[2], n, row[3] != 0);
    } else {
      ck_block_scan<Op, Wide>(x, row[1], y, row[2], n, row[3] != 0);
    }
    x += n * row[1];
    y += n * row[2];
  }
}
"""


@cache
def _scan_text(threads: int, every: int = 1) -> str:
    return program(
        "\n".join([scan.text(place) for place, scan in enumerate(SCANS)][::every]),
        threads=threads,
        scratch=1024,
        operands=1 + len(SCANS),
        results=len(SCANS),
        prelude=SCAN_PRELUDE,
    )


def _scan_operand(scan: Scan, size: int, seed: int) -> Array:
    draw = np.random.default_rng(seed)
    dtype = DTYPES[scan.dtype]
    if scan.dtype in INTEGERS:
        return draw.integers(0, 100, size).astype(dtype)
    if scan.operator == "CkSum":
        return draw.uniform(0.5, 1.0, size).astype(dtype)
    if scan.operator == "CkProd":
        return (1 + draw.uniform(-1, 1, size) / 64).astype(dtype)
    x = draw.uniform(1, 8, size).astype(dtype)
    x[::11] = -np.inf
    # late, for totals of all kinds to come before them
    x[-40], x[-33] = np.inf, np.inf
    x[-7] = np.nan
    return x


def _places(rows: list[Row]) -> Array:
    """How many rows; their fields."""
    fields = [(r.length, r.x_stride, r.y_stride, r.reverse, r.in_place) for r in rows]
    return np.array([len(rows), *itertools.chain(*fields)], np.int64)


def _size(rows: list[Row], array: str) -> int:
    return sum(r.length * (r.x_stride if array == "x" else r.y_stride) for r in rows)


@pytest.mark.parametrize(("threads", "gpu"), BLOCKS, ids=str)
def test_running_totals(threads: int, gpu: emulator.Gpu) -> None:
    built = emulator.build(_scan_text(threads), gpu=gpu)
    rows = _scan_rows(threads)
    for seed in (0, 1):
        operands = [_scan_operand(scan, _size(rows, "x"), seed) for scan in SCANS]
        results = [np.zeros(_size(rows, "y"), DTYPES[scan.dtype]) for scan in SCANS]
        built.launch([_places(rows), *operands], results, units=1, seed=seed)
        for scan, x, y in zip(SCANS, operands, results, strict=True):
            _check_rows(scan, rows, x, y)


def _check_rows(scan: Scan, rows: list[Row], x: Array, y: Array) -> None:
    for row in rows:
        mine, made = (
            x[: row.length * row.x_stride : row.x_stride],
            y[: row.length * row.y_stride : row.y_stride],
        )
        x, y = x[row.length * row.x_stride :], y[row.length * row.y_stride :]
        turn = -1 if row.reverse else 1
        with np.errstate(all="ignore"):
            wanted = scan.wanted(mine[::turn])[::turn]
        if scan.limit:
            made, wanted = made.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(made, wanted, rtol=scan.limit, err_msg=f"{scan} {row}")
        else:
            np.testing.assert_array_equal(made, wanted.astype(made.dtype), err_msg=f"{scan} {row}")


# -- copies, fills, broadcasts -------------------------------------------------------------------------------
PLACES = tuple(
    (to, start, size)
    for to in (0, 1, 2, 4, 8)
    for start in (0, 1, 2, 4, 8, 12)
    for size in (0, 1, 7, 15, 16, 100, 1000, 1024 + 8, 33_333)
)
MEMORY_BODY = """
const i64* places = (const i64*)operands[0];
for (i64 i = 0; i < places[0]; ++i) {
  const i64* place = places + 1 + 4 * i;  // to, from, bytes, where the copy's page begins
  ck_copy((u8*)results[0] + place[3] + place[0], (const u8*)operands[1] + place[1], place[2]);
}
"""
FILL_BODY = """
ck_fill((u8*)results[1] + 3, u8(7), 1001);
ck_fill((u8*)results[1] + 1024, u8(9), 1001);
ck_fill((f32*)results[2], 1.5f, 999);
ck_fill((f32*)results[2] + 1001, -0.0f, 998);
ck_fill((bf16*)results[3], bf16{0x3f80}, 77);
ck_fill((f64*)results[4], 0.1, 555);
"""
MANY_BODY = """
i64* y = (i64*)results[5] + ck_lane();
for (i32 turn = 0; turn < 50; ++turn) {  // templates directly after each other
  f64 last = ck_broadcast(f64(turn) + ck_lane());
  i64 sum = ck_group_reduce<CK_THREADS, CkSum>(i64(ck_lane()) << turn);
  bool any = ck_group_reduce<CK_THREADS, CkOr>(ck_lane() == turn);
  CkArg<true, u8> seen = {ck_lane()};
  ck_arg_take(seen, u8(ck_lane() == turn), ck_lane());
  i32 at = ck_arg_position<CK_THREADS>(seen);
  y[turn * CK_THREADS] = sum + i64(last) + (any ? at : -1);
}
"""


def _memory_text(threads: int) -> str:
    body = "\n".join((MEMORY_BODY, FILL_BODY, MANY_BODY))
    return program(body, threads=threads, scratch=1024, operands=2, results=6)


@dataclass(frozen=True)
class Memory:
    """Arrays of the programs about memory."""

    operands: list[Array]
    results: list[Array]


def _memory(threads: int, seed: int) -> Memory:
    source = np.random.default_rng(seed).integers(0, 256, 40_000, np.uint8)
    starts = np.cumsum([0, *(-(-(to + size + 1) // 16) * 16 for to, _, size in PLACES)])
    table = [len(PLACES)]
    for (to, start, size), page in zip(PLACES, starts[:-1], strict=True):
        table += [to, start, size, int(page)]
    results = [np.full(starts[-1], 1, np.uint8), np.zeros(3000, np.uint8), np.full(2000, 5, np.float32)]
    results += [np.zeros(100, np.uint16), np.zeros(600), np.zeros((50, threads), np.int64)]
    return Memory([np.array(table), source], results)


def _check_memory(memory: Memory, threads: int) -> None:
    (table, source), (copies, octets, singles, halves, doubles, many) = memory.operands, memory.results
    wanted = np.full_like(copies, 1)
    for to, start, size, page in table[1:].reshape(-1, 4):
        wanted[page + to : page + to + size] = source[start : start + size]
    np.testing.assert_array_equal(copies, wanted)
    np.testing.assert_array_equal(octets, np.repeat([0, 7, 0, 9, 0], [3, 1001, 20, 1001, 975]))
    np.testing.assert_array_equal(singles, np.repeat([1.5, 5, -0.0, 5], [999, 2, 998, 1]))
    assert np.signbit(singles[1001])
    np.testing.assert_array_equal(halves, np.repeat([0x3F80, 0], [77, 23]))
    np.testing.assert_array_equal(doubles, np.repeat([0.1, 0], [555, 45]))
    lanes, turns = np.arange(threads), np.arange(50)
    sums = (lanes[None] << turns[:, None]).sum(axis=1)
    found = np.where(turns < threads, turns, -1)
    np.testing.assert_array_equal(many, np.broadcast_to((sums + turns + found)[:, None], many.shape))


@pytest.mark.parametrize(("threads", "gpu"), BLOCKS, ids=str)
def test_memory(threads: int, gpu: emulator.Gpu) -> None:
    """Copies at all alignments, fills, and whole-block templates directly after each other."""
    built = emulator.build(_memory_text(threads), gpu=gpu)
    for seed in (0, 1):
        memory = _memory(threads, seed)
        built.launch(memory.operands, memory.results, units=1, seed=seed)
        _check_memory(memory, threads)


# -- races, bounds, spills -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sanitizer", "gpu"),
    [("address", emulator.CUDA), ("thread", emulator.CUDA), ("thread", emulator.WAVES_OF_64)],
    ids=str,
)
def test_sanitized(sanitizer: emulator.Sanitizer, gpu: emulator.Gpu) -> None:
    """No access beyond an array or the scratch memory; no two accesses without a meeting in between."""
    threads = 128 if gpu.warp == 64 else 64
    memory = _memory(threads, seed=2)
    emulator.build(_memory_text(threads), sanitizer=sanitizer, gpu=gpu).launch(
        memory.operands, memory.results, units=1
    )
    _check_memory(memory, threads)
    rows = _scan_rows(threads)
    operands = [_places(rows), *(_scan_operand(scan, _size(rows, "x"), 2) for scan in SCANS)]
    results = [np.zeros(_size(rows, "y"), DTYPES[scan.dtype]) for scan in SCANS]
    emulator.build(_scan_text(threads), sanitizer=sanitizer, gpu=gpu).launch(operands, results, units=1)
    for scan, x, y in zip(SCANS, operands[1:], results, strict=True):
        _check_rows(scan, rows, x, y)


@pytest.mark.skipif(not NVCC, reason=NO_NVCC)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_registers(arch: str, tmp_path: Path) -> None:
    """All templates stay in registers; a sample of types and operators, for the time it takes."""
    for text in (_reduction_text(256, every=7), _scan_text(256, every=len(SCANS) - 2), _memory_text(256)):
        kernels = nvcc_facts(text, tmp_path, arch)
        assert kernels.keys() == {"ck_resident", "ck_portable"}
        for kernel, facts in kernels.items():
            assert (facts.spilled, facts.stack) == (0, 0), f"{kernel}: {facts}"
            assert facts.registers <= 128, f"{kernel}: {facts}"
