"""Values of counted traffic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that were loaded and stored."""

    loaded: int = 0
    stored: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.loaded + other.loaded, self.stored + other.stored)

    @property
    def bytes(self) -> int:
        return self.loaded + self.stored
