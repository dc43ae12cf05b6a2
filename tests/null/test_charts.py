"""Charts: axes, what is drawn where, and that they are SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from jax_cocktail_tools import charts
from jax_cocktail_tools.charts import Axis, Bars, Point, Series, Value

NAME = "{http://www.w3.org/2000/svg}"


def test_axes_place_values() -> None:
    assert Axis("", 1.0, 100.0, ()).part(10.0) == pytest.approx(0.5)
    assert Axis("", 0.0, 4.0, (), log=False).part(1.0) == 0.25


@pytest.mark.parametrize("values", [(3.0, 4.0), (1e-6, 2e3), (5.0,), (), (0.0, float("inf"), 2.0)])
def test_logarithmic_axes_hold_their_values_and_have_ticks(values) -> None:
    axis = charts.log_axis("time", values, "s")
    assert all(axis.low < value < axis.high for value in values if 0 < value < float("inf"))
    assert 1 <= len(axis.ticks) <= 10
    assert all(axis.low <= tick <= axis.high for tick, _ in axis.ticks)


@pytest.mark.parametrize("values", [(0.9, 1.1), (0.01, 60.0), (1e-9, 1e9), ()])
def test_axes_of_ratios_hold_1(values) -> None:
    axis = charts.ratio_axis("", values)
    assert axis.low < 1.0 < axis.high and all(axis.low < value < axis.high for value in values)
    assert (1.0, "1\N{MULTIPLICATION SIGN}") in axis.ticks and len(axis.ticks) <= 11


def test_short_numbers() -> None:
    told = [charts.short(*each) for each in ((2.5e9, "B/s"), (999.9e6, "B"), (1.5e-3, "s"), (2e-9, "s"))]
    assert told == ["2.5 GB/s", "1 GB", "1.5 ms", "2e-09 s"]
    assert charts.short(12.0) == "12" and charts.short(1e3) == "1 k" and charts.short(0.25) == "0.25"


def test_bars_go_from_1_in_the_right_direction() -> None:
    rows = [
        Bars("fast & <new>", (Value(4.0, 3.0, 5.0),)),
        Bars("slow", (Value(0.5, 0.4, 0.6),)),
    ]
    root = ElementTree.fromstring(
        charts.bar_chart("Speed", charts.ratio_axis("", (0.4, 5.0)), rows, [("ours", "red")])
    )
    assert root.get("aria-label") == "Speed"
    fast, slow = ([float(rect.get(key)) for key in ("x", "width")] for rect in root.iter(f"{NAME}rect"))
    assert sum(slow) == pytest.approx(fast[0], abs=0.2), "both end at 1"
    assert fast[1] == pytest.approx(2 * slow[1], rel=0.01), "4 is two doublings, 0.5 is one"
    texts = [text.text for text in root.iter(f"{NAME}text")]
    assert "fast & <new>" in texts and "4.00" in texts and "0.50" in texts
    notes = [title.text for title in root.iter(f"{NAME}title")]
    assert notes[0] == "fast & <new>, ours: 4 (3 to 5)"


def test_plots_have_lines_marks_and_error_bars() -> None:
    points = (Point(1, Value(2.0, 1.5, 2.5), "a"), Point(4, Value(8.0, 8.0, 8.0), note="b"))
    series = [
        Series("ours", points, charts.COLORS[0], hollow=True),
        Series("ideal", points, charts.FAINT, shown=False, dash="2 4"),
        Series("", points, charts.FAINT, joined=False),
    ]
    x, y = charts.count_axis("batch", (1, 4), log=True), charts.log_axis("time", (1.5, 8.0), "s")
    text = charts.plot("by batch", x, y, series)
    root = ElementTree.fromstring(text)
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(f"{NAME}circle")]
    assert len(circles) == 4 and circles[0] == circles[2]
    assert circles[0][0] < circles[1][0] and circles[0][1] > circles[1][1], "y goes up"
    lines = [each for each in root.iter(f"{NAME}line") if each.get("stroke") == charts.COLORS[0]]
    assert len(lines) == 2, "one in the legend, one between the points"
    assert sum(each.get("stroke") == charts.INK for each in root.iter(f"{NAME}line")) == 2 * 3
    texts = [each.text for each in root.iter(f"{NAME}text")]
    assert {"ours", "ideal", "1", "4", "a", "batch", "time"} <= {*texts} and "" not in texts
    assert not re.search(r"nan|inf", text.lower().replace("infer", ""))


def test_what_is_beyond_an_axis_is_at_its_end() -> None:
    axis = Axis("", 1.0, 10.0, ((1.0, "1"),))
    inside = Series("", (Point(100.0, Value(0.0, 0.0, 1e9)),), "red")
    root = ElementTree.fromstring(charts.plot("", axis, axis, [inside], width=400, height=300))
    (circle,) = root.iter(f"{NAME}circle")
    assert float(circle.get("cx")) == 400 - 18


def test_long_legends_take_several_lines() -> None:
    axis = Axis("", 1.0, 10.0, ((1.0, "1"),))
    names = [f"a long name with the number {n}" for n in range(4)]
    series = [Series(name, (), "red") for name in names]
    root = ElementTree.fromstring(charts.plot("", axis, axis, series, width=440))
    heights = [each.get("y") for each in root.iter(f"{NAME}text") if each.text in names]
    assert len({*heights}) > 1
    assert all(
        float(each.get("x")) + 6.6 * len(each.text) <= 440
        for each in root.iter(f"{NAME}text")
        if each.text in names
    )
