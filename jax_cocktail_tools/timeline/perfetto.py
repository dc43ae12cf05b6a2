"""Timelines as events of Chrome's trace format, which Perfetto opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jax_cocktail.codegen.stamps import Stamp
from jax_cocktail.timeline.values import AROUND, Timeline, Track

Event = dict[str, Any]


def events(timelines: Sequence[Timeline]) -> list[Event]:
    """All events. A unit is a process, a writer a thread; the critical path of a call is a process, too."""
    found: list[Event] = []
    process = arrows = 0
    for timeline in timelines:
        call = f"call {timeline.number}, " if len(timelines) > 1 else ""
        for unit in range(timeline.units):
            found.append(_named(process + unit, f"{call}unit {unit}"))
        for track in timeline.tracks:
            found += _nested(timeline, track, process)
        found += _arrows(timeline, process, arrows)
        path = process + timeline.units
        found.append(_named(path, f"{call}critical path"))
        found += (
            _event(piece.stamp, piece.begin, piece.end, path, 0, unit=piece.unit)
            for piece in timeline.critical
        )
        process, arrows = path + 1, arrows + len(timeline.crossings) * timeline.units
    return found


def _named(process: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}


def _event(stamp: Stamp, begin: float, end: float, process: int, thread: int, **about: Any) -> Event:
    source = {"source": str(stamp.source)} if stamp.source.file else {}
    return {
        "ph": "X",
        "name": stamp.what,
        "cat": stamp.kind,
        "ts": begin / 1e3,
        "dur": (end - begin) / 1e3,
        "pid": process,
        "tid": thread,
        "args": {**source, "stamp": stamp.number, **about},
    }


def _nested(timeline: Timeline, track: Track, process: int) -> Iterator[Event]:
    """The slices of a writer, inside the loops and branches around them. A stamp of a loop itself begins the
    loop, or one of its iterations."""
    now: list[tuple[Stamp, float]] = []  # what is open, and since when

    def closed(depth: int, end: float) -> Iterator[Event]:
        while len(now) > depth:
            stamp, begin = now.pop()
            yield _event(stamp, begin, end, process + track[0].unit, track[0].writer)

    for piece in track:
        around = timeline.around(piece.stamp)
        same = 0
        while same < min(len(now), len(around)) and now[same][0] is around[same]:
            same += 1
        yield from closed(same, piece.begin)
        now += [(stamp, piece.begin) for stamp in around[same:]]
        if piece.stamp.kind not in AROUND:
            yield _event(piece.stamp, piece.begin, piece.end, process + piece.unit, piece.writer)
    yield from closed(0, track[-1].end) if track else ()


def _arrows(timeline: Timeline, process: int, first: int) -> Iterator[Event]:
    """From the last unit that arrives at a crossing to the others, each in the slice that it ends in."""
    for number, crossing in enumerate(timeline.crossings):
        last = crossing.last
        for unit, released in enumerate(crossing.released):
            if unit == last:
                continue
            common = {
                "name": "release",
                "cat": "crossing",
                "tid": 0,
                "id": first + number * timeline.units + unit,
            }
            sent = (crossing.arrived[last] + crossing.published[last]) / 2e3
            yield {"ph": "s", **common, "pid": process + last, "ts": sent}
            yield {"ph": "f", "bp": "e", **common, "pid": process + unit, "ts": max(sent, released / 1e3)}
