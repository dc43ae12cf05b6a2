"""The kernels of `cuda_src/micro.cu`: their launch parameters and expected results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax_cocktail.build.job import source_folder
from jax_cocktail.codegen.gpu import LINE_BYTES, header_bytes
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.exchange import WORD_BYTES

Array = np.ndarray[Any, Any]

SPIN_LIMIT = 1 << 24  # polls before a wait fails the launch, after some seconds
WORDS = BLOCK.exchange_bytes // WORD_BYTES
SHARED_BYTES = 64 << 10
THREADS = BLOCK.threads
_SIGNALS, _TAGGED, _MOST_UNITS = 2, 2 * WORDS, 1024
HEADER_BYTES = header_bytes(_TAGGED, 1 + _SIGNALS)
WORKSPACE_BYTES = HEADER_BYTES + LINE_BYTES * _MOST_UNITS  # the header and a cache line for each unit


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of `micro.cu`. `name`: its name without `ck_micro_`; `scratch`: bytes of shared memory per
    block; `floats`: its results are float32, not uint32."""

    name: str
    scratch: int = 4096
    floats: bool = False


EMPTY = Kernel("empty")
BARRIER = Kernel("barrier")
BARRIER_CHECKED = Kernel("barrier_checked")
CLUSTER = Kernel("cluster")
FLAG = Kernel("flag")
TAGGED = Kernel("tagged")
GATHER = Kernel("gather")
READ = Kernel("read", floats=True)
SHARED = Kernel("shared", scratch=SHARED_BYTES, floats=True)
FMA = Kernel("fma", floats=True)
KERNELS = (EMPTY, BARRIER, BARRIER_CHECKED, CLUSTER, FLAG, TAGGED, GATHER, READ, SHARED, FMA)


def text(threads: int = THREADS) -> str:
    """The complete CUDA text. One program holds all kernels and compiles in the time of two."""
    numbers = {
        "CK_THREADS": threads,
        "CK_SCRATCH_BYTES": SHARED_BYTES,
        "CK_OPERANDS": 2,
        "CK_RESULTS": 1,
        "CK_MOST_UNITS": _MOST_UNITS,
        "CK_SHARED_BYTES": LINE_BYTES * _MOST_UNITS,
        "CK_OWN_BYTES": 0,
        "CK_RESIDENT_BYTES": 0,
        "CK_TAGGED_WORDS": _TAGGED,
        "CK_SIGNALS": _SIGNALS,
        "CK_SPIN_LIMIT": SPIN_LIMIT,
        **{f"MICRO_{kernel.name.upper()}": number for number, kernel in enumerate(KERNELS)},
    }
    lines = [f"#define {name} {value}" for name, value in numbers.items()]
    source = source_folder("cuda_src") / "micro.cu"
    return "\n".join([*lines, source.read_text(encoding="utf-8")])


@dataclass(frozen=True, slots=True)
class MicroRun:
    """One launch. `rounds`: repetitions of the measured operation; `size`: as defined in `micro.cu`; `data`:
    operand 1, float32 in groups of four, repeated `tiles` times; `threads`: the block size that the text was
    compiled for; `cluster`: the number of blocks per cluster."""

    kernel: Kernel
    units: int
    rounds: int
    data: Array
    size: int = 0
    tiles: int = 1
    threads: int = THREADS
    cluster: int = 1

    @property
    def numbers(self) -> Array:
        """Operand 0: the numbers that control the kernel."""
        return np.asarray((self.rounds, KERNELS.index(self.kernel), self.size), np.int64)

    def result(self) -> Array:
        """A zero array with the type and shape of the kernel's result."""
        lanes = self.units * self.threads
        return np.zeros(max(lanes, 2 * WORDS), np.float32 if self.kernel.floats else np.uint32)

    def problem(self, result: Array) -> str:
        """The error in a result, or ""."""
        expected = _EXPECTED[self.kernel.name](self)
        if self.kernel.floats:
            lanes = self.units * self.threads
            good = np.allclose(np.sum(result[:lanes], dtype=np.float64), expected, rtol=1e-3)
        else:
            good = np.array_equal(result[: expected.size], expected)
        return "" if good else f"{self.kernel.name} on {self.units} units computed something else"


def _rounds(run: MicroRun) -> Array:
    return np.full(run.units, run.rounds, np.uint32)


def _tagged(run: MicroRun) -> Array:
    values = np.arange(run.size, dtype=np.uint32) + np.uint32(run.rounds)
    return np.concatenate([values, values])


def _gather(run: MicroRun) -> Array:
    return np.arange(run.size // run.units * run.units, dtype=np.uint32) + np.uint32(run.rounds)


def _read(run: MicroRun) -> Array:
    return np.sum(run.data, dtype=np.float64) * run.tiles * np.asarray(run.rounds)


def _shared(run: MicroRun) -> Array:
    return np.sum(run.data[: SHARED_BYTES // 4], dtype=np.float64) * run.units * np.asarray(run.rounds)


def _fma(run: MicroRun) -> Array:
    factor, term = run.data[:2].astype(np.float64)
    chains = np.arange(8, dtype=np.float64)
    for _ in range(min(16 * run.rounds, 4096)):  # the chains have converged long before
        chains = chains * factor + term
    return np.sum(chains) * np.asarray(run.units * run.threads)


_EXPECTED: dict[str, Callable[[MicroRun], Array]] = {
    "empty": lambda run: np.zeros(run.units, np.uint32),
    "barrier": _rounds,
    "barrier_checked": _rounds,
    "cluster": _rounds,
    "flag": _rounds,
    "tagged": _tagged,
    "gather": _gather,
    "read": _read,
    "shared": _shared,
    "fma": _fma,
}


def pattern(size: int) -> Array:
    """Multiples of one half, whose sums stay exact."""
    return np.resize((np.arange(4096 * 7) % 7).astype(np.float32) * np.float32(0.5), size)


NO_DATA = np.zeros(4, np.float32)


def chains() -> Array:
    """The factor and the term of converging chains of multiply-adds."""
    return np.array([0.5, 0.25, 0, 0], np.float32)
