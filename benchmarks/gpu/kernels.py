"""The programs of `micro.cu`: one kernel each, with the numbers that it is compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("micro.cu")
SPIN_LIMIT = 1 << 24  # polls in vain, some seconds: a wait that never ends fails the launch


@dataclass(frozen=True, slots=True)
class Kernel:
    """A program of `micro.cu`.

    name: of its function, without `ck_micro_`. threads: of a block; scratch: bytes of shared memory; tagged:
    words of exchanges; signals: flags; clusters: needs compute capability 9.0.
    """

    name: str
    threads: int = 256
    scratch: int = 4096
    tagged: int = 0
    signals: int = 0
    most_units: int = 1024
    clusters: bool = False

    @property
    def text(self) -> str:
        """CUDA text, complete."""
        numbers = {
            "MICRO": f"ck_micro_{self.name}",
            "CK_THREADS": self.threads,
            "CK_SCRATCH_BYTES": self.scratch,
            "CK_OPERANDS": 2,
            "CK_RESULTS": 1,
            "CK_MOST_UNITS": self.most_units,
            "CK_SHARED_BYTES": 128 * self.most_units,
            "CK_OWN_BYTES": 0,
            "CK_RESIDENT_BYTES": 0,
            "CK_TAGGED_WORDS": self.tagged,
            "CK_SIGNALS": self.signals,
            "CK_SPIN_LIMIT": SPIN_LIMIT,
        }
        lines = [f"#define {name} {value}" for name, value in numbers.items()]
        return "\n".join([*lines, SOURCE.read_text(encoding="utf-8")])

    @property
    def header_bytes(self) -> int:
        """CK_HEADER_BYTES of cocktail_units.h."""
        return (128 * (1 + self.signals) + 16 * self.tagged + 255) // 256 * 256

    @property
    def workspace_bytes(self) -> int:
        """The header and a line for each unit."""
        return self.header_bytes + 128 * self.most_units


WORDS = 1024  # 4 KiB, the most that travels in tagged words
SHARED_BYTES = 64 << 10

EMPTY = Kernel("empty")
BARRIER = Kernel("barrier")
BARRIER_CHECKED = Kernel("barrier_checked")
CLUSTER = Kernel("cluster", clusters=True)
FLAG = Kernel("flag", signals=2)
TAGGED = Kernel("tagged", tagged=2 * WORDS)
GATHER = Kernel("gather", tagged=WORDS)
READ = Kernel("read")
SHARED = Kernel("shared", scratch=SHARED_BYTES)
FMA = Kernel("fma")
KERNELS = (EMPTY, BARRIER, BARRIER_CHECKED, CLUSTER, FLAG, TAGGED, GATHER, READ, SHARED, FMA)


@dataclass(frozen=True, slots=True)
class Run:
    """One launch of a kernel. `numbers`: what it reads as operand 0 (rounds first); `data`: operand 1,
    float32 in groups of four; `cluster`: blocks of a cluster."""

    kernel: Kernel
    units: int
    numbers: tuple[int, ...]
    data: np.ndarray
    cluster: int = 1

    def result(self) -> np.ndarray:
        """An array as the kernel writes it, zeros."""
        lanes = self.units * self.kernel.threads
        return np.zeros(max(lanes, 2 * WORDS), np.float32 if self.kernel.name in _FLOATS else np.uint32)

    def problem(self, result: np.ndarray) -> str:
        """What is wrong with a result, or ""."""
        expected = _EXPECTED[self.kernel.name](self)
        if self.kernel.name in _FLOATS:
            lanes = self.units * self.kernel.threads
            good = np.allclose(np.sum(result[:lanes], dtype=np.float64), expected, rtol=1e-3)
        else:
            good = np.array_equal(result[: expected.size], expected)
        return "" if good else f"{self.kernel.name} on {self.units} units computed something else"


def _rounds(run: Run) -> np.ndarray:
    return np.full(run.units, run.numbers[0], np.uint32)


def _tagged(run: Run) -> np.ndarray:
    rounds, words = run.numbers[:2]
    values = np.arange(words, dtype=np.uint32) + np.uint32(rounds)
    return np.concatenate([values, values])


def _gather(run: Run) -> np.ndarray:
    rounds, words = run.numbers[:2]
    return np.arange(words // run.units * run.units, dtype=np.uint32) + np.uint32(rounds)


def _read(run: Run) -> np.float64:
    rounds, groups = run.numbers[:2]
    return np.float64(np.sum(run.data[: 4 * groups], dtype=np.float64) * rounds)


def _shared(run: Run) -> np.float64:
    total = np.sum(run.data[: run.kernel.scratch // 4], dtype=np.float64)
    return np.float64(total * run.numbers[0] * run.units)


def _fma(run: Run) -> np.float64:
    factor, term = run.data[:2].astype(np.float64)
    chains = np.arange(8, dtype=np.float64)
    for _ in range(16 * run.numbers[0]):
        chains = chains * factor + term
    return np.float64(np.sum(chains) * run.units * run.kernel.threads)


_FLOATS = ("read", "shared", "fma")
_EXPECTED = {
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


def pattern(size: int) -> np.ndarray:
    """Multiples of a half, whose sums are exact for long."""
    return np.resize((np.arange(4096 * 7) % 7).astype(np.float32) * np.float32(0.5), size)


def small_runs() -> Sequence[Run]:
    """A little of everything, for the emulation."""
    data = pattern(1 << 15)
    chains = np.array([0.5, 0.25, 0, 0], np.float32)
    small = 4096
    return (
        Run(EMPTY, 2, (3,), data[:4]),
        Run(BARRIER, 1, (3,), data[:4]),
        Run(BARRIER, 3, (4,), data[:4]),
        Run(BARRIER_CHECKED, 3, (4,), data[:4]),
        Run(CLUSTER, 4, (3,), data[:4], cluster=4),
        Run(FLAG, 2, (5,), data[:4]),
        Run(TAGGED, 2, (4, 1), data[:4]),
        Run(TAGGED, 2, (3, 300), data[:4]),
        Run(GATHER, 3, (4, 256), data[:4]),
        Run(READ, 2, (3, small), data[: 4 * small]),
        Run(SHARED, 2, (3,), data[: SHARED_BYTES // 4]),
        Run(FMA, 1, (2,), chains),
    )
