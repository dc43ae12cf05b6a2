"""Choices: what a pass could also do otherwise, each by name and with its alternatives.

A pass that can do something in several ways takes ``choose=``, a function that it asks for each of them, and
knows nothing of who answers (compare `utask.remarks`). So the passes themselves make the space that a search
goes through: COCKTAILER (OSDI'23, section 4) lists the flags of its code generator by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jax_cocktail.utask.types import NOWHERE, Source


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a program.

    Attributes:
      name: the pass, followed by a dot and a number where it chooses for each loop or branch.
      alternatives: all that can be taken, the usual one first.
      taken: one of these.
      source: the position of the loop or branch.
    """

    name: str
    alternatives: tuple[str, ...]
    taken: str
    source: Source = NOWHERE

    def __str__(self) -> str:
        place = f" ({self.source})" if self.source.file else ""
        others = ", ".join(each for each in self.alternatives if each != self.taken)
        return f"{self.name}: {self.taken}, not {others}{place}"


Choose = Callable[[str, tuple[str, ...], Source], str]


def usual(name: str, alternatives: tuple[str, ...], source: Source = NOWHERE) -> str:
    """The answer of callers that want what is usual: the first alternative."""
    del name, source
    return alternatives[0]


@dataclass(eq=False, slots=True)
class Chooser:
    """Answers with what is named, else with what is usual, and keeps all choices. What is named and is no
    alternative of this program counts as not named.

    Attributes:
      named: alternatives by the name of the choice.
      found: the choices so far, by name.
    """

    named: Mapping[str, str]
    found: dict[str, Choice] = field(default_factory=dict)

    def __call__(self, name: str, alternatives: tuple[str, ...], source: Source = NOWHERE) -> str:
        asked = self.named.get(name, alternatives[0])
        taken = asked if asked in alternatives else alternatives[0]
        self.found[name] = Choice(name, alternatives, taken, source)
        return taken
