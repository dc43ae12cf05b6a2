"""Charts as SVG images: bars of ratios, and lines and points on logarithmic or linear axes.

Colours are variables of the page around a chart, so that it follows the theme of the page. By itself, an
image has the colours of a light one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jax_cocktail_tools.svg import FONT, Picture, written

INK, FAINT, LINE = "var(--ink, #1f2933)", "var(--faint, #52606d)", "var(--line, #cbd2d9)"
COLORS = ("var(--first, #2563eb)", "var(--second, #c2410c)", "var(--third, #0f766e)")
GROUND = "var(--ground, #ffffff)"
CAP = 3.5  # half of the length of the end of an error bar
_CHARACTER = 6.6  # width of a character of 12 units, at most on average
_STEPS = (1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Value:
    """A figure with the interval in which it probably is."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Bars:
    """A row of a bar chart: a value for each series."""

    label: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a series. `label`: text beside it; `note`: what a pointer over it shows."""

    x: float
    y: Value
    label: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind. `joined`: a line connects them; `shown`: each has a mark, `hollow` or not; `dash`:
    of the line, as in SVG."""

    name: str
    points: tuple[Point, ...]
    color: str
    joined: bool = True
    shown: bool = True
    hollow: bool = False
    dash: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis. `low`, `high`: its ends; `ticks`: values with their texts; `log`: whether it is
    logarithmic."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = True

    def part(self, value: float) -> float:
        """The place of a value, between 0 and 1."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low)


class Chart(Picture):
    """An image without a background of its own. `label`: what it shows, for those who cannot see it."""

    def __init__(self, width: float, label: str) -> None:
        super().__init__(width)
        self.label = label

    def words(self, x: float, y: float, words: str, **style: str) -> None:
        """A small text."""
        self.text(x, y, words, 12, style.get("fill", INK), style.get("anchor", "start"))

    def noted(self, note: str, marks: str) -> None:
        """Marks with a text that a pointer over them shows."""
        self.parts.append(f"<g><title>{written(note)}</title>{marks}</g>" if note else marks)

    def error_bar(self, x: float, y: float, x2: float, y2: float) -> None:
        """A line with ends across it, along one of the axes."""
        self.line(x, y, x2, y2, INK, 1.4)
        across, along = (0.0, CAP) if y == y2 else (CAP, 0.0)
        for px, py in ((x, y), (x2, y2)):
            self.line(px - across, py - along, px + across, py + along, INK, 1.4)

    def image(self) -> str:
        """The SVG text."""
        height = self.height + 8
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {height:g}"'
            f' width="{self.width:g}" height="{height:g}" font-family="{FONT}" role="img"'
            f' aria-label="{written(self.label)}">'
        )
        return "\n".join([head, *self.parts, "</svg>\n"])


# ---- axes --------------------------------------------------------------------------------------------------


def short(value: float, unit: str = "") -> str:
    """A number with a decimal prefix: 2.5e9 is "2.5 G", with a unit "2.5 GB/s"."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {prefix}{unit}"
    for size, prefix in ((1.0, ""), (1e-3, "m"), (1e-6, "\N{MICRO SIGN}")):
        if value >= 0.9995 * size and unit:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def log_axis(label: str, values: Iterable[float], unit: str = "", room: float = 1.3) -> Axis:
    """A logarithmic axis over positive values. `room`: the factor by which it goes beyond them."""
    known = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
    low, high = min(known) / room, max(known) * room
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    few = math.log10(high / low) > 2
    steps = (1.0,) if few else _STEPS
    ticks = (step * 10.0**decade for decade in decades for step in steps)
    every = max(1, round(math.log10(high / low) / 7)) if few else 1
    inside = [tick for tick in ticks if low <= tick <= high][::every]
    return Axis(label, low, high, tuple((tick, short(tick, unit)) for tick in inside))


def ratio_axis(label: str, values: Iterable[float]) -> Axis:
    """A logarithmic axis of ratios around 1."""
    known = [value for value in values if value > 0 and math.isfinite(value)]
    low, high = min([*known, 0.8]) / 1.08, max([*known, 2.0]) * 1.08
    ticks = [2.0**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    every = max(1, math.ceil(len(ticks) / 10))
    shown = [tick for tick in ticks if round(math.log2(tick)) % every == 0]
    return Axis(label, low, high, tuple((tick, f"{tick:g}\N{MULTIPLICATION SIGN}") for tick in shown))


def count_axis(label: str, counts: Iterable[int], log: bool) -> Axis:
    """An axis with a tick for each of some numbers."""
    known = sorted(set(counts))
    low, high = (known[0] / 1.15, known[-1] * 1.15) if log else (0.0, known[-1] * 1.08)
    return Axis(label, low, high, tuple((float(number), str(number)) for number in known), log)


# ---- charts ------------------------------------------------------------------------------------------------


def bar_chart(
    label: str, axis: Axis, rows: Sequence[Bars], series: Sequence[tuple[str, str]], width: float = 760
) -> str:
    """Horizontal bars of ratios: from 1 to the right what is larger, and to the left what is smaller, with
    error bars and figures. `series`: names and colours."""
    chart = Chart(width, label)
    left = 16 + _CHARACTER * max((len(row.label) for row in rows), default=0)
    right, each = width - 56, 17.0
    x = _Scale(axis, left, right)
    _legend(chart, left, 18, [(name, color, "") for name, color in series])
    top, tall = 34.0, len(rows) * (each * len(series) + 11)
    for tick, text in axis.ticks:
        chart.line(x(tick), top, x(tick), top + tall, LINE)
        chart.words(x(tick), top + tall + 18, text, fill=FAINT, anchor="middle")
    y = top + 6
    for row in rows:
        chart.words(left - 8, y + each * len(series) / 2 + 4, row.label, anchor="end")
        for value, (name, color) in zip(row.values, series, strict=True):
            begin, end = sorted((x(1.0), x(value.middle)))
            note = f"{row.label}, {name}: {value.middle:.3g} ({value.low:.3g} to {value.high:.3g})"
            size = f'width="{max(end - begin, 1):.2f}" height="{each - 4:g}"'
            chart.noted(note, f'<rect x="{begin:.1f}" y="{y:.1f}" {size} fill="{color}"/>')
            middle = y + (each - 4) / 2
            chart.error_bar(x(value.low), middle, x(value.high), middle)
            chart.words(max(x(value.high), x(1.0)) + 8, middle + 4, f"{value.middle:.2f}")
            y += each
        y += 11
    chart.line(x(1.0), top, x(1.0), top + tall, INK, 1.4)
    chart.words((left + right) / 2, top + tall + 38, axis.label, fill=FAINT, anchor="middle")
    return chart.image()


def plot(
    label: str, x: Axis, y: Axis, series: Sequence[Series], width: float = 760, height: float = 380
) -> str:
    """Lines and points. A series without a name is not in the legend."""
    chart = Chart(width, label)
    margin = 18 + _CHARACTER * max((len(text) for _, text in y.ticks), default=4)
    left, right, top = margin, width - 18, 18.0
    listed = [(each.name, each.color, each.dash) for each in series if each.name]
    top += 20 * _legend(chart, left, 14, listed, right) + 10
    bottom = top + height - 70
    across, up = _Scale(x, left, right), _Scale(y, bottom, top)
    for tick, text in x.ticks:
        chart.line(across(tick), top, across(tick), bottom, LINE)
        chart.words(across(tick), bottom + 18, text, fill=FAINT, anchor="middle")
    for tick, text in y.ticks:
        chart.line(left, up(tick), right, up(tick), LINE)
        chart.words(left - 8, up(tick) + 4, text, fill=FAINT, anchor="end")
    chart.words((left + right) / 2, bottom + 38, x.label, fill=FAINT, anchor="middle")
    chart.words(left, top - 8, y.label, fill=FAINT)
    for each in series:
        placed = [(across(point.x), up(point.y.middle), point) for point in each.points]
        if each.joined:
            for (ax, ay, _), (bx, by, _) in zip(placed, placed[1:], strict=False):
                chart.line(ax, ay, bx, by, each.color, 2, each.dash)
        for px, py, point in placed if each.shown else ():
            if point.y.high > point.y.low:
                chart.error_bar(px, up(point.y.high), px, up(point.y.low))
            chart.noted(point.note, _mark(px, py, each))
            if point.label:
                chart.words(px + 8, py + 4, point.label)
    return chart.image()


def _mark(x: float, y: float, series: Series) -> str:
    fill = GROUND if series.hollow else series.color
    edge = f'fill="{fill}" stroke="{series.color}" stroke-width="1.8"'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2" {edge}/>'


class _Scale:
    """From values of an axis to places; what is beyond an end of the axis is at the end."""

    def __init__(self, axis: Axis, begin: float, end: float) -> None:
        self.axis, self.begin, self.end = axis, begin, end

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.axis.low), self.axis.high)
        return self.begin + (self.end - self.begin) * self.axis.part(inside)


def _legend(
    chart: Chart, x: float, y: float, entries: Iterable[tuple[str, str, str]], right: float = math.inf
) -> int:
    """Explains colours and dashes. Returns the number of its lines."""
    lines = 0
    for at, row, (name, color, dash) in _flowing(x, right, entries):
        chart.line(at, y + 20 * row - 4, at + 18, y + 20 * row - 4, color, 4 if not dash else 2, dash)
        chart.words(at + 24, y + 20 * row, name)
        lines = row + 1
    return lines


def _flowing(
    x: float, right: float, entries: Iterable[tuple[str, str, str]]
) -> Iterator[tuple[float, int, tuple[str, str, str]]]:
    """Places and lines of the entries of a legend."""
    at, row = x, 0
    for entry in entries:
        wide = 44 + _CHARACTER * len(entry[0])
        if at > x and at + wide > right:
            at, row = x, row + 1
        yield at, row, entry
        at += wide
