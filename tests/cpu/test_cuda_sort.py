"""Sorting and selecting by a block of threads (gpu_src/cocktail_sort.h), emulated, against NumPy."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cpu.cuda_text import NO_NVCC, NVCC, nvcc_facts, program
from tests.cpu.emulation import emulator

THREADS = (32, 64, 256)
Array = np.ndarray
Lengths = list[tuple[int, int]]  # of sorted arrays, and how many elements are selected

# The comparisons as emitted programs spell them. Per length: sorted by one key and by two, selected by one.
# The sorts share their spare memory, one directly after the other.
BODY = """
const i64* lengths = (const i64*)operands[0];
const f32* keys = (const f32*)operands[1];
const i8* groups = (const i8*)operands[2];
i32* sorted = (i32*)results[0];
i32* grouped = (i32*)results[1];
i32* best = (i32*)results[2];
f32* moved = (f32*)results[3];
for (i64 left = *lengths++; left > 0; --left) {
  const i64 n = *lengths++, k = *lengths++;
  ck_sort_index(n, grouped, (i32*)unit->own, [&](i32 p, i32 q) {
    {
      const i8 x = groups[p], y = groups[q];
      if (x < y) return true;
      if (y < x) return false;
    }
    {
      const f32 x = keys[p], y = keys[q];
      if (x < y || (x == x && y != y)) return true;
      if (y < x || (y == y && x != x)) return false;
    }
    return false;
  });
  ck_sort_index(n, sorted, (i32*)unit->own, [&](i32 p, i32 q) {
    {
      const f32 x = keys[p], y = keys[q];
      if (x < y || (x == x && y != y)) return true;
      if (y < x || (y == y && x != x)) return false;
    }
    return false;
  });
  ck_select_index(n, k, best, [&](i32 p, i32 q) {
    return ck_total_order(keys[p]) > ck_total_order(keys[q]);
  });
  ck_block_barrier();
  for (i32 i = ck_lane(); i < n; i += CK_THREADS) moved[i] = keys[sorted[i]];
  keys += n;
  groups += n;
  sorted += n;
  grouped += n;
  best += 2 * n;
  moved += n;
}
"""


@cache
def _text(threads: int, longest: int) -> str:
    return program(
        BODY,
        threads=threads,
        scratch=1024,
        operands=3,
        results=4,
        own=(4 * longest + 255) // 256 * 256,
        headers=("cocktail_block.h", "cocktail_sort.h"),
    )


def _lengths(threads: int, longest: int) -> Lengths:
    lengths = [1, 2, 3, 31, 33, 100, threads - 1, threads, threads + 1, 2 * threads + 5, 8 * threads]
    lengths += [8 * threads + 1, 1000, 1024, 16 * threads + 7, longest]
    counts = [max(1, n // 8) for n in lengths[:-3]] + [1, 5, lengths[-1]]
    return list(zip(lengths, counts, strict=True))


def _keys(size: int, seed: int) -> Array:
    """Duplicates, both zeros, infinities and NaNs of both signs."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=size).astype(np.float32)
    x[::3] = np.round(x[::3] * 4) / 4
    x[::7] *= 0
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    places = draw.integers(0, size, size // 8)
    x[places] = draw.choice(special, places.size)
    return x


def _selected(x: Array, k: int) -> Array:
    bits = x.view(np.int32)
    order = (bits ^ (bits >> 31 & 0x7FFFFFFF)).astype(np.int64)
    return np.argsort(-order, kind="stable")[:k]


def _run(threads: int, lengths: Lengths, seed: int, **how: Any) -> None:
    longest, total = max(n for n, _ in lengths), sum(n for n, _ in lengths)
    table = np.array([len(lengths), *(number for pair in lengths for number in pair)], np.int64)
    keys = _keys(total, seed)
    groups = np.random.default_rng(seed).integers(-2, 3, total).astype(np.int8)
    sorted_, grouped = np.zeros(total, np.int32), np.zeros(total, np.int32)
    best, moved = np.zeros(2 * total, np.int32), np.zeros(total, np.float32)
    built = emulator.build(_text(threads, longest), **how)
    built.launch([table, keys, groups], [sorted_, grouped, best, moved], units=1, seed=seed)
    at = 0
    for n, k in lengths:
        x, group = keys[at : at + n], groups[at : at + n]
        by_key = np.argsort(x, kind="stable")
        np.testing.assert_array_equal(sorted_[at : at + n], by_key)
        np.testing.assert_array_equal(moved[at : at + n].view(np.int32), x[by_key].view(np.int32))
        by_both = by_key[np.argsort(group[by_key], kind="stable")]
        np.testing.assert_array_equal(grouped[at : at + n], by_both)
        np.testing.assert_array_equal(best[2 * at : 2 * at + k], _selected(x, k))
        at += n


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("seed", [0, 1])
def test_order(threads: int, seed: int) -> None:
    _run(threads, _lengths(threads, 12_345), seed)


@pytest.mark.parametrize("gpu", emulator.EVERY_GPU[1:], ids=str)
def test_order_of_waves(gpu: emulator.Gpu) -> None:
    _run(128, _lengths(128, 12_345), 2, gpu=gpu)


def test_many_elements() -> None:
    _run(256, [(100_000, 1000)], 3)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_sanitized(sanitizer: emulator.Sanitizer) -> None:
    _run(64, _lengths(64, 2100), 2, sanitizer=sanitizer)


@pytest.mark.skipif(not NVCC, reason=NO_NVCC)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_registers(arch: str, tmp_path: Path) -> None:
    """What the comparisons capture stays in registers."""
    for kernel, facts in nvcc_facts(_text(256, 1024), tmp_path, arch).items():
        assert (facts.spilled, facts.stack) == (0, 0), f"{kernel}: {facts}"
        assert facts.registers <= 128, f"{kernel}: {facts}"
