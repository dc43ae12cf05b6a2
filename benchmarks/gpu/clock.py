"""The clock of a card's multiprocessors, measured, and a launch that keeps all of them busy for a while."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.bare import compiled, text_of
from jax_cocktail.runtime.cuda.card import Array, Card, CudaError, Launch

THREADS = 512
SCRATCH_BYTES = 1024
MOST_SECONDS = 60.0
WAKE_SECONDS = 0.15  # before a timing, in which the clock of an idle card rises
SPAN = 200_000  # nanoseconds: many times what the clock of nanoseconds takes for a tick
_MOST_UNITS = 1024
_KERNELS = ("spin", "rate")


def text(threads: int = THREADS) -> str:
    """The complete CUDA text."""
    numbers = {
        "CK_THREADS": threads,
        "CK_SCRATCH_BYTES": SCRATCH_BYTES,
        "CK_OPERANDS": 1,
        "CK_RESULTS": 1,
        "CK_MOST_UNITS": _MOST_UNITS,
        **{f"CLOCK_{kernel.upper()}": number for number, kernel in enumerate(_KERNELS)},
    }
    return text_of(numbers, "clock.cu")


def program(arch: str) -> bytes:
    """The compiled kernels, possibly from the cache. Raises BuildError."""
    return compiled(text(), arch)


def spin(card: Card, binary: bytes, seconds: float) -> float:
    """Keeps all multiprocessors busy for so long, at most a minute. Returns the seconds that passed in the
    first block to end.

    Raises:
      ValueError: no such time.
      CudaError: the launch failed.
    """
    if not 0 < seconds <= MOST_SECONDS:
        raise ValueError(f"{seconds} seconds: more than 0, at most {MOST_SECONDS:g}")
    found = _run(card, binary, "spin", card.facts.attributes["units"], round(seconds * 1e9))
    return float(found[:, 1].min()) * 1e-9


def sm_clock(card: Card, binary: bytes) -> float:
    """The clock of a multiprocessor in Hz, to about 1 %. A card that was idle is slower: `spin` first.

    Raises:
      CudaError: the launch failed, or the clocks stood still.
    """
    return statistics.median(_rate(_run(card, binary, "rate", 1, SPAN)) for _ in range(3))


def awake(
    card: Card, binary: bytes, work: Callable[[], dict[str, Any]], seconds: float = WAKE_SECONDS
) -> dict[str, Any]:
    """Works on a card whose clock has risen, and adds to the record the clock that its multiprocessors have
    afterwards, `sm_clock` in Hz. `card`: one with a stream and memory of its own. Raises CudaError."""
    spin(card, binary, seconds)
    found = work()
    return {**found, "sm_clock": sm_clock(card, binary)}


def _rate(found: Array) -> float:
    clocks, nanoseconds = (int(n) for n in found[0])
    if not clocks or not nanoseconds:
        raise CudaError(f"{clocks} clocks in {nanoseconds} nanoseconds")
    return clocks / nanoseconds * 1e9


def _run(card: Card, binary: bytes, kernel: str, units: int, nanoseconds: int) -> Array:
    function = card.function(card.load(binary), "ck_portable", SCRATCH_BYTES)
    try:
        result = np.zeros((units, 2), np.uint64)
        numbers = card.upload(np.array([_KERNELS.index(kernel), nanoseconds], np.int64))
        address, workspace = card.upload(result), card.allocate(1 << 16)
        pointers = (numbers, address, workspace, 0)
        card.launch(Launch(function, units, THREADS, SCRATCH_BYTES, pointers))
        card.wait()
        return card.download(address, result)
    finally:
        card.release()
