"""Measures the processor of this machine once, and stores the result on disk.

What is planned does not depend on it, only prices do, so nobody waits for it: the background measures when
it has nothing else to do. A processor that other work disturbs seems slower than it is, so each figure is
that of the fastest of several tries.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from jax_cocktail import cache
from jax_cocktail.build.host import build_program, host_toolchain
from jax_cocktail.build.library import open_library
from jax_cocktail.device import processor
from jax_cocktail.device.host import Figures, HostSpec
from jax_cocktail.device.store import FOLDER
from jax_cocktail.errors import BuildError
from jax_cocktail.records import Store
from jax_cocktail.utask.operators import KINDS

TRIES, TRY_SECONDS = 5, 4e-3
MOST_BYTES = 192 << 20  # of the array that lies in memory
LEAST_BEYOND = 1.5  # times the last cache
USED = 0.6, 0.6, 0.25  # of a cache; other cores and other processes use the last one, too
LOCK_SECONDS = 5.0
_ROWS, _COLUMNS, _DEPTH = 48, 512, 256  # a product whose factors stay in the second cache
_BATCHES, _SIGNALS = 100, 100  # a batch may wait for a core that does something else
_MOST_NANOSECONDS = 100_000_000  # of them all: two threads may have one core

# Eight sums keep a core from waiting for additions.
SOURCE = f"""
#include "cocktail_units.h"
#include "cocktail_clock.h"
#include "cocktail_dot.h"
#include "cocktail_math.h"
CK_EXPORT f32 read_lines(const f32* x, i64 n, i64 times) {{
  constexpr i64 lanes = CkVector<f32, CK_VECTOR_BYTES>::lanes;
  typename CkVector<f32, CK_VECTOR_BYTES>::type sum[8] = {{}};
  for (i64 t = 0; t < times; ++t) {{
    for (i64 i = 0; i + 8 * lanes <= n; i += 8 * lanes) {{
      CK_UNROLL
      for (int l = 0; l < 8; ++l) sum[l] += ck_load<f32, CK_VECTOR_BYTES>(x + i + l * lanes);
    }}
  }}
  f32 kept[8 * lanes], all = 0;
  __builtin_memcpy(kept, sum, sizeof(kept));
  for (i64 i = 0; i < 8 * lanes; ++i) all += kept[i];
  return all;
}}
CK_EXPORT void multiply(const f32* a, const f32* b, f32* o, i64 times) {{
  for (i64 t = 0; t < times; ++t) {{
    ck_dot_fixed<f32, f32, f32, {_ROWS}, {_COLUMNS}, {_DEPTH}, {_DEPTH}, 1, 16, kCkPanels, {_COLUMNS}, 1>(
        1, a, 0, b, 0, o, 0);
  }}
}}
CK_EXPORT void exponentials(const f32* x, f32* y, i64 n, i64 times) {{
  for (i64 t = 0; t < times; ++t) {{
    CK_LANES
    for (i64 i = 0; i < n; ++i) y[i] = ck_exp(x[i]);
  }}
}}
CK_EXPORT void signal(i64* turn, i64 mine, i64 batches, i64 each, i64* fastest) {{
  const u64 end = ck_wall() + {_MOST_NANOSECONDS};
  i64 round = 0;
  for (i64 k = 0; k < batches; ++k) {{
    const u64 start = ck_wall();
    for (i64 t = 0; t < each; ++t, ++round) {{
      for (i64 spins = 1;; ++spins) {{
        const i64 seen = __atomic_load_n(turn, __ATOMIC_ACQUIRE);
        if (seen == 2 * round + mine) break;
        if (seen < 0) return;
        if (spins % 1024 == 0 && ck_wall() > end) return __atomic_store_n(turn, i64(-1), __ATOMIC_RELEASE);
      }}
      __atomic_store_n(turn, 2 * round + mine + 1, __ATOMIC_RELEASE);
    }}
    const i64 passed = i64(ck_wall() - start);
    if (k > 0 && passed < *fastest) *fastest = passed;
  }}
}}
CK_EXPORT void ck_program() {{}}
"""


_STORE = Store(Figures, FOLDER, "host-")


def host(measured: bool = True) -> HostSpec:
    """The figures of this machine: measured ones, if there are any and they are wanted, else the table's."""
    table = processor.table_spec()
    found = _known(str(cache.cache_dir())) if measured else None
    return table if found is None else table.with_figures(found)


def is_measured() -> bool:
    """True if the figures have been stored."""
    return _known(str(cache.cache_dir())) is not None


@functools.lru_cache(maxsize=4)
def _known(folder: str) -> Figures | None:
    """The figures in the cache folder when this process asked first: prices do not change while it runs."""
    del folder  # where `_STORE` looks
    return _STORE.load(processor.name())


def measure_once() -> None:
    """Measures this machine, unless that has been done or another process does it. Later processes use the
    figures. Raises BuildError."""
    with cache.one_at_a_time(FOLDER, f"host-{processor.name()}", LOCK_SECONDS) as ours:
        if ours and _STORE.load(processor.name()) is None:
            _STORE.store(processor.name(), measured())


def measured() -> Figures:
    """The figures of this machine, now. It takes a second or two. Raises BuildError."""
    try:
        library = open_library(build_program(SOURCE, host_toolchain()).path)
    except OSError as error:
        raise BuildError(f"the program that measures the processor cannot be loaded ({error})") from error
    library.read_lines.restype = ctypes.c_float
    levels = processor.table_spec().levels
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    sizes = (int(size * share) for (size, _), share in zip(levels, USED, strict=True))
    near, middle, far = (_reads(library, size) for size in sizes)
    beyond = min(int(levels[-1][0] * LEAST_BEYOND), MOST_BYTES)
    memory, memory_all = _reads(library, beyond), _reads_together(library, beyond, max(len(cores), 1))
    crossing = _signals(library) if len(cores) > 1 else processor.table_spec().barrier_seconds
    return Figures(near, middle, far, memory, memory_all, _products(library), _elements(library), crossing)


def _fastest(run: Callable[[int], object]) -> float:
    """Seconds of one execution: `run` executes so many, and returns when all are done."""
    run(1)
    start = time.perf_counter()
    run(1)
    times = max(1, int(TRY_SECONDS / max(time.perf_counter() - start, 1e-7)))
    best = float("inf")
    for _ in range(TRIES):
        start = time.perf_counter()
        run(times)
        best = min(best, (time.perf_counter() - start) / times)
    return max(best, 1e-9)


def _aligned(elements: int) -> np.ndarray:
    """float32 ones that begin with a page."""
    array = np.ones(elements + 1024, np.float32)
    begin = (-array.ctypes.data % 4096) // 4
    return array[begin : begin + elements]


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _reads(library: ctypes.CDLL, size: int) -> float:
    """Bytes per second that a core rereads of so many."""
    array = _aligned(size // 4)
    read = partial(library.read_lines, _pointer(array), ctypes.c_int64(array.size))
    return array.nbytes / _fastest(lambda times: read(ctypes.c_int64(times)))


def _reads_together(library: ctypes.CDLL, size: int, cores: int) -> float:
    """Bytes per second that all cores together read of so many, each its part."""
    array = _aligned(size // 4)
    parts = np.array_split(array, cores)

    def run(times: int) -> None:
        _together(
            [
                partial(library.read_lines, _pointer(p), ctypes.c_int64(p.size), ctypes.c_int64(times))
                for p in parts
            ]
        )

    return array.nbytes / _fastest(run)


def _together(works: Sequence[Callable[[], object]]) -> None:
    """Runs all at once, each on a thread."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _products(library: ctypes.CDLL) -> float:
    """Flops per second of a product whose right factor lies in panels."""
    a, b, o = _aligned(_ROWS * _DEPTH), _aligned(_DEPTH * _COLUMNS), _aligned(_ROWS * _COLUMNS)
    run = partial(library.multiply, *map(_pointer, (a, b, o)))
    return 2 * _ROWS * _COLUMNS * _DEPTH / _fastest(lambda times: run(ctypes.c_int64(times)))


def _elements(library: ctypes.CDLL) -> float:
    """Flops per second of element operators, of which an exponential has as many as its price says."""
    x = _aligned(2048)
    y = np.empty_like(x)
    run = partial(library.exponentials, _pointer(x), _pointer(y), ctypes.c_int64(x.size))
    return x.size * KINDS["exp"].cost / _fastest(lambda times: run(ctypes.c_int64(times)))


def _signals(library: ctypes.CDLL) -> float:
    """Seconds until a core sees what another one has written, and back: a barrier of two."""
    turn, fastest = np.zeros(16, np.int64), np.full((2, 16), 1 << 40, np.int64)
    counts = ctypes.c_int64(_BATCHES), ctypes.c_int64(_SIGNALS)
    works = [
        partial(library.signal, _pointer(turn), ctypes.c_int64(mine), *counts, _pointer(fastest[mine]))
        for mine in (0, 1)
    ]
    _together(works)
    return float(np.min(fastest)) * 1e-9 / _SIGNALS  # implausible if no batch has ended
