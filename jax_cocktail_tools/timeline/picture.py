"""Timelines as pictures: a row for each unit, one for the critical path, and an axis in microseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, floor, log10

from jax_cocktail.codegen.stamps import Stamp
from jax_cocktail.timeline.values import Slice, Timeline
from jax_cocktail.utask.operators import HALVES, PRODUCTS
from jax_cocktail_tools.svg import FAINT, PALE, Picture
from jax_cocktail_tools.words import counted

# Of each kind of slice: its colour, and what it is.
COLORS = {
    "product": ("#4a8fdb", "matrix product"),
    "stage": ("#d9822b", "other stage"),
    "other": ("#9fb3c8", "rest"),
    "meet": ("#8f8f2a", "threads of a unit wait for each other"),
    "arrive": ("#a05195", "tells the other units"),
    "wait": (PALE, "waits for other units"),
}
RELEASED = (FAINT, "all units are released")
MOST_SLICES, MOST_UNITS = 60, 16  # of a unit in a window that nobody has chosen; of a picture
LEFT, ROW, THINNEST = 110.0, 26.0, 0.7  # thinner slices are drawn as one
TICKS = 10
_CRITICAL = "critical path"
Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Span:
    """A slice as it is drawn: the unit, its kind (see `COLORS`), nanoseconds, and what it is in words."""

    unit: int
    kind: str
    begin: float
    end: float
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """The part of a picture that shows one custom call.

    `title`: a line above it; `units`: the name of each unit by its number; `begin`, `end`: the window;
    `spans`, `critical`: the slices of units and of the critical path; `released`: when all units were
    released; `zero`: the time that the axis calls 0.
    """

    title: str
    units: dict[int, str]
    begin: float
    end: float
    spans: tuple[Span, ...]
    critical: tuple[Span, ...]
    released: tuple[float, ...]
    zero: float = 0.0


def panel_of(timeline: Timeline, window: Window | None = None) -> Panel:
    """The panel of a timeline. `window`: begin and end in nanoseconds; None: all of it, or if it is long a
    part from the middle. Of several writers in a unit the first one is shown."""
    begin, end = window or _informative(timeline)
    spans = tuple(_cut(_tracks(timeline), timeline, begin, end))
    critical = tuple(_cut(timeline.critical, timeline, begin, end))
    ends = (max(crossing.released) for crossing in timeline.crossings)
    first = dict.fromkeys((*(span.unit for span in critical), *range(timeline.units)))
    shown = sorted(list(first)[:MOST_UNITS])
    length = (min(end, timeline.end) - max(begin, timeline.start)) / 1e3
    title = f"custom call {timeline.number}: {counted(timeline.units, 'unit')}, {max(length, 0):.1f} \u00b5s"
    if (begin, end) != (timeline.start, timeline.end):
        title += f" of {(timeline.end - timeline.start) / 1e3:.1f} \u00b5s"
    return Panel(
        title + (f"; + {timeline.units - len(shown)} more units" if timeline.units > len(shown) else ""),
        {unit: f"unit {unit}" for unit in shown},
        begin,
        end,
        tuple(span for span in spans if span.unit in shown),
        critical,
        tuple(at for at in ends if begin < at <= end),
    )


def panels(timelines: Sequence[Timeline], window: Window | None) -> list[Panel]:
    """The panels of timelines that follow each other. `window`: in microseconds; None: as `panel_of` does."""
    if window is None:
        return [panel_of(each) for each in timelines]
    begin, end = (at * 1e3 for at in window)
    inside = (each for each in timelines if each.start < end and begin < each.end)
    return [panel_of(each, (begin, end)) for each in inside]


def _tracks(timeline: Timeline) -> Iterator[Slice]:
    return (piece for track in timeline.tracks for piece in track if piece.writer == 0)


def _informative(timeline: Timeline) -> Window:
    """The whole call, or iterations from its middle that have few enough slices to be read."""
    longest = max(timeline.tracks, key=len, default=())
    if len(longest) <= MOST_SLICES:
        return timeline.start, timeline.end
    first = (len(longest) - MOST_SLICES) // 2
    begin, end = longest[first].begin, longest[first + MOST_SLICES].begin
    ends = [at for crossing in timeline.crossings if begin <= (at := max(crossing.released)) <= end]
    return (ends[0], ends[-1]) if len(ends) > 1 else (begin, end)


def _cut(pieces: Iterable[Slice], timeline: Timeline, begin: float, end: float) -> Iterator[Span]:
    """The pieces in a window, or their parts."""
    for piece in pieces:
        first, last = max(piece.begin, begin), min(piece.end, end)
        if first < last:
            yield Span(piece.unit, kind_of(piece.stamp), first, last, _tooltip(piece, timeline))


def kind_of(stamp: Stamp) -> str:
    """The kind of a slice, by which it is coloured."""
    if stamp.kind in (*HALVES, "meet"):
        return stamp.kind
    if stamp.kind == "stage":
        return "stage" if PRODUCTS.isdisjoint(stamp.what.split(", ")) else "product"
    return "other"


def _tooltip(piece: Slice, timeline: Timeline) -> str:
    around = [stamp.what for stamp in timeline.around(piece.stamp)]
    inside = f" in {around[-1]}" if around and around[-1] != piece.stamp.what else ""
    at = f" at {piece.stamp.source}" if piece.stamp.source.file else ""
    return f"unit {piece.unit}: {piece.stamp.what}{inside}{at}, {piece.length / 1e3:.2f} \u00b5s"


def draw(title: str, below: str, panels: Sequence[Panel], inside: bool = False) -> str:
    """The picture of all panels. `inside`: for a page that has its own colours."""
    picture = Picture(1080, ground="")
    picture.title(title, below)
    y = 96.0
    for panel in panels:
        y = draw_panel(picture, panel, y) + 44
    draw_key(picture, panels, y - 10)
    return picture.svg(inside)


def draw_panel(picture: Picture, panel: Panel, y: float) -> float:
    """Draws a panel from `y` on. Returns the end of its axis."""
    width = picture.width - LEFT - 24
    scale = width / max(panel.end - panel.begin, 1e-9)
    rows = {unit: y + n * ROW for n, unit in enumerate(panel.units)}
    bottom = y + len(rows) * ROW
    path = bottom + 6
    picture.text(LEFT, y - 8, panel.title, 14, style=' font-weight="bold"')
    for unit, top in rows.items():
        picture.text(LEFT - 10, top + 17, panel.units[unit], 12, anchor="end")
        _row(picture, [span for span in panel.spans if span.unit == unit], top, panel.begin, scale)
    for at in panel.released:
        x = LEFT + (at - panel.begin) * scale
        picture.line(x, y - 2, x, bottom + 2, FAINT)
    if panel.critical:
        picture.text(LEFT - 10, path + 17, _CRITICAL, 12, anchor="end")
        _row(picture, panel.critical, path, panel.begin, scale)
        bottom = path + ROW
        _owners(picture, panel, bottom + 10, scale)
        bottom += 14
    _axis(picture, panel, bottom + 4, scale)
    return bottom + 24


def _row(picture: Picture, spans: Sequence[Span], top: float, begin: float, scale: float) -> None:
    for span in _thick(spans, THINNEST / scale):
        place = LEFT + (span.begin - begin) * scale, top + 2
        width = (span.end - span.begin) * scale
        picture.box(*place, width, ROW - 4, COLORS[span.kind][0], tooltip=span.tooltip)


def _thick(spans: Sequence[Span], least: float) -> Iterator[Span]:
    """The spans; neighbours that are too short to be seen are one, of the kind with most of their time."""
    group: list[Span] = []
    for span in spans:
        if not group and span.end - span.begin >= least:
            yield span
            continue
        group.append(span)
        if group[-1].end - group[0].begin >= least:
            yield _joined(group)
            group = []
    if group:
        yield _joined(group)


def _joined(group: Sequence[Span]) -> Span:
    if len(group) == 1:
        return group[0]
    times = {span.kind: 0.0 for span in group}
    for span in group:
        times[span.kind] += span.end - span.begin
    length = (group[-1].end - group[0].begin) / 1e3
    tooltip = f"unit {group[0].unit}: {len(group)} slices, {length:.2f} \u00b5s"
    return replace(group[0], kind=max(times, key=lambda k: times[k]), end=group[-1].end, tooltip=tooltip)


def _owners(picture: Picture, panel: Panel, y: float, scale: float) -> None:
    """The numbers of the units that the critical path goes through, where there is room."""
    for unit, pieces in groupby(panel.critical, key=lambda span: span.unit):
        first, *rest = pieces
        begin, end = first.begin, (rest or [first])[-1].end
        if (end - begin) * scale > 7 * len(str(unit)) + 4:
            x = LEFT + ((begin + end) / 2 - panel.begin) * scale
            picture.text(x, y, str(unit), 10, FAINT, "middle")


def _axis(picture: Picture, panel: Panel, y: float, scale: float) -> None:
    begin, end = ((at - panel.zero) / 1e3 for at in (panel.begin, panel.end))
    picture.line(LEFT, y, LEFT + (panel.end - panel.begin) * scale, y, FAINT)
    step = _step(end - begin)
    for number in range(ceil(begin / step - 1e-9), floor(end / step + 1e-9) + 1):
        x = LEFT + (number * step - begin) * 1e3 * scale
        picture.line(x, y, x, y + 4, FAINT)
        picture.text(x, y + 16, f"{number * step:g}", 11, FAINT, "middle")
    picture.text(LEFT - 30, y + 16, "\u00b5s", 11, FAINT, "end")


def _step(length: float) -> float:
    """Between ticks: 1, 2 or 5 times a power of ten, so that there are at most `TICKS`."""
    least = max(length, 1e-6) / TICKS
    power = 10.0 ** floor(log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def draw_key(picture: Picture, panels: Sequence[Panel], y: float) -> None:
    """Explains the colours that are drawn."""
    kinds = {span.kind for panel in panels for span in (*panel.spans, *panel.critical)}
    entries = [COLORS[kind] for kind in COLORS if kind in kinds]
    entries += [RELEASED] if any(panel.released for panel in panels) else []
    picture.key(LEFT, y, entries)
