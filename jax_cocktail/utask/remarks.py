"""Remarks: what a pass did to a loop or a branch, or why it did not, in one sentence for the user.

A pass stays a pure function from program to program; one that has something to say takes ``remark=``, a
function that it calls, and is none the wiser about who listens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jax_cocktail.utask.types import NOWHERE, Source


@dataclass(frozen=True, slots=True)
class Remark:
    """`transform`: as the user knows it ("distribute"); `fired`: it was applied; `text`: what came of it, or
    what stood in its way; `source`: of the loop, branch or operator."""

    transform: str
    fired: bool
    text: str
    source: Source = NOWHERE

    def __str__(self) -> str:
        place = f" ({self.source})" if self.source.file else ""
        return f"{self.transform}{'' if self.fired else ' not'}: {self.text}{place}"


Listener = Callable[[Remark], None]


def nobody(remark: Remark) -> None:
    """The listener of those who do not ask."""
    del remark
