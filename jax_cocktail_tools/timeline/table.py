"""A timeline as a table: stages with their times, crossings with skew, publish and hop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from jax_cocktail.codegen.stamps import Stamp
from jax_cocktail.timeline.values import Crossing, Slice, Timeline
from jax_cocktail.utask.operators import HALVES

_WIDTH, _MOST = 46, 44  # of the first column, and the characters of a name that are shown


def lines(timeline: Timeline) -> list[str]:
    """The table of one custom call."""
    length = timeline.end - timeline.start
    head = (
        f"custom call {timeline.number}: {_count(timeline.units, 'unit')}, {_us(length)} us,"
        f" {_count(timeline.stamps, 'stamp')} of level {timeline.level}"
    )
    if timeline.kept < timeline.stamps:
        head += f"; the times are those of the last {timeline.kept}"
    return [head, *_stages(timeline), *_crossings(timeline)]


def _stages(timeline: Timeline) -> list[str]:
    """One line per place, in the order of the program; a loop has the time of all that is inside."""
    found: dict[int, list[Slice]] = defaultdict(list)
    inside: dict[int, float] = defaultdict(float)
    for track in timeline.tracks:
        for piece in track:
            found[piece.stamp.number].append(piece)
            for stamp in timeline.around(piece.stamp):
                inside[stamp.number] += piece.length
    whole = sum(piece.length for pieces in found.values() for piece in pieces) or 1.0
    path = _lengths(timeline.critical)
    along = sum(path.values()) or 1.0
    made = [
        f"  {'stage, times in us':{_WIDTH}}{'calls':>8}{'mean':>9}{'p95':>9}{'max':>9}{'time':>7}{'path':>7}"
    ]
    around = {stamp.parent for stamp in timeline.rows} - {0}
    for number in sorted(found.keys() | inside.keys()):
        pieces = found.get(number, [])
        stamp = pieces[0].stamp if pieces else timeline.rows[number - 1]
        name = "  " * (len(timeline.around(stamp)) - (number in inside)) + stamp.what
        if number in around:
            columns = f"{'':35}{inside[number] / whole:7.0%}{'':7}"
        else:
            times = [piece.length for piece in pieces]
            columns = f"{len(times):8}{_us(np.mean(times)):>9}{_us(np.percentile(times, 95)):>9}"
            columns += f"{_us(max(times)):>9}{sum(times) / whole:7.0%}{path.get(number, 0.0) / along:7.0%}"
        made.append(f"  {_short(name, _MOST):{_WIDTH}}{columns}{_place(stamp)}".rstrip())
    return made


def _crossings(timeline: Timeline) -> list[str]:
    """One line per crossing of the program's text."""
    found: dict[int, list[Crossing]] = defaultdict(list)
    for crossing in timeline.crossings:
        found[crossing.stamp.number].append(crossing)
    if not found:
        return []
    made = [f"  {'crossing, times in us':{_WIDTH}}{'calls':>8}{'skew':>9}{'p95':>9}{'publish':>9}{'hop':>9}"]
    for _, each in sorted(found.items()):
        stamp, skews = each[0].stamp, [crossing.skew for crossing in each]
        name = "exchange" if "exchange" in stamp.what else "barrier"
        inside = timeline.around(stamp)
        name += f" in {inside[-1].what}" if inside else ""
        place = _place(inside[-1]) if inside else ""
        publish, hop = np.mean([c.publish for c in each]), np.mean([c.hop for c in each])
        columns = f"{len(each):8}{_us(np.mean(skews)):>9}{_us(np.percentile(skews, 95)):>9}"
        made.append(f"  {_short(name, _MOST):{_WIDTH}}{columns}{_us(publish):>9}{_us(hop):>9}{place}")
    return [line.rstrip() for line in made]


def _lengths(pieces: Iterable[Slice]) -> dict[int, float]:
    """The time at each place."""
    found: dict[int, float] = defaultdict(float)
    for piece in pieces:
        found[piece.stamp.number] += piece.length
    return found


def _place(stamp: Stamp) -> str:
    """The user's line, unless the compiler has made the statement."""
    if not stamp.source.file or stamp.kind in HALVES:
        return ""
    return f"  {stamp.source.file.rsplit('/', 1)[-1]}:{stamp.source.line}"


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 3] + "..."


def _us(nanoseconds: float | np.floating) -> str:
    return f"{float(nanoseconds) / 1e3:.2f}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
