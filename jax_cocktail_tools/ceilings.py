"""Measures this machine's peak rates, which no program exceeds, with small loops in C++."""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jax_cocktail.build.host import build_program, host_toolchain

SOURCE = """
#include "cocktail_base.h"
#if defined(__AVX512F__)
enum { BYTES = 64 };
#elif defined(__AVX__)
enum { BYTES = 32 };
#else
enum { BYTES = 16 };
#endif
typedef f32 Vector __attribute__((vector_size(BYTES)));
typedef f32 Loaded __attribute__((vector_size(BYTES), aligned(4), may_alias));
// Twelve chains, named: more than latency times ports of any core of today, and all in registers.
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

CK_EXPORT i64 ck_multiply_add(i64 rounds) {
  Vector factor = Vector{} + 0.999f, term = Vector{} + 0.001f, sum = {};
#define START(k) Vector chain##k = Vector{} + f32(k);
#define STEP(k) chain##k = chain##k * factor + term;
#define KEEP(k) sum += chain##k;
  EACH(START)
  for (i64 i = 0; i < rounds; ++i) {
    EACH(STEP)
    __asm__ volatile("");
  }
  EACH(KEEP)
  volatile f32 keep = sum[0];
  (void)keep;
  return rounds * 12 * (BYTES / 4) * 2;
}

CK_EXPORT i64 ck_read(const f32* data, i64 bytes, i64 rounds) {
  enum { LANES = BYTES / 4 };
  Vector a = {}, b = {}, c = {}, d = {};
  i64 steps = bytes / BYTES / 4;
  for (i64 i = 0; i < rounds; ++i) {
    const f32* next = data;
    for (i64 j = 0; j < steps; ++j, next += 4 * LANES) {
      a += *(const Loaded*)(next);
      b += *(const Loaded*)(next + LANES);
      c += *(const Loaded*)(next + 2 * LANES);
      d += *(const Loaded*)(next + 3 * LANES);
    }
    __asm__ volatile("" ::: "memory");
  }
  a += b + c + d;
  volatile f32 keep = a[0];
  (void)keep;
  return rounds * steps * BYTES * 4;
}
"""

SECONDS = 0.02  # the length of one sample
SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Per second. `core_flops`, `flops`: of one core, of all; `l2`, `l3`, `memory`: bytes read, by all."""

    core_flops: float
    flops: float
    l2: float
    l3: float
    memory: float

    def __str__(self) -> str:
        return (
            f"multiply-add f32: one core {self.core_flops / 1e9:.0f} GF/s, all {self.flops / 1e9:.0f} GF/s;"
            f" reads by all cores: L2 {self.l2 / 1e9:.0f}, L3 {self.l3 / 1e9:.0f},"
            f" memory {self.memory / 1e9:.0f} GB/s"
        )


def loops() -> ctypes.CDLL:
    """The loops, compiled. Each returns the work that it has done."""
    built = build_program(SOURCE, host_toolchain(), symbols=("ck_multiply_add", "ck_read"))
    library = ctypes.CDLL(built.path)
    for function in (library.ck_multiply_add, library.ck_read):
        function.restype = ctypes.c_int64
    library.ck_multiply_add.argtypes = [ctypes.c_int64]
    library.ck_read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    return library


def measure(samples: int = SAMPLES) -> Ceilings:
    """Measures each rate as the best of a few samples. Raises BuildError."""
    library = loops()
    cores = len(os.sched_getaffinity(0))
    l2, l3 = cache_bytes(2, 1 << 20), cache_bytes(3, 16 << 20)
    sizes = (l2 // 2, max(l3 // (4 * cores), 2 * l2), 4 * l3 // cores)

    def read(rounds: int, data: np.ndarray) -> int:
        return int(library.ck_read(data.ctypes.data, data.nbytes, rounds))

    def multiply(rounds: int, data: np.ndarray) -> int:
        return int(library.ck_multiply_add(rounds))

    reads = [_rate(read, cores, size, samples) for size in sizes]
    flops = [_rate(multiply, number, 0, samples) for number in (1, cores)]
    return Ceilings(*flops, *reads)


def cache_bytes(level: int, otherwise: int) -> int:
    """The size in bytes of a cache of the first core."""
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if int((folder / "level").read_text()) == level:
                return int((folder / "size").read_text().strip().rstrip("K")) << 10
        except (OSError, ValueError):
            continue
    return otherwise


def _rate(work: Callable[[int, np.ndarray], int], threads: int, size: int, samples: int) -> float:
    """Units of work per second of several threads together, each on `size` bytes of its own.

    work: executes a number of rounds and returns the amount of work done.
    """
    arrays = [np.ones(max(size // 4, 1), np.float32) for _ in range(threads)]
    rounds, seconds = 1, 0.0
    while True:
        start = time.perf_counter()
        work(rounds, arrays[0])
        seconds = time.perf_counter() - start
        if seconds > SECONDS / 4:
            break
        rounds *= 4
    rounds = max(math.ceil(rounds * SECONDS / seconds), 1)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(samples):
            start = time.perf_counter()
            done = sum(pool.map(lambda data: work(rounds, data), arrays))
            best = max(best, done / (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    print(measure())
