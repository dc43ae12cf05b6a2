"""The clocks of units, and how often each unit runs a part."""

from __future__ import annotations

from math import ceil

import numpy as np
import numpy.typing as npt

Clock = npt.NDArray[np.float64]  # by unit


def turns(first: int, parts: int, units: int) -> Clock:
    """The number of parts that each unit runs; unit `first` runs part 0."""
    found = np.zeros(units)
    for part in range(min(parts, units)):
        found[(first + part) % units] += ceil((parts - part) / units)
    return found
