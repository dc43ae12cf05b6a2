"""Reads the rings of a traced call (struct CkRing of cocktail_trace.h): the one place that knows how they are
laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from jax_cocktail.codegen.stamps import HEAD_WORDS, STAMP_WORDS, Stamp
from jax_cocktail.timeline.values import Crossing, Slice, Timeline, Track
from jax_cocktail.utask.types import NOWHERE

Words = np.ndarray[Any, np.dtype[np.uint64]]
_BEGIN = Stamp(0, "work", "begin of the program", NOWHERE)


@dataclass(frozen=True, slots=True)
class _Ring:
    """A ring. `count`: stamps made; the clock in cycles and the wall clock, at the begin and at the end."""

    count: int
    ended: int
    clock: int
    wall: int
    last_clock: int
    last_wall: int
    units: int
    clocks_differ: int
    stamps: Words

    @property
    def kept(self) -> int:
        return min(self.count, len(self.stamps))


def _ring(words: Words) -> _Ring:
    count, ended, clock, wall, last_clock, last_wall, units, differ = words[:HEAD_WORDS].tolist()
    stamps = words[HEAD_WORDS:].reshape(-1, STAMP_WORDS)
    return _Ring(count, ended, clock, wall, last_clock, last_wall, units, differ, stamps)


def begin_of(words: Words) -> int:
    """The wall clock when the call began."""
    return _ring(words[0, 0]).wall


def read(number: int, words: Words, rows: tuple[Stamp, ...], level: int, origin: int) -> Timeline:
    """The timeline of one call. `words`: its rings, by unit and writer; `rows`: the stamps of the program;
    `origin`: the reading of the wall clock that is time 0."""
    first = _ring(words[0, 0])
    units = min(first.units, len(words))
    rings = {(u, w): _ring(words[u, w]) for u in range(units) for w in range(words.shape[1])}
    ended = [ring for ring in rings.values() if ring.ended]
    nanoseconds = max(sum(ring.last_wall - ring.wall for ring in ended), 1)
    rate = sum(ring.last_clock - ring.clock for ring in ended) / nanoseconds or 1.0
    tracks = []
    for (unit, writer), ring in rings.items():
        base = rings[unit, 0] if first.clocks_differ else first
        shown = [_BEGIN, *(rows[n - 1] for n in _in_order(ring)[:, 1].tolist())]
        clocks = [ring.clock, *_in_order(ring)[:, 0].tolist()]
        clocks.append(ring.last_clock if ring.ended else clocks[-1])
        times = [base.wall - origin + (clock - base.clock) / rate for clock in clocks]
        track = tuple(Slice(unit, writer, *s) for s in zip(shown, times[:-1], times[1:], strict=True))
        tracks.append(track if ring.count == ring.kept else track[1:])
    if first.clocks_differ:
        tracks = _aligned(tracks)
    whole = [track for track in tracks if track and not track[0].writer and rings[track[0].unit, 0].ended]
    crossings = _crossings(whole)
    counts = (sum(ring.count for ring in rings.values()), sum(ring.kept for ring in rings.values()))
    start = float(first.wall - origin)
    return Timeline(
        *(number, units, level, rows, start, tuple(tracks), crossings, _critical(whole, crossings)), *counts
    )


def _in_order(ring: _Ring) -> Words:
    """The stamps that are left, oldest first."""
    oldest = ring.count % len(ring.stamps) if ring.count > ring.kept else 0
    return np.roll(ring.stamps, -oldest, axis=0)[: ring.kept]


# ---- crossings ---------------------------------------------------------------------------------------------
def _crossings(tracks: Sequence[Track]) -> tuple[Crossing, ...]:
    """The crossings of units that came to the end. All units make the same ones, so those with one number,
    counted from the end, are one."""
    pairs = [_halves(track) for track in tracks]
    if len(tracks) < 2:
        return ()
    found = []
    for number in range(min(map(len, pairs)), 0, -1):
        arrives, waits = zip(*(each[-number] for each in pairs), strict=True)
        arrived, published = tuple(s.begin for s in arrives), tuple(s.end for s in arrives)
        found.append(Crossing(waits[0].stamp, arrived, published, tuple(s.end for s in waits)))
    return tuple(found)


def _halves(track: Track) -> list[tuple[Slice, Slice]]:
    """The two halves of every crossing of a unit."""
    found, arrive = [], None
    for piece in track:
        if piece.stamp.kind == "arrive":
            arrive = piece
        elif piece.stamp.kind == "wait" and arrive is not None:
            found.append((arrive, piece))
    return found


def _aligned(tracks: Sequence[Track]) -> list[Track]:
    """The tracks of units whose clocks have nothing in common, moved so that the units are released together:
    the median over all crossings is exact to a hop, and readings of the wall clock are not."""
    released = {
        track[0].unit: [wait.end for _, wait in _halves(track)]
        for track in tracks
        if track and not track[0].writer
    }
    first = released.get(0, [])
    moves = {}
    for unit, ends in released.items():
        common = min(len(first), len(ends))
        late = [a - b for a, b in zip(first[-common:], ends[-common:], strict=True)] if common else []
        moves[unit] = median(late) if late else 0.0
    return [tuple(_moved(piece, moves[piece.unit]) for piece in track) for track in tracks]


def _moved(piece: Slice, by: float) -> Slice:
    return replace(piece, begin=piece.begin + by, end=piece.end + by)


def _critical(tracks: Sequence[Track], crossings: Sequence[Crossing]) -> Track:
    """Back from the end: at each crossing the path goes over to the unit that arrived last."""
    if not tracks:
        return ()
    unit = max(range(len(tracks)), key=lambda n: tracks[n][-1].end)
    now, path = tracks[unit][-1].end, list[Slice]()
    for crossing in reversed(crossings):
        last, told = crossing.last, max(crossing.published)
        released = crossing.released[unit]
        path += _between(tracks[unit], released, now)[::-1]
        if released > told:
            path.append(Slice(tracks[unit][0].unit, 0, crossing.stamp, told, released))
        unit, now = last, min(told, released)
    path += _between(tracks[unit], tracks[unit][0].begin, now)[::-1]
    return tuple(path[::-1])


def _between(track: Track, begin: float, end: float) -> list[Slice]:
    """The slices in this time, or their parts."""
    cut = (
        replace(s, begin=max(s.begin, begin), end=min(s.end, end))
        for s in track
        if s.end > begin and s.begin < end
    )
    return list(cut)
