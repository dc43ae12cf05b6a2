"""Intervals of medians and of their ratios, from samples that were taken in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jax_cocktail_tools.charts import Value

LEVEL = 0.95  # of an interval: how often one like it holds the true value, if the machine stays as it is
RESAMPLES = 1000
_SEED = 20230710


@dataclass(frozen=True, slots=True)
class Interval(Value):
    """A value, and the ends of its interval, as charts show it."""

    def overlaps(self, other: Interval) -> bool:
        """True if both may be the same value."""
        return self.low <= other.high and other.low <= self.high


def median_interval(samples: Sequence[float]) -> Interval:
    """The median of samples, by the bootstrap of `ratio_interval`."""
    return ratio_interval(samples, np.ones(len(samples)))


def ratio_interval(above: Sequence[float] | np.ndarray, below: Sequence[float] | np.ndarray) -> Interval:
    """The ratio of two medians, of samples from the same rounds.

    A bootstrap draws rounds, not samples: what slows a round slows both. It draws blocks of adjacent rounds,
    as disturbances last for several. The figures are the same in every run.

    Raises:
      ValueError: there are no samples, or not as many of both.
    """
    first, second = np.asarray(above, float), np.asarray(below, float)
    count = len(first)
    if not count or count != len(second):
        raise ValueError(f"{count} and {len(second)} samples make no ratio")
    block = max(round(count ** (1 / 3)), 1)
    starts = np.random.default_rng(_SEED).integers(count, size=(RESAMPLES, -(-count // block)))
    drawn = (starts[:, :, None] + np.arange(block)).reshape(RESAMPLES, -1)[:, :count] % count
    ratios = np.median(first[drawn], axis=1) / np.median(second[drawn], axis=1)
    low, high = np.quantile(ratios, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    middle = float(np.median(first) / np.median(second))
    return Interval(middle, min(float(low), middle), max(float(high), middle))
