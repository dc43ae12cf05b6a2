"""What the compiler is told besides the program: one point of the space that the policy searches.

COCKTAILER (OSDI'23, section 4) searches, for every region of control flow, the unit level and the flags of
the code generator. Ours are fields of one value.
"""

from __future__ import annotations

from dataclasses import dataclass

PLACES = ("auto", "none")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to compile a program.

    Attributes:
      units: how many units (on the CPU: threads) the program is planned for. One unit is the code that knows
        of no others.
      distribute: whether loops are divided at their recurrences.
      place: "auto": axes are divided over the units where that pays; "none": every unit would do everything,
        which is what one unit means.
    """

    units: int = 1
    distribute: bool = True
    place: str = "auto"

    def __post_init__(self) -> None:
        if self.units < 1:
            raise ValueError(f"a candidate has at least one unit, not {self.units}")
        if self.place not in PLACES:
            raise ValueError(f"place is one of {', '.join(PLACES)}, not {self.place!r}")
        if self.units == 1 or self.place == "none":  # two names for one thing
            object.__setattr__(self, "units", 1)
            object.__setattr__(self, "place", "none")

    @property
    def text(self) -> str:
        """Every field, for keys."""
        return f"units={self.units} distribute={self.distribute:d} place={self.place}"

    @property
    def name(self) -> str:
        """For people: what differs from the usual."""
        count = "1 unit" if self.units == 1 else f"{self.units} units"
        return count if self.distribute else f"{count}, loops undivided"


SINGLE = Candidate()
