"""Latencies inside a block, measured by the probes of `latency.cu`: what emulated machine code needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.bare import compiled, text_of
from jax_cocktail.runtime.cuda.card import Array, Card, CudaError, Launch

SHORT, LONG, LINE = 8, 24, 128  # of latency.cu
THREADS = 1024  # the most of a block
SCRATCH_BYTES = (64 << 10) + 16
WARP = 32
VALUES = np.array([1, 0.5, 0, 0], np.float32)

# In the order of their numbers.
KINDS = (
    *("near_load", "far_load", "far_acquire", "shared_load_4", "shared_load_8", "shared_load_16"),
    *("fused_add", "division", "reciprocal", "tanh", "logistic", "remainder", "rounding", "block_barrier"),
    *("shuffle", "matrix", "matrix_step", "call", "loop_turn", "release", "async_copy", "bulk_copy"),
)


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe. `size`: as `latency.cu` says; `memory`: bytes of its memory; `per`: operations in a link of
    the chain; `rounds`: of the loop around the chain."""

    kind: str
    threads: int = WARP
    size: int = 0
    memory: int = 0
    per: int = 1
    rounds: int = 128

    def numbers(self, long: bool) -> Array:
        """Operand 0."""
        return np.array([self.rounds, KINDS.index(self.kind), self.size, long], np.int64)

    @property
    def words(self) -> int:
        """Of result 0."""
        return 2 + self.threads

    def problem(self, result: Array, long: bool) -> str:
        """What is wrong with the end of the chain, or ""."""
        end = result[2 : self.words]
        steps = self.rounds * (LONG if long else SHORT)
        return "" if _ENDS.get(self.kind, _nothing)(self, end, steps) else f"{self.kind} ended elsewhere"


def _nothing(probe: Probe, end: Array, steps: int) -> bool:
    return not end.any()


def _at(probe: Probe, end: Array, steps: int) -> bool:
    lines = probe.size // LINE
    return bool(np.all(end == steps * (lines // 8 * 5 | 1) % lines))


def _turns(probe: Probe, end: Array, steps: int) -> bool:
    """`loop_turn` counts its turns anew in every round."""
    x = 0
    for _ in range(probe.rounds):
        for i in range(steps // probe.rounds * probe.size):
            x = (3 * x + i) & 0xFFFFFFFF
    return bool(np.all(end == x))


def _called(probe: Probe, end: Array, steps: int) -> bool:
    x = probe.size
    for _ in range(steps):
        x = (3 * x + 1) & 0xFFFFFFFF
    return bool(np.all(end == x))


_ONE = int(np.float32(1).view(np.uint32))
_ENDS: dict[str, Callable[[Probe, Array, int], bool]] = {
    **dict.fromkeys(("near_load", "far_load", "far_acquire"), _at),
    **{f"shared_load_{n}": lambda p, end, steps: bool(np.all(end == steps * 21 % 32)) for n in (4, 8, 16)},
    "fused_add": lambda p, end, steps: bool(np.all(np.abs(end.view(np.float32) - 2) < 1e-3)),
    "division": lambda p, end, steps: bool(np.all(end == _ONE)),
    "reciprocal": lambda p, end, steps: bool(np.all(np.abs(end.view(np.float32) - 1) < 1e-3)),
    "tanh": lambda p, end, steps: bool(np.all(end == 1)),
    "logistic": lambda p, end, steps: bool(np.all(end == 1)),
    "remainder": lambda p, end, steps: bool(np.all(end == 3)),
    "rounding": lambda p, end, steps: bool(np.all(end == _ONE + 0x1000 * steps)),
    "shuffle": lambda p, end, steps: bool(np.array_equal(end, np.arange(p.threads) % WARP ^ (steps & 1))),
    "matrix": lambda p, end, steps: bool(np.all(end == 8 * steps)),
    "matrix_step": lambda p, end, steps: bool(np.all(end == 8 * steps)),
    "call": _called,
    "loop_turn": _turns,
}


def probes(l2_bytes: int, clusters: bool) -> dict[str, Probe]:
    """By the names of their figures. `clusters`: the card has bulk copies, too."""
    far = 4 * (1 << (l2_bytes - 1).bit_length())
    found = {
        "load, first-level cache": Probe("near_load", size=4096, memory=4096),
        "load, second-level cache": Probe("far_load", size=4096, memory=4096),
        "load, memory": Probe("far_load", size=far, memory=far, rounds=64),
        "load with acquire": Probe("far_acquire", size=4096, memory=4096),
        **{f"shared load of {n} bytes": Probe(f"shared_load_{n}") for n in (4, 8, 16)},
        "multiply-add": Probe("fused_add"),
        "division": Probe("division"),
        "approximate reciprocal": Probe("reciprocal"),
        "tanh": Probe("tanh"),
        "logistic": Probe("logistic"),
        "integer remainder": Probe("remainder", size=7),
        "rounding to TF32": Probe("rounding"),
        **{f"block barrier, {n} threads": Probe("block_barrier", n) for n in (64, 128, 256, 512, 1024)},
        "shuffle": Probe("shuffle"),
        "matrix product": Probe("matrix"),
        "matrix products of one warp": Probe("matrix_step"),
        "matrix products of 8 warps": Probe("matrix_step", 256, per=8),
        "call and return": Probe("call"),
        "turn of a loop": Probe("loop_turn", size=4, per=4),
        **{
            f"release after {n} stores a lane": Probe("release", WARP, n, LINE * WARP * (n + 2))
            for n in (0, 4, 32)
        },
    }
    ways = ("async_copy", "bulk_copy") if clusters else ("async_copy",)
    for way in ways:
        for size in (1 << 10, 8 << 10, 64 << 10):
            name = f"{way.replace('_', ' ')} of {size >> 10} KiB"
            found[name] = Probe(way, 256, size, size, rounds=16)
    return found


def text(threads: int = THREADS) -> str:
    """The complete CUDA text."""
    numbers = {
        "CK_THREADS": threads,
        "CK_SCRATCH_BYTES": SCRATCH_BYTES,
        "CK_OPERANDS": 2,
        "CK_RESULTS": 2,
        "CK_MOST_UNITS": 1,
        **{f"PROBE_{kind.upper()}": number for number, kind in enumerate(KINDS)},
    }
    return text_of(numbers, "latency.cu")


def program(arch: str) -> bytes:
    """The compiled probes, possibly from the cache. Raises BuildError."""
    return compiled(text(), arch)


def probes_of(card: Card) -> dict[str, Probe]:
    """Those of a card."""
    attributes = card.facts.attributes
    return probes(attributes["l2_bytes"], attributes["major"] >= 9)


def measure(card: Card, binary: bytes, probe: Probe) -> dict[str, Any]:
    """Clocks of one operation. Raises CudaError."""
    function = card.function(card.load(binary), "ck_portable", SCRATCH_BYTES)
    values, memory = card.upload(VALUES), card.allocate(probe.memory)
    workspace = card.allocate(1 << 16)

    def clocks(long: bool) -> int:
        numbers, result = card.upload(probe.numbers(long)), np.zeros(probe.words, np.uint32)
        address = card.upload(result)
        pointers = (numbers, values, address, memory, workspace, 0)
        card.fill(memory, 0, probe.memory)
        card.launch(Launch(function, 1, probe.threads, SCRATCH_BYTES, pointers))
        card.wait()
        if problem := probe.problem(card.download(address, result), long):
            raise CudaError(problem)
        return int(result[:2].view(np.uint64)[0])

    try:
        least = {long: min(clocks(long) for _ in range(3)) for long in (False, True)}
    finally:
        card.release()
    steps = probe.rounds * (LONG - SHORT) * probe.per
    return {"clocks": (least[True] - least[False]) / steps}
