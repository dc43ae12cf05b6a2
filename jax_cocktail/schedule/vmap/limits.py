"""The thresholds of `recover`, measured on two AVX-512 cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Attributes:
    slots: batch elements computed together if each is small.
    rows: batch elements computed together if they share the read of weights.
    element_bytes: size from which one batch element fills vector registers by itself.
    slot_bytes: most bytes of carries in all slots together.
    rounds: batch elements per slot of a part, so that few slots are idle at its end.
    branch_flops: work of a side, per batch element, from which only the elements that take it compute it.
    parallel_flops: work of a side, for the whole batch, from which it is divided over the units.
    """

    slots: int = 16
    rows: int = 8
    element_bytes: int = 256
    slot_bytes: int = 16 << 10
    rounds: int = 8
    branch_flops: float = 4096.0
    parallel_flops: float = 1 << 20


DEFAULTS = Limits()
