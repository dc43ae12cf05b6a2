"""Tilings."""

from __future__ import annotations

from dataclasses import dataclass

from jax_cocktail.analysis.classes import AxisClass


@dataclass(frozen=True, slots=True)
class Tiling:
    """The division of an axis into the trips of a parallel loop.

    `parts`: number of equal runs of the axis. `first`: the unit that runs part 0. `length`: of a part, if the
    last one may reach past the end, else 0. `across`: trips for each part; trip t of the loop is trip
    ``t % across`` of part ``t // across``. `rest_unit`: the unit that computes the remainder after the equal
    parts; `is_rest`: the one part is that remainder.
    """

    parts: int
    first: int = 0
    length: int = 0
    across: int = 1
    rest_unit: int = 0
    is_rest: bool = False

    @property
    def trips(self) -> int:
        return 1 if self.is_rest else self.parts * self.across

    @property
    def rest(self) -> Tiling:
        return Tiling(self.parts, self.rest_unit, is_rest=True)

    @property
    def reach(self) -> int:
        """The end of the last part, if it may reach past the end of the axis, else 0."""
        return self.parts * self.length

    def step(self, extent: int) -> int:
        """From one part of an axis to the next."""
        return self.length or extent // self.parts

    def size(self, extent: int) -> int:
        """Length of the part of an axis."""
        return extent % self.parts if self.is_rest else self.step(extent)


def blocks_of(cut: AxisClass, number: int) -> tuple[Tiling, ...]:
    """The axes in so many blocks: equal ones, or equal ones and a shorter last one; empty if none fit."""
    if not cut.longest(number):
        return ()
    equal = Tiling(number - 1)
    return (Tiling(number),) if cut.parts % number == 0 else (equal, equal.rest)
