"""Compares one program under stock XLA, under jax_cocktail, and with its automatic choice between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jax_cocktail import api
from jax_cocktail.models.measure import interleaved_times, largest_difference

NOW = {"compile": "now"}  # no call is timed while a compiler works beside it
COCKTAIL = {**NOW, "force": "cocktail"}
STEPS = ("compiling with stock XLA", "building", "choosing", "timing")  # the steps of one comparison


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of one comparison; times are in seconds.

    Attributes:
      captured: ``"k of n"``: k regions became custom calls, of n with those left to stock XLA.
      choice: the choice of ``jax_cocktail.jit`` without options.
      difference: the largest difference between our results and stock XLA's (see ``largest_difference``).
      stock, ours, auto: the median time of a call under stock XLA, with our calls forced, and without
      options. first_stock, first_ours: the time of the first call, compilation included.
    """

    captured: str
    choice: str
    difference: float
    stock: float
    ours: float
    auto: float
    first_stock: float
    first_ours: float

    @property
    def ratio(self) -> float:
        """Stock time over our time; above 1, ours is faster."""
        return self.stock / self.ours


def compare(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    seconds: float = 2.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Runs and times ``function(*arguments)`` in the three ways, in turn, for about ``seconds``.

    Args:
      progress: called with each of `STEPS` before the step begins.
    """
    stock, ours, auto = jax.jit(function), api.jit(function, options=COCKTAIL), api.jit(function, options=NOW)
    progress(STEPS[0])
    expected, first_stock = _first_call(stock, arguments)
    progress(STEPS[1])
    result, first_ours = _first_call(ours, arguments)
    progress(STEPS[2])
    _first_call(auto, arguments)
    report = api.explain(function)(*arguments)
    progress(STEPS[3])
    runs = [lambda f=f: f(*arguments) for f in (stock, ours, auto)]
    times = interleaved_times(runs, seconds=seconds)
    return Comparison(
        captured=f"{len(report.captured)} of {len(report.captured) + len(report.left)}",
        choice=report.choice,
        difference=largest_difference(result, expected),
        stock=times[0],
        ours=times[1],
        auto=times[2],
        first_stock=first_stock,
        first_ours=first_ours,
    )


def _first_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return result, time.perf_counter() - start
