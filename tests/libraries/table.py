"""The table of programs: what users of other libraries write, small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Made = tuple[Any, ...]  # a function and its arguments


@dataclass(frozen=True, slots=True)
class Program:
    """`make()` imports the library, and gives a function and its arguments."""

    name: str
    library: str
    make: Callable[[], Made]
    tolerance: float


PROGRAMS: list[Program] = []


def program(library: str, tolerance: float = 1e-3) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Adds the decorated maker to the table. The tolerance is relative to a result's largest element."""

    def add(make: Callable[[], Made]) -> Callable[[], Made]:
        PROGRAMS.append(Program(make.__name__, library, make, tolerance))
        return make

    return add
