"""The options of a compilation: one point of the space that the policy searches.

COCKTAILER (OSDI'23, section 4) searches, for every region of control flow, the unit level and the flags of
the code generator. Here they are fields of one value.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_IN_CLUSTER = 16  # blocks; more than eight only where the card has room for them


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to compile a program.

    Attributes:
      units: number of units (on the CPU: threads) of the plan. The code for one unit knows no others.
      distribute: True if loops are divided at their recurrences.
      pipeline: True if recurrences that feed each other run side by side, one step apart, each on its own
        units; False if one after the other. Requires several units and `distribute`.
      cluster: True if the units are thread blocks of one cluster, which have a barrier in hardware and
        reach each other's shared memory; at most `MOST_IN_CLUSTER` of them.
      elements: True if a thread or a block of a GPU runs the loop or branch of one batch element where it
        can; False if all of them stay together.
      local: True if a batch element with a thread may have arrays in the memory of that thread; False if such
        an element goes to a block.
      threads: of a unit that is a block of threads; 0: as many as the target has by default. Blocks of one
        warp are for batch elements, which have one each.
    """

    units: int = 1
    distribute: bool = True
    pipeline: bool = False
    cluster: bool = False
    threads: int = 0
    elements: bool = True
    local: bool = True

    def __post_init__(self) -> None:
        if self.units < 1:
            raise ValueError(f"a candidate has at least one unit, not {self.units}")
        if self.threads < 0:
            raise ValueError(f"a block has no {self.threads} threads")
        if self.units == 1:  # two names for one thing
            object.__setattr__(self, "cluster", False)
            object.__setattr__(self, "elements", True)
        if not self.elements or self.units == 1:
            object.__setattr__(self, "local", True)
        if self.units == 1 or not self.distribute:
            object.__setattr__(self, "pipeline", False)
        if self.cluster and self.units > MOST_IN_CLUSTER:
            raise ValueError(f"a cluster has at most {MOST_IN_CLUSTER} units, not {self.units}")

    @property
    def text(self) -> str:
        """Every field, for keys."""
        flags = f"distribute={self.distribute:d} pipeline={self.pipeline:d} cluster={self.cluster:d}"
        size = f" threads={self.threads}" if self.threads else ""  # keys without it are older
        size += "" if self.elements else " elements=0"
        size += "" if self.local else " local=0"
        return f"units={self.units} {flags}{size}"

    @property
    def name(self) -> str:
        """A name for people: the differences from the usual candidate."""
        count = "1 unit" if self.units == 1 else f"{self.units} units"
        if self.threads:
            count += f" of {self.threads} threads"
        if self.cluster:
            count += " in a cluster"
        if not self.elements:
            count += ", batch together"
        if not self.local:
            count += ", no local memory"
        if self.pipeline:
            return f"{count}, pipelined"
        return count if self.distribute else f"{count}, loops undivided"


SINGLE = Candidate()
