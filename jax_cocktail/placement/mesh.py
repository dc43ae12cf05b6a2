"""The mesh of units that a program is placed on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnitMesh:
    """`units` of one domain may wait for each other; `domains` never do."""

    domains: int = 1
    units: int = 1

    def __post_init__(self) -> None:
        if self.domains < 1 or self.units < 1:
            raise ValueError(f"a mesh has at least one unit, not {self.domains} x {self.units}")

    @property
    def size(self) -> int:
        return self.domains * self.units
