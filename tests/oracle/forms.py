"""Evaluates forms as the runtime does (common_src/runtime_forms.h), in Python's own integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def read(encoded: Sequence[int], shapes: Sequence[Sequence[int]]) -> tuple[list[int], bool]:
    """What the runtime makes of forms: their values, and True if all guards hold."""
    numbers = iter(encoded)
    forms, guards = next(numbers), next(numbers)

    def form() -> int:
        total = 0
        for _ in range(next(numbers)):
            product, factors = next(numbers), next(numbers)
            for _ in range(factors):
                divisor = next(numbers)
                product *= form() // divisor if divisor else shapes[next(numbers)][next(numbers)]
            total += product
        return total

    values = [form() for _ in range(forms)]
    compare: Any = (int.__eq__, int.__ne__, int.__lt__, int.__le__)
    tested = [compare[next(numbers)](values[next(numbers)], values[next(numbers)]) for _ in range(guards)]
    assert next(numbers, None) is None
    return values, all(tested)
