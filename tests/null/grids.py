"""Limits of placement under which everything is cut along two axes that can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from jax_cocktail.analysis.classes import AxisClass
from jax_cocktail.placement.limits import Communicating, Divided, GridOffer, Limits
from jax_cocktail.placement.parts import blocks_of
from jax_cocktail.utask.ir import Statement


@dataclass(frozen=True, slots=True)
class EagerGrids(Limits):
    """Work of any size is divided: test programs are small. `blocks`: of a grid, at most; `last`: loops are
    divided inside, along the last axis of values if that can be; `uneven`: the last block is shorter."""

    flops: float = 4
    bytes: float = 8
    least_part: int = 1
    light: float = 2
    lanes: int = 1
    has_grids: bool = True
    blocks: int = 24
    last: bool = False
    uneven: bool = False

    def independent(
        self,
        cut: AxisClass,
        units: int,
        loops: Sequence[Statement],
        divided: Divided,
        others: Sequence[AxisClass] = (),
    ) -> tuple[float, int | None]:
        return (inf, None) if self.last else Limits.independent(self, cut, units, loops, divided)

    def rank(
        self,
        cut: AxisClass,
        units: int,
        statements: Sequence[Statement],
        independent: tuple[float, int | None],
        communicating: Communicating,
    ) -> tuple[float, float]:
        return (
            (-max(cut.axes.values()), 0.0)
            if self.last
            else Limits.rank(self, cut, units, statements, independent, communicating)
        )

    def grid(self, offers: Sequence[GridOffer], units: int) -> tuple[int, int] | None:
        """As many blocks as there may be; among those the most along the second axis."""
        found = [
            (offer.parts * across, across, number)
            for number, offer in enumerate(offers)
            for across in range(2, 1 + (offer.cut.parts if offer.cut is not None else 0))
            if offer.cut is not None and len(blocks_of(offer.cut, across)) == 1 + self.uneven
            if offer.parts * across <= self.blocks
        ]
        return (max(found)[2], max(found)[1]) if found else None
