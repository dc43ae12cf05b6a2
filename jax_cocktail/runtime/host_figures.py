"""Measures the processor of this machine once, and stores the result on disk.

What is planned does not depend on it, only prices do: the background measures when it has nothing else to
do, or a call that compiles now before it plans. A processor that other work disturbs seems slower than it
is. So each figure is that of the fastest of several tries, and nothing is stored if other processes held the
cores meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
import threading
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

Run = Callable[[int, int], int]  # (executions, tries) to the nanoseconds of the fastest try
Load = Callable[[], float]  # the fraction of the cores that other processes have held

TRIES, TRY_SECONDS = 5, 4e-3
MOST_BYTES = 192 << 20  # of the array that lies in memory
BEYOND = 1.5  # times the last cache
USED = 0.6, 0.6, 0.25  # of a cache; other cores and other processes use the last one, too
MOST_TOGETHER = 4  # cores that read at once; the parts of more would lie in their own caches
MOST_LOAD = 0.1
_ROWS, _COLUMNS, _DEPTH = 48, 512, 256  # a product whose factors stay in the second cache
_BATCHES, _SIGNALS = 100, 100  # a batch may wait for a core that does something else
_MOST_NANOSECONDS = 100_000_000  # of them all: two threads may have one core

# Eight sums keep a core from waiting for additions. Python would wait for its lock before it took a time.
SOURCE = f"""
#include "cocktail_units.h"
#include "cocktail_clock.h"
#include "cocktail_dot.h"
#include "cocktail_math.h"
template <class F>
CK_INLINE i64 fastest(i64 times, i64 tries, F execute) {{
  i64 best = i64(1) << 60;
  for (i64 k = 0; k < tries; ++k) {{
    const u64 start = ck_wall();
    for (i64 t = 0; t < times; ++t) {{
      execute();
      __asm__ volatile("" ::: "memory");
    }}
    const i64 passed = i64(ck_wall() - start);
    if (passed < best) best = passed;
  }}
  return best;
}}
CK_EXPORT i64 read_lines(const f32* x, i64 n, i64 times, i64 tries) {{
  typedef CkVector<f32, CK_VECTOR_BYTES> V;
  typename V::type sum[8] = {{}};
  f32 kept[8 * V::lanes];
  return fastest(times, tries, [&] {{
    for (i64 i = 0; i + 8 * V::lanes <= n; i += 8 * V::lanes) {{
      CK_UNROLL
      for (int l = 0; l < 8; ++l) sum[l] += ck_load<f32, CK_VECTOR_BYTES>(x + i + l * V::lanes);
    }}
    __builtin_memcpy(kept, sum, sizeof(kept));
    __asm__ volatile("" : : "r"(kept) : "memory");
  }});
}}
CK_EXPORT i64 multiply(const f32* a, const f32* b, f32* o, i64 times, i64 tries) {{
  return fastest(times, tries, [&] {{
    ck_dot_fixed<f32, f32, f32, {_ROWS}, {_COLUMNS}, {_DEPTH}, {_DEPTH}, 1, 16, kCkPanels, {_COLUMNS}, 1>(
        1, a, 0, b, 0, o, 0);
  }});
}}
CK_EXPORT i64 exponentials(const f32* x, f32* y, i64 n, i64 times, i64 tries) {{
  return fastest(times, tries, [&] {{
    CK_LANES
    for (i64 i = 0; i < n; ++i) y[i] = ck_exp(x[i]);
  }});
}}
CK_EXPORT void signal(i64* turn, i64 mine, i64 batches, i64 each, i64* best) {{
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
    if (k > 0 && passed < *best) *best = passed;
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
    return _STORE.load(_name())


def _name() -> str:
    return processor.name(processor.cores())


def measure_once(watch: Callable[[], Load] = lambda: lambda: 0.0) -> None:
    """Measures this machine, unless that has been done, another process does it, or nothing can be stored.
    Later processes use the figures.

    `watch` begins to watch the load of other processes: if it is high, nothing is stored. A compiler that is
    told to compile for another processor is not used. Raises BuildError.
    """
    if cache.problem() or host_toolchain().processor.startswith("-march"):
        return
    with cache.one_at_a_time(FOLDER, f"host-{_name()}", 0.0) as ours:
        if not ours or _STORE.load(_name()) is not None:
            return
        _library()
        load = watch()
        found = measured()
        if load() < MOST_LOAD:
            _STORE.store(_name(), found)


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = open_library(build_program(SOURCE, host_toolchain()).path)
    except OSError as error:
        raise BuildError(f"the program that measures the processor cannot be loaded ({error})") from error
    for name in ("read_lines", "multiply", "exponentials"):
        getattr(library, name).restype = ctypes.c_int64
    return library


def measured() -> Figures:
    """The figures of this machine, now: half of a second to compile, and a sixth to measure. Raises
    BuildError."""
    levels, cores = processor.table_spec().levels, processor.cores()
    sizes = (int(size * share) for (size, _), share in zip(levels, USED, strict=True))
    near, middle, far = map(_reads, sizes)
    beyond, memory, memory_all = int(levels[-1][0] * BEYOND), 0.0, 0.0
    if processor.cache_sizes()[-1] and beyond <= MOST_BYTES:  # else it may be the cache's rate
        memory = _reads(beyond)
        memory_all = _reads_together(beyond, cores) if cores <= MOST_TOGETHER else 0.0
    crossing = _signals() if cores > 1 else 0.0
    return Figures(near, middle, far, memory, memory_all, _products(), _elements(), crossing)


def _seconds(run: Run) -> float:
    """Seconds of one execution."""
    once = max(run(1, 2), 1) * 1e-9
    times = max(1, int(TRY_SECONDS / once))
    return max(run(times, TRIES), 1) * 1e-9 / times


def _runner(function: Callable[..., int], *arguments: np.ndarray | int) -> Run:
    """Calls a function with arrays, which it keeps alive, and numbers of 64 bits."""

    def run(times: int, tries: int) -> int:
        words = [ctypes.c_int64(a) if isinstance(a, int) else _pointer(a) for a in arguments]
        return function(*words, ctypes.c_int64(times), ctypes.c_int64(tries))

    return run


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _aligned(elements: int) -> np.ndarray:
    """float32 ones that begin with a page."""
    array = np.ones(elements + 1024, np.float32)
    begin = (-array.ctypes.data % 4096) // 4
    return array[begin : begin + elements]


def _reads(size: int) -> float:
    """Bytes per second that a core rereads of so many."""
    array = _aligned(size // 4)
    return array.nbytes / _seconds(_runner(_library().read_lines, array, array.size))


def _reads_together(size: int, cores: int) -> float:
    """Bytes per second that all cores together read of so many, each its part."""
    array = _aligned(size // 4)
    runs = [_runner(_library().read_lines, part, part.size) for part in np.array_split(array, cores)]

    def run(times: int, tries: int) -> int:
        found = [0] * cores

        def one(number: int) -> None:
            found[number] = runs[number](times, tries)

        _together([partial(one, number) for number in range(cores)])
        return max(found)

    return array.nbytes / _seconds(run)


def _together(works: Sequence[Callable[[], object]]) -> None:
    """Runs all at once, each on a thread."""
    started: list[threading.Thread] = []
    try:
        for work in works:
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            started.append(thread)
    finally:  # they read what the caller owns
        for thread in started:
            thread.join()


def _products() -> float:
    """Flops per second of a product whose right factor lies in panels."""
    arrays = _aligned(_ROWS * _DEPTH), _aligned(_DEPTH * _COLUMNS), _aligned(_ROWS * _COLUMNS)
    return 2 * _ROWS * _COLUMNS * _DEPTH / _seconds(_runner(_library().multiply, *arrays))


def _elements() -> float:
    """Flops per second of element operators, of which an exponential has as many as its price says."""
    x = _aligned(2048)
    run = _runner(_library().exponentials, x, np.empty_like(x), x.size)
    return x.size * KINDS["exp"].cost / _seconds(run)


def _signals() -> float:
    """Seconds until a core sees what another one has written, and back: a barrier of two."""
    turn, best = np.zeros(16, np.int64), np.full((2, 16), 1 << 40, np.int64)
    counts = ctypes.c_int64(_BATCHES), ctypes.c_int64(_SIGNALS)

    def side(mine: int) -> None:
        _library().signal(_pointer(turn), ctypes.c_int64(mine), *counts, _pointer(best[mine]))

    _together([partial(side, 0), partial(side, 1)])
    return float(np.min(best)) * 1e-9 / _SIGNALS  # implausible if no batch has ended
