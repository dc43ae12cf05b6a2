"""Compares and times runs of one function under several compilers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax
import numpy as np

from jax_cocktail.lowering.run.stopwatch import BUSY, Watch


def largest_difference(left: Any, right: Any) -> float:
    """Largest |left - right| of any leaf over max(1, largest |right|); infinite if integers differ."""
    worst = 0.0
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    for a, b in ((np.asarray(a), np.asarray(b)) for a, b in pairs):
        if a.shape != b.shape:
            raise ValueError(f"results have shapes {a.shape} and {b.shape}")
        if not np.issubdtype(b.dtype, np.floating):
            worst = max(worst, 0.0 if np.array_equal(a, b) else float("inf"))
        elif a.size:
            a64, b64 = a.astype(np.float64), b.astype(np.float64)
            same = (a64 == b64) | (np.isnan(a64) & np.isnan(b64))
            gap = np.where(same, 0.0, np.abs(a64 - b64))
            scale = max(1.0, float(np.max(np.abs(b64), where=np.isfinite(b64), initial=0.0)))
            worst = max(worst, float("inf") if np.isnan(gap).any() else float(gap.max()) / scale)
    return worst


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of functions that ran in turn.

    Attributes:
      samples: the seconds of each function's calls, one or more in every round.
      others: the fraction of our cores that other processes held meanwhile.
    """

    samples: tuple[tuple[float, ...], ...]
    others: float

    @property
    def medians(self) -> tuple[float, ...]:
        """The median seconds of each function."""
        return tuple(float(np.median(times)) for times in self.samples)

    @property
    def fastest(self) -> tuple[float, ...]:
        """The least seconds of each function."""
        return tuple(map(min, self.samples))


def interleaved_times(
    functions: Sequence[Callable[[], Any]], *, seconds: float = 2.0, least: int = 5, most: int = 400
) -> tuple[float, ...]:
    """The median seconds of each function, see `interleaved_samples`."""
    return interleaved_samples(functions, seconds=seconds, least=least, most=most).medians


def interleaved_samples(
    functions: Sequence[Callable[[], Any]],
    *,
    seconds: float = 2.0,
    least: int = 5,
    most: int = 400,
    patience: float = 1.0,
    rest: float = 0.0,
) -> Timed:
    """Times functions that run in turn, so that a drift of the machine affects all of them.

    Args:
      functions: closures that start the work and return arrays to wait for.
      seconds: the time to spend in total, with at least ``least`` and at most ``most`` rounds.
      patience: the time is longer by this factor while other processes hold the cores.
      rest: the seconds of a pause before a function's turn, in which the threads of other libraries stop
        waiting for work in a loop. Then come calls for as long, of which the first does not count.
    """
    samples: list[list[float]] = [[] for _ in functions]
    for function in functions:
        jax.block_until_ready(function())
    watch = Watch()
    for turn in count():
        if turn >= least and (turn >= most or not _goes_on(watch, seconds, patience)):
            break
        for k in range(len(functions)):
            which = (k + turn) % len(functions)
            samples[which] += _turn(functions[which], rest)
    return Timed(tuple(map(tuple, samples)), watch.others())


def _turn(function: Callable[[], Any], rest: float) -> list[float]:
    """The seconds of the calls of a turn."""
    if rest:
        time.sleep(rest)
        jax.block_until_ready(function())
    found, begin = list[float](), time.perf_counter()
    while not found or time.perf_counter() - begin < rest:
        start = time.perf_counter()
        jax.block_until_ready(function())
        found.append(time.perf_counter() - start)
    return found


def _goes_on(watch: Watch, seconds: float, patience: float) -> bool:
    if watch.seconds() < seconds:
        return True
    return watch.seconds() < seconds * patience and watch.others() >= BUSY
