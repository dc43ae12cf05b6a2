"""The values of a timeline. Times are in nanoseconds from the begin of the first custom call."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from jax_cocktail.codegen.stamps import Stamp

AROUND = ("loop", "parts", "branch")  # the kinds of stamps that have others inside


@dataclass(frozen=True, slots=True)
class Slice:
    """Time that one unit spent at one place: from its stamp to the next one. `writer`: the warp, or 0."""

    unit: int
    writer: int
    stamp: Stamp
    begin: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.begin


Track = tuple[Slice, ...]  # of one writer, in order, without gaps


@dataclass(frozen=True, slots=True)
class Crossing:
    """One barrier or exchange: for each unit, when it arrived, when it had told the others, and when it was
    released. `stamp`: that of the wait."""

    stamp: Stamp
    arrived: tuple[float, ...]
    published: tuple[float, ...]
    released: tuple[float, ...]

    @property
    def last(self) -> int:
        """The unit that the others waited for."""
        return self.published.index(max(self.published))

    @property
    def skew(self) -> float:
        """From the first arrival to the last one."""
        return max(self.arrived) - min(self.arrived)

    @property
    def publish(self) -> float:
        """From an arrival until the others can know of it, on average."""
        return fmean(self.published) - fmean(self.arrived)

    @property
    def hop(self) -> float:
        """From the last arrival to a release, on average."""
        return max(fmean(self.released) - max(self.published), 0.0)


@dataclass(frozen=True, slots=True)
class Timeline:
    """One custom call.

    Attributes:
      number: which one of the traced function.
      units: how many ran it.
      level: the level of its stamps.
      rows: the stamps of its program, by number from 1.
      start: its begin.
      tracks: the slices of every writer.
      crossings: those that all units have recorded.
      critical: the critical path, in order: slices, or parts of them, without which the call would have been
        shorter. It leads from each release to the unit that arrived last.
      stamps, kept: how many stamps were made, and how many are still in the rings.
    """

    number: int
    units: int
    level: int
    rows: tuple[Stamp, ...]
    start: float
    tracks: tuple[Track, ...]
    crossings: tuple[Crossing, ...]
    critical: Track
    stamps: int
    kept: int

    @property
    def end(self) -> float:
        return max((track[-1].end for track in self.tracks if track), default=self.start)

    def around(self, stamp: Stamp) -> tuple[Stamp, ...]:
        """The loops and branches around a place, outermost first; with itself if it is one."""
        found = [stamp] if stamp.kind in AROUND else []
        while stamp.parent:
            stamp = self.rows[stamp.parent - 1]
            found.append(stamp)
        return tuple(found[::-1])
