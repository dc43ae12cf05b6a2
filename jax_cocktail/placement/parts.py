"""Tilings."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from jax_cocktail.analysis.classes import AxisClass


@dataclass(frozen=True, slots=True)
class Tiling:
    """The division of an axis into the trips of a parallel loop.

    `parts`: number of runs of the axis, equal but for `line`. `first`: the unit that runs part 0. `length`:
    of a part, if the last one may reach past the end, else 0. `across`: trips for each part; trip t of the
    loop is trip ``t % across`` of part ``t // across``. `rest_unit`: the unit that computes the remainder
    after the equal parts; `is_rest`: the one part is that remainder. `line`: if not 0, the remainder is one
    of the `parts`, about as long as the equal ones, which begin at multiples of `line` elements.
    """

    parts: int
    first: int = 0
    length: int = 0
    across: int = 1
    rest_unit: int = 0
    is_rest: bool = False
    line: int = 0

    @property
    def equal(self) -> int:
        """The number of equal parts."""
        return self.parts - 1 if self.line else self.parts

    @property
    def trips(self) -> int:
        return 1 if self.is_rest else self.equal * self.across

    @property
    def rest(self) -> Tiling:
        return Tiling(self.parts, self.rest_unit, is_rest=True, line=self.line)

    @property
    def reach(self) -> int:
        """The end of the last part, if it may reach past the end of the axis, else 0."""
        return self.parts * self.length

    def step(self, extent: int) -> int:
        """From one part of an axis to the next."""
        if self.line:
            return balanced(extent, self.parts, self.line)
        return self.length or extent // self.parts

    def left(self, extent: int) -> int:
        """Length of the remainder of an axis."""
        return 0 if self.length else extent - self.equal * self.step(extent)

    def size(self, extent: int) -> int:
        """Length of the part of an axis."""
        return self.left(extent) if self.is_rest else self.step(extent)


def balanced(extent: int, parts: int, line: int) -> int:
    """The length of all parts but the last one, a multiple of `line`, for which the longest part is shortest;
    0 if an axis of `extent` has not so many parts."""
    near = extent // parts // line * line
    lengths = [n for n in (near, near + line) if 0 < n * (parts - 1) < extent]
    return min(lengths, key=lambda n: max(n, extent - n * (parts - 1)), default=0)


def longest_of(extent: int, parts: int, line: int) -> float:
    """The longest of `balanced` parts; infinite if there are none."""
    length = balanced(extent, parts, line)
    return max(length, extent - length * (parts - 1)) if length else inf


def blocks_of(cut: AxisClass, number: int) -> tuple[Tiling, ...]:
    """The axes in so many blocks: equal ones, or equal ones and a shorter last one; empty if none fit."""
    if not cut.longest(number):
        return ()
    equal = Tiling(number - 1)
    return (Tiling(number),) if cut.parts % number == 0 else (equal, equal.rest)
