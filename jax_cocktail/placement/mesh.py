"""The mesh of units that a program is placed on (COCKTAILER, OSDI'23, section 4: its resource)."""

from __future__ import annotations

from dataclasses import dataclass

from jax_cocktail.utask.plan import MemoryPlan


@dataclass(frozen=True, slots=True)
class UnitMesh:
    """Some `units` that may wait for each other."""

    units: int = 1

    def __post_init__(self) -> None:
        if self.units < 1:
            raise ValueError(f"a mesh has at least one unit, not {self.units}")


def set_resource(plan: MemoryPlan, units: int) -> UnitMesh:
    """The units that a call of a planned program requests, at most `units`: never more than have work
    (SetResource of COCKTAILER, OSDI'23, section 4). At every call the runtime decides how many the call gets,
    and deals the parts of the program to those."""
    return UnitMesh(units=max(min(units, plan.most_units), 1))
