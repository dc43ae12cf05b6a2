"""The table of programs: what users of other libraries write, small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Made = tuple[Any, ...]  # a function and its arguments


@dataclass(frozen=True, slots=True)
class Program:
    """`make()` imports the library, and gives a function and its arguments.

    Attributes:
      library: the name by which it is imported.
      loops: the least number of outermost loops that are captured.
      tolerance: the largest difference from stock XLA, relative to a result's largest element.
      in_ci: `.ci/long` runs it. The others take long, or resemble one that it runs.
    """

    name: str
    library: str
    make: Callable[[], Made]
    loops: int
    tolerance: float
    in_ci: bool


PROGRAMS: list[Program] = []


def program(
    library: str, *, loops: int, tolerance: float = 1e-3, in_ci: bool = True
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Adds the decorated maker to the table, as `Program` describes it."""

    def add(make: Callable[[], Made]) -> Callable[[], Made]:
        PROGRAMS.append(Program(make.__name__, library, make, loops, tolerance, in_ci))
        return make

    return add
