"""Remarks: one sentence for the user about a pass's change to a loop or branch, or the reason for none.

A pass stays a pure function from program to program. A pass that has something to report takes ``remark=``, a
function that it calls, and knows nothing of the listener.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jax_cocktail.utask.types import NOWHERE, Source


@dataclass(frozen=True, slots=True)
class Remark:
    """`transform`: its name for the user ("distribute"); `fired`: True if it was applied; `text`: the
    outcome, or the obstacle; `source`: position of the loop, branch or operator."""

    transform: str
    fired: bool
    text: str
    source: Source = NOWHERE

    def __str__(self) -> str:
        place = f" ({self.source})" if self.source.file else ""
        return f"{self.transform}{'' if self.fired else ' not'}: {self.text}{place}"


Listener = Callable[[Remark], None]


def nobody(remark: Remark) -> None:
    """The listener of callers that need no remarks."""
    del remark
