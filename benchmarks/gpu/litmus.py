"""Litmus tests of the synchronisation between units, by the kernels of `litmus.cu`.

A test repeats a short exchange and counts outcomes that the memory model of PTX forbids: words that are
older than what precedes their load in causality order ("stale"), or that were written after it ("early"). In
the emulation memory is sequentially consistent, so only a card can tell.

- Message passing: block barriers order all threads of a block with its first one, whose release the first
  thread of another block observes by a relaxed poll, which a fence that acquires follows. That holds for the
  barrier of all units and for signals. Tagged words carry their values and release nothing: a value that is
  not that of its tag is forbidden; old plain words beside them are allowed, and counted. The reader has
  those words in its first-level cache, so a card should show some, which proves that the test can see them.
- Store buffering: behind the barrier each of two units sees what the other one wrote before it. Without a
  fence both may see old words, which is counted.
- Independent readers: two of them may disagree about the order of two writers. Only fences that are
  sequentially consistent would forbid that, and signals have none. It is counted, and forbidden is what is
  old behind the next barrier. If all units meet between the two loads of each reader, the disagreement is
  forbidden: what one reader saw before the barrier precedes the other one's load behind it.
- Transitivity: a unit reads what a first one wrote and a second one told it of. The chain of releases orders
  them. If the first one tells by tagged words, what the second one has seen of these precedes what the third
  one loads.
- Early loads: a value that is loaded directly behind a barrier, and used after others, is the new one.
- Resident values: registers and shared memory keep their values over barriers.
- Clusters: as message passing, by the barrier in hardware; to and from the shared memory of another block,
  and through global memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.bare import compiled, text_of
from jax_cocktail.codegen.gpu import LINE_BYTES, header_bytes
from jax_cocktail.runtime.cuda.card import Array, Card, CudaError, Launch, spec_of

THREADS = 256
SPIN_LIMIT = 1 << 22  # polls before a wait fails the launch, after a few seconds
ROUNDS = 25_000  # of about four microseconds
FEWEST_UNITS, MOST_UNITS = 4, 240  # the largest group; two signals of each fit in the header
SCRATCH_BYTES = 16 << 10
HEADER_BYTES = header_bytes(0, 1 + 2 * MOST_UNITS)
_HELD_K, _HELD_N, _EACH, _WORDS = 64, 32, 4, 32  # of litmus.cu
_INVALID_CLUSTER_SIZE = 912  # CUDA_ERROR_INVALID_CLUSTER_SIZE
COMMON_BYTES = 2 * 4 * _HELD_K + 2 * 8 * _EACH * MOST_UNITS


@dataclass(frozen=True, slots=True)
class Litmus:
    """A test. `kind`: its name in `litmus.cu`; `group`: the number of units that a trial takes; `judges`: how
    many of them judge it; `allowed`: what is counted and not forbidden; `cluster`: blocks per cluster."""

    kind: str
    group: int = 1
    judges: int = 1
    allowed: str = ""
    cluster: int = 1


LITMUSES = {
    "message passing, barrier": Litmus("message_barrier", 2),
    "message passing, signal": Litmus("message_signal", 2),
    "message passing, tagged words": Litmus("message_words", 2, 1, "old words beside tagged ones"),
    "exchange of tagged words": Litmus("exchange"),
    "store buffering, barrier": Litmus("store_buffering", 2, 2, "both old without a fence"),
    "independent readers, signals": Litmus("independent_signals", 4, 2, "readers disagreed"),
    "independent readers, barrier": Litmus("independent_barrier", 4, 2, "new before the barrier"),
    "transitivity, signals": Litmus("chain_signals", 3),
    "transitivity, tagged words": Litmus("chain_words", 3),
    "early loads": Litmus("early_loads"),
    "resident values": Litmus("resident"),
    "message passing, cluster of 8": Litmus("cluster", 2, cluster=8),
    "message passing, cluster of 16": Litmus("cluster", 2, cluster=16),
}
_KINDS = tuple(dict.fromkeys(litmus.kind for litmus in LITMUSES.values()))  # in the order of their numbers


def area_bytes(threads: int) -> int:
    """Bytes that a unit of so many threads shows to others."""
    return 2 * 4 * 2 * threads + 2 * 8 * _WORDS + 3 * LINE_BYTES


def text(threads: int = THREADS, spin_limit: int = SPIN_LIMIT) -> str:
    """The complete CUDA text. `spin_limit`: polls before a wait fails the launch."""
    numbers = {
        "CK_THREADS": threads,
        "CK_SCRATCH_BYTES": SCRATCH_BYTES,
        "CK_OPERANDS": 2,
        "CK_RESULTS": 2,
        "CK_MOST_UNITS": MOST_UNITS,
        "CK_SIGNALS": 2 * MOST_UNITS,
        "CK_SPIN_LIMIT": spin_limit,
        "LITMUS_COMMON_BYTES": COMMON_BYTES,
        "LITMUS_AREA_BYTES": area_bytes(threads),
        **{f"LITMUS_{kind.upper()}": number for number, kind in enumerate(_KINDS)},
    }
    return text_of(numbers, "litmus_common.cuh", "litmus.cu")


def program(arch: str) -> bytes:
    """The compiled tests, possibly from the cache. Raises BuildError."""
    return compiled(text(), arch)


def weights() -> Array:
    """Operand 1."""
    return (np.arange(_HELD_K * _HELD_N + MOST_UNITS) * 7 % 11).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Run:
    """A launch of a test with `rounds` trials of each group. `threads`: of the text that was compiled."""

    litmus: Litmus
    units: int
    rounds: int
    threads: int = THREADS

    @property
    def numbers(self) -> Array:
        """Operand 0."""
        return np.array([self.rounds, _KINDS.index(self.litmus.kind)], np.int64)

    @property
    def memory_bytes(self) -> int:
        """Of result 1, which is zero at first."""
        return COMMON_BYTES + self.units * area_bytes(self.threads)

    def counts(self) -> Array:
        """Result 0, which is zero at first."""
        return np.zeros((self.units, 4), np.uint32)

    def record(self, counts: Array) -> dict[str, Any]:
        """The record of the counts. `ok`: nothing forbidden was seen, and every trial was judged."""
        trials, stale, early, allowed = (int(n) for n in counts.sum(axis=0, dtype=np.int64))
        expected = self.rounds * (self.units // self.litmus.group) * self.litmus.judges
        seen = {"stale": stale, "early": early}
        if self.litmus.allowed:
            seen[self.litmus.allowed] = allowed
        ok = stale + early == 0 and trials == expected > 0
        return {"trials": trials, "forbidden": stale + early, "seen": seen, "ok": ok}


def names_of(card: Card) -> tuple[str, ...]:
    """The tests of a card: those of clusters only where there are clusters as large."""
    most = spec_of(card.facts).cluster_units
    return tuple(name for name, litmus in LITMUSES.items() if litmus.cluster <= most)


def measure(card: Card, binary: bytes, name: str, scale: float = 1.0) -> dict[str, Any]:
    """Runs a test on all multiprocessors, for about a tenth of a second with `scale` 1.

    Returns `trials`, as many as were judged; `forbidden`, the number of wrong words; `seen`, the same by kind
    and what is allowed; and `ok`. If the card has no room for a cluster, returns `none` with the reason.

    Raises:
      CudaError: the launch failed, which it also does when a wait does not end; or the blocks do not fit.
    """
    litmus = LITMUSES[name]
    units = min(max(card.facts.attributes["units"], FEWEST_UNITS), MOST_UNITS)
    if litmus.cluster > 1:
        units = max(units // litmus.cluster, 1) * litmus.cluster
    run = Run(litmus, units, max(int(ROUNDS * scale), 4), THREADS)
    try:
        return run.record(_counts(card, binary, run))
    except CudaError as error:
        if error.code != _INVALID_CLUSTER_SIZE:
            raise
        return {"none": str(error)}


def _counts(card: Card, binary: bytes, run: Run) -> Array:
    function, alone = card.function(card.load(binary), "ck_portable", SCRATCH_BYTES), run.litmus.cluster == 1
    try:
        if alone and run.units > (most := card.co_resident(function, run.threads, SCRATCH_BYTES)):
            raise CudaError(f"{run.units} blocks do not fit: at most {most}")
        counts = run.counts()
        memory, workspace = card.allocate(run.memory_bytes), card.allocate(HEADER_BYTES)
        card.fill(memory, 0, run.memory_bytes)
        card.fill(workspace, 0, HEADER_BYTES)
        address = card.upload(counts)
        pointers = (card.upload(run.numbers), card.upload(weights()), address, memory, workspace, 0)
        cluster = run.litmus.cluster
        card.launch(
            Launch(
                function, run.units, run.threads, SCRATCH_BYTES, pointers, cooperative=alone, cluster=cluster
            )
        )
        card.wait()
        return card.download(address, counts)
    finally:
        card.release()
