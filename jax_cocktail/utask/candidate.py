"""A candidate: one way to compile a program, and a point of the space that the policy searches.

COCKTAILER (OSDI'23, section 4) searches, for every region of control flow, the unit level and the flags of
the code generator. Here both are named choices, which the passes themselves offer (`utask.choices`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ON, OFF = "on", "off"
Named = tuple[tuple[str, str], ...]  # what is taken, by the names of choices
MOST_IN_CLUSTER = 16  # blocks; more than eight only where the card has room for them
# What is taken of a choice of the whole program if it is not named: of all others, that their pass runs.
USUAL: Mapping[str, str] = {"threads": "0", "pipeline": OFF, "cluster": OFF}
_OF_SEVERAL_UNITS = frozenset({"cluster", "elements", "local", "pipeline"})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to compile a program; `way` makes one from keywords.

    Attributes:
      units: number of units (on the CPU: threads) of the plan. The code for one unit knows no others.
      choices: what is taken in place of the usual, by the names of choices and sorted by them. A pass that is
        off does not run. Besides the passes and their own choices (``"unroll.2"``, see `Chooser`) there are:

        ``cluster``: on if the units are thread blocks of one cluster, which have a barrier in hardware and
        reach each other's shared memory; at most `MOST_IN_CLUSTER` of them.
        ``elements``: off if all batch elements stay together on a GPU. If on, a thread or a block runs the
        loop or branch of one element where it can.
        ``local``: off if a batch element with arrays goes to a block. If on, its thread may have the arrays
        in memory of its own.
        ``threads``: of a unit that is a block of threads; 0: as many as the target has by default. Blocks of
        one warp are for batch elements, which have one each.
    """

    units: int = 1
    choices: Named = ()

    def __post_init__(self) -> None:
        if self.units < 1:
            raise ValueError(f"a candidate has at least one unit, not {self.units}")
        named = {name: taken for name, taken in self.choices if taken != usually(name)}
        if self.units == 1:  # two names for one thing
            named = {name: taken for name, taken in named.items() if name not in _OF_SEVERAL_UNITS}
        if "elements" in named:
            named.pop("local", None)
        if "distribute" in named:
            named.pop("pipeline", None)
        object.__setattr__(self, "choices", tuple(sorted(named.items())))
        if not named.get("threads", "0").isdecimal():
            raise ValueError(f"a block has no {named['threads']} threads")
        if self.cluster and self.units > MOST_IN_CLUSTER:
            raise ValueError(f"a cluster has at most {MOST_IN_CLUSTER} units, not {self.units}")

    def taken(self, name: str) -> str:
        """The alternative of a choice of the whole program."""
        return dict(self.choices).get(name, usually(name))

    def runs(self, name: str) -> bool:
        """True if a pass, or what a choice of this name switches, is on."""
        return self.taken(name) == ON

    def but(self, units: int = 0, **choices: str | int | bool) -> Candidate:
        """The candidate with other choices, and another number of units if that is given."""
        return Candidate(units or self.units, self.choices).taking(spelled(choices))

    def taking(self, choices: Mapping[str, str]) -> Candidate:
        """The candidate with these choices in place of its own."""
        return Candidate(self.units, tuple((dict(self.choices) | dict(choices)).items()))

    @property
    def cluster(self) -> bool:
        return self.runs("cluster")

    @property
    def threads(self) -> int:
        return int(self.taken("threads"))

    @property
    def text(self) -> str:
        """All of it, for keys."""
        return " ".join((f"units={self.units}", *(f"{name}={taken}" for name, taken in self.choices)))

    @property
    def name(self) -> str:
        """A name for people: the differences from the usual candidate."""
        count = "1 unit" if self.units == 1 else f"{self.units} units"
        count += f" of {self.threads} threads" if self.threads else ""
        return count + "".join(_PHRASES.get(each, ", {0} {1}").format(*each) for each in self._by_weight)

    @property
    def _by_weight(self) -> list[tuple[str, str]]:
        """The choices to be named, those of the whole program first, in a fixed order."""
        order = [*_PHRASES]
        named = [each for each in self.choices if each[0] != "threads"]
        return sorted(named, key=lambda each: order.index(each) if each in order else len(order))


_PHRASES: Mapping[tuple[str, str], str] = {
    ("cluster", ON): " in a cluster",
    ("elements", OFF): ", batch together",
    ("local", OFF): ", no local memory",
    ("pipeline", ON): ", pipelined",
    ("distribute", OFF): ", loops undivided",
}


def way(units: int = 1, **choices: str | int | bool) -> Candidate:
    """A candidate with these choices: True is on, and False is off."""
    return Candidate(units, tuple(spelled(choices).items()))


def usually(name: str) -> str:
    """The alternative of a choice of the whole program that is not named."""
    return USUAL.get(name, ON)


def spelled(choices: Mapping[str, Any]) -> dict[str, str]:
    """The choices as text: True is on, and False is off."""
    words = {True: ON, False: OFF}
    return {name: words[v] if isinstance(v, bool) else str(v).strip() for name, v in choices.items()}


SINGLE = Candidate()
