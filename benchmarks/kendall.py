"""Kendall's rank correlation of predicted and measured times."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations

Pair = tuple[float, float]  # predicted, measured


def tau(pairs: Iterable[Pair]) -> float:
    """Of all pairs: 1 if the prediction ranks as the measurement does, -1 if it ranks the other way round."""
    return share(combinations(list(pairs), 2))


def share(duels: Iterable[tuple[Pair, Pair]]) -> float:
    """Duels that the prediction decides as the measurement does, less the others, over all; NaN for none."""
    signs = [1 if (a[0] - b[0]) * (a[1] - b[1]) > 0 else -1 for a, b in duels]
    return sum(signs) / len(signs) if signs else math.nan
