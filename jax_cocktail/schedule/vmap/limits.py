"""When recovering lanes pays: the numbers of `recover`, measured on two AVX-512 cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Attributes:
    slots: lanes side by side if a lane is small.
    rows: lanes side by side if they share the reading of weights.
    lane_bytes: from here one lane fills vector registers by itself.
    slot_bytes: carries that all slots may have together.
    rounds: lanes for each slot of a part, so that few slots are idle at its end.
    branch_flops: work of a side, per lane, from which it is done for its own lanes only.
    parallel_flops: work of a side, all lanes, from which it is divided over the units.
    """

    slots: int = 16
    rows: int = 8
    lane_bytes: int = 256
    slot_bytes: int = 16 << 10
    rounds: int = 8
    branch_flops: float = 4096.0
    parallel_flops: float = 1 << 20


DEFAULTS = Limits()
