"""The page of `bench --html`: one file with charts, tables and versions, without scripts or other files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from jax_cocktail_tools import charts
from jax_cocktail_tools.charts import COLORS, FAINT, Bars, Point, Series, Value
from jax_cocktail_tools.commands import result
from jax_cocktail_tools.commands.result import Ceilings, Curve, Result, Row
from jax_cocktail_tools.report.text import NOTABLE

_OURS, _STOCK, _JIT = COLORS
_STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1f2933; --faint: #52606d; --line: #d9dfe5;
  --first: #2563eb; --second: #c2410c; --third: #0f766e; --warn: #fef3c7; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --ink: #e4e9ee; --faint: #a3b0bd;
  --line: #36404a; --first: #6ea0ff; --second: #ff9a5c; --third: #45c4ae; --warn: #463a12; } }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, "DejaVu Sans", Verdana, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .4rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; }
p { max-width: 46rem; margin: .4rem 0; } .faint { color: var(--faint); }
.warn { background: var(--warn); padding: .5rem .8rem; border-radius: .3rem; }
svg { max-width: 100%; height: auto; display: block; margin: .6rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line);
  text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .words td, .words th { text-align: left; }
th { color: var(--faint); font-weight: 600; } .words td { white-space: normal; }
.pair { display: flex; flex-wrap: wrap; gap: 0 2rem; }
"""


def page(found: Result) -> str:
    """The text of the page."""
    body = [
        "<h1>jax_cocktail against stock XLA</h1>",
        f'<p class="faint">{escape(found.made)} &middot; {escape("; ".join(found.devices))} &middot;'
        f" {escape(found.machine.processor)}, {found.machine.cores} cores</p>",
        *(f'<p class="warn">{escape(text)}</p>' for text in result.remarks(found)),
        *_speed(found.rows),
        *_table(found.rows),
        *_roofline(found.rows, found.ceilings),
        *_scaling(found.curves),
        *_facts(found),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>jax_cocktail against stock XLA</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


# ---- speed -------------------------------------------------------------------------------------------------


def _speed(rows: Sequence[Row]) -> Iterator[str]:
    """The ratios to stock XLA, as bars."""
    yield "<h2>Speed</h2>"
    if not rows:
        yield "<p>Nothing was measured.</p>"
        return
    yield (
        "<p>The time of a call under stock XLA over the time of ours: bars to the right of 1 are faster, bars"
        " to the left slower. <i>Ours</i> is the compiled program, whatever it takes. <i>jit</i> is"
        " <code>jax_cocktail.jit</code> without options, which uses stock XLA where that is faster. Error"
        " bars are intervals of 95 % for the noise within this run.</p>"
    )
    bars = [Bars(row.name, (row.ratio, row.auto_ratio)) for row in rows]
    ends = [end for bar in bars for value in bar.values for end in (value.low, value.high)]
    axis = charts.ratio_axis("time of stock XLA / time of ours", ends)
    yield charts.bar_chart("Speed-up over stock XLA", axis, bars, (("ours", _OURS), ("jit", _JIT)))


def _table(rows: Sequence[Row]) -> Iterator[str]:
    heads = (
        *("", "captured", "stock ms", "quartiles", "ours ms", "quartiles", "ratio", "interval", "jit"),
        *("jit uses", "units", "first call s: stock", "ours", "difference", "rounds", "other load"),
    )
    yield '<div class="wide"><table><tr>' + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"
    for row in rows:
        texts = (
            row.name,
            row.captured,
            f"{row.stock.median.middle * 1e3:.3f}",
            _quartiles(row.stock.quartiles),
            f"{row.ours.median.middle * 1e3:.3f}",
            _quartiles(row.ours.quartiles),
            f"{row.ratio.middle:.2f}",
            f"{row.ratio.low:.2f} to {row.ratio.high:.2f}",
            f"{row.auto_ratio.middle:.2f}",
            row.choice,
            str(row.units),
            f"{row.stock.first:.2f}",
            f"{row.ours.first:.2f}",
            f"{row.difference:.1e}" + (" (wrong)" if row.wrong else ""),
            str(row.rounds),
            f"{row.others:.0%}",
        )
        name = f'<td title="{escape(row.description)}">{escape(texts[0])}</td>'
        yield f"<tr>{name}" + "".join(f"<td>{escape(text)}</td>" for text in texts[1:]) + "</tr>"
    yield "</table></div>"
    yield (
        '<p class="faint">Captured: loops and branches that became custom calls, of all. Units: threads, or'
        " thread blocks of a GPU. First call: with compilation, or from the cache if the program was in it."
        " Difference: the largest between both results, relative to the largest element if that is above 1."
        " Other load: the share of the cores that other processes held meanwhile.</p>"
    )
    yield from (f"<p>{escape(text)}</p>" for row in rows for text in result.by_hand(row))


def _quartiles(pair: tuple[float, float]) -> str:
    return f"{pair[0] * 1e3:.3f} to {pair[1] * 1e3:.3f}"


# ---- roofline ----------------------------------------------------------------------------------------------


def _roofline(rows: Sequence[Row], machine: Ceilings | None) -> Iterator[str]:
    """Operations per second against operations per byte, under the machine's rates."""
    known = [row for row in rows if row.flops > 0 and row.bytes > 0]
    if machine is None or not known:
        return
    yield "<h2>Roofline</h2>"
    yield (
        "<p>Each number is a program: the operations of its custom calls per byte that they load or store,"
        " both as the plan predicts them, and the operations per second at the measured time of the whole"
        f" call. The lines are the {machine.source} rates of all cores: no program can be above the line of"
        " the memory that its bytes come from. A hollow mark is the same work in the time of stock XLA, which"
        " may move other bytes. A program far below all lines waits for something else: barriers, chains of"
        " small operations, one core.</p>"
    )
    if machine.others >= NOTABLE:
        yield (
            f"<p>The rates are too low: other processes held {machine.others:.0%} of the cores while they"
            " were measured.</p>"
        )
    wide = [row.flops / row.bytes for row in known]
    rates = [row.flops / time.median.middle for row in known for time in (row.ours, row.stock)]
    knees = [machine.flops / rate for rate in machine.levels.values()]
    x = charts.log_axis("operations per byte", [*wide, *knees], room=2)
    y = charts.log_axis("operations per second", [*rates, machine.flops], room=1.8)
    yield charts.plot("Roofline", x, y, [*_roofs(machine, x), *_programs(known)], height=440)
    items = (f"<b>{n}</b>&nbsp;{escape(row.name)}" for n, row in enumerate(known, 1))
    yield f'<p class="faint">{", ".join(items)}</p>'


def _roofs(machine: Ceilings, x: charts.Axis) -> Iterator[Series]:
    """The line of each level of memory, up to the rate of the arithmetic units."""
    dashes = ("", "7 4", "2 4")
    for (name, rate), dash in zip(machine.levels.items(), dashes, strict=False):
        ends = (x.low, min(machine.flops / rate, x.high), x.high)
        points = tuple(Point(at, _exact(min(at * rate, machine.flops))) for at in ends)
        yield Series(f"{name} {charts.short(rate, 'B/s')}", points, FAINT, shown=False, dash=dash)


def _programs(rows: Sequence[Row]) -> Iterator[Series]:
    for number, row in enumerate(rows, 1):
        at = row.flops / row.bytes
        rates = [row.flops / time.median.middle for time in (row.stock, row.ours)]
        notes = [
            f"{row.name}, {what}: {charts.short(rate, 'flop/s')} at {at:.3g} operations per byte"
            for what, rate in zip(("stock XLA", "ours"), rates, strict=True)
        ]
        stock, ours = (Point(at, _exact(rate), "", note) for rate, note in zip(rates, notes, strict=True))
        first = number == 1
        yield Series("", (stock, ours), FAINT, shown=False, dash="1 3")
        yield Series("stock XLA" if first else "", (stock,), _STOCK, hollow=True)
        shown = Point(ours.x, ours.y, str(number), ours.note)
        yield Series("ours" if first else "", (shown,), _OURS)


def _exact(value: float) -> Value:
    return Value(value, value, value)


# ---- scaling -----------------------------------------------------------------------------------------------


def _scaling(curves: Sequence[Curve]) -> Iterator[str]:
    shown = [curve for curve in curves if len(curve.steps) > 1]
    if not shown:
        return
    yield "<h2>Scaling</h2>"
    yield (
        "<p>Time of a call with a growing batch, and with a growing number of units: threads, or thread"
        " blocks of a GPU. With twice the units, the dotted line takes half the time. Stock XLA chooses"
        " its threads itself.</p>"
    )
    yield '<div class="pair">'
    for curve in shown:
        of = "batch sizes" if curve.axis == "batch" else "numbers of units"
        yield f"<div><h3>{escape(curve.model)}: {of}</h3>{_curve(curve)}</div>"
    yield "</div>"


def _curve(curve: Curve) -> str:
    series = []
    for name, color, hollow in (("stock XLA", _STOCK, True), ("ours", _OURS, False)):
        times = [(step.at, step.ours if name == "ours" else step.stock) for step in curve.steps]
        points = tuple(
            Point(at, time, "", f"{name}, {curve.axis} {at}: {charts.short(time.middle, 's')}")
            for at, time in times
        )
        series.append(Series(name, points, color, hollow=hollow))
    if curve.axis == "units":
        first = curve.steps[0]
        ideal = tuple(Point(step.at, _exact(first.ours.middle * first.at / step.at)) for step in curve.steps)
        series.append(Series("ideal", ideal, FAINT, shown=False, dash="2 4"))
    ends = [end for each in series for p in each.points for end in (p.y.low, p.y.high)]
    x = charts.count_axis(curve.axis, [step.at for step in curve.steps], log=True)
    y = charts.log_axis("time of a call", ends, "s")
    return charts.plot(f"{curve.model} by {curve.axis}", x, y, series, width=440, height=320)


# ---- facts -------------------------------------------------------------------------------------------------


def _facts(found: Result) -> Iterator[str]:
    """Versions, machine and settings."""
    machine, rates = found.machine, found.ceilings
    facts = {
        **found.versions,
        "devices": "; ".join(found.devices),
        "processor": machine.processor,
        "cores": f"{machine.cores} of {machine.all_cores}"
        + (f", {machine.quota:g} by the quota of the control group" if machine.quota else ""),
        "memory": charts.short(float(machine.memory_bytes), "B") if machine.memory_bytes else "unknown",
        "system": machine.system,
        "load at the end": "unknown" if machine.load is None else f"{machine.load:.2f}",
        **found.settings,
    }
    if rates is not None:
        parts = [f"{name} {charts.short(rate, 'B/s')}" for name, rate in rates.levels.items()]
        facts[f"{rates.source} rates"] = ", ".join((f"{charts.short(rates.flops, 'flop/s')} float32", *parts))
    yield '<h2>Versions and machine</h2><table class="words">'
    for name, value in facts.items():
        yield f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
    yield "</table>"
    yield f'<p class="faint">Schema of the JSON file: {escape(result.SCHEMA)}.</p>'
