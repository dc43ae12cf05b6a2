"""Compares one program under stock XLA, under jax_cocktail, and with its automatic choice between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from jax_cocktail import api
from jax_cocktail.report import Report
from jax_cocktail_tools.models.measure import Timed, interleaved_samples, largest_difference

NOW = {"compile": "now"}  # no call is timed while a compiler works beside it
COCKTAIL = {**NOW, "force": "cocktail"}
SAME = 1e-3  # the largest difference of results that are called the same
STEPS = ("compiling with stock XLA", "building", "choosing", "timing")  # the steps of one comparison


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of one comparison; times are in seconds.

    Attributes:
      captured: ``"k of n"``: k regions became custom calls, of n with those left to stock XLA.
      choice: the choice of ``jax_cocktail.jit`` without options.
      difference: the largest difference between our results and stock XLA's (see ``largest_difference``).
      stock, ours, auto: the median time of a call under stock XLA, with our calls forced, and without
      options. first_stock, first_ours, first_auto: the time of the first call, compilation included; that of
      auto has our programs from the cache. first_others: those of the others.
      timed: the times of all calls under stock XLA, of ours, of auto, and of the others. If `jit` has timed
        several programs of ours, ours is the fastest one.
      report: what `explain` says of the function.
    """

    captured: str
    choice: str
    difference: float
    stock: float
    ours: float
    auto: float
    first_stock: float
    first_ours: float
    first_auto: float
    first_others: tuple[float, ...]
    timed: Timed
    report: Report

    @property
    def ratio(self) -> float:
        """Stock time over our time; above 1, ours is faster."""
        return self.stock / self.ours


def compare(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    seconds: float = 2.0,
    patience: float = 1.0,
    others: Sequence[Callable[..., Any]] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Runs and times ``function(*arguments)`` in the three ways, in turn, for about ``seconds``.

    Args:
      patience: see `interleaved_samples`.
      others: functions of the same arguments with the same results, which stock XLA runs in turn with these.
      progress: called with each of `STEPS` before the step begins.

    Raises:
      ValueError: the results of one of the others are not the same.
    """
    stock, ours, auto = jax.jit(function), api.jit(function, options=COCKTAIL), api.jit(function, options=NOW)
    progress(STEPS[0])
    expected, first_stock = _first_call(stock, arguments)
    progress(STEPS[1])
    result, first_ours = _first_call(ours, arguments)
    progress(STEPS[2])
    _, first_auto = _first_call(auto, arguments)
    report = api.explain(function)(*arguments)
    ours = api.jit(partial(function), options=COCKTAIL)  # the candidate that is now known to be the fastest
    results = result, ours(*arguments)
    beside = [jax.jit(other) for other in others]
    firsts = tuple(_equal(other, arguments, expected) for other in beside)
    progress(STEPS[3])
    runs = [lambda f=f: f(*arguments) for f in (stock, ours, auto, *beside)]
    timed = interleaved_samples(runs, seconds=seconds, patience=patience)
    times = timed.medians
    return Comparison(
        captured=f"{len(report.captured)} of {len(report.captured) + len(report.left)}",
        choice=report.choice,
        difference=max(largest_difference(each, expected) for each in results),
        stock=times[0],
        ours=times[1],
        auto=times[2],
        first_stock=first_stock,
        first_ours=first_ours,
        first_auto=first_auto,
        first_others=firsts,
        timed=timed,
        report=report,
    )


def _equal(function: Callable[..., Any], arguments: tuple[Any, ...], expected: Any) -> float:
    """The time of the first call of a function that has these results. Raises ValueError."""
    result, first = _first_call(function, arguments)
    if not (difference := largest_difference(result, expected)) <= SAME:
        raise ValueError(f"{function.__name__}: its results differ by {difference}")
    return first


def _first_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return result, time.perf_counter() - start
