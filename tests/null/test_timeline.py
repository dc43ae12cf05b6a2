"""Timelines from rings that are made by hand: slices, crossings, the critical path, pictures, files."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from jax_cocktail.codegen.stamps import HEAD_WORDS, Stamp
from jax_cocktail.timeline.rings import begin_of, read
from jax_cocktail.timeline.trace import Trace
from jax_cocktail.timeline.values import Crossing, Slice, Timeline
from jax_cocktail.utask.types import NOWHERE, Source
from jax_cocktail_tools.timeline.picture import COLORS, MOST_SLICES, MOST_UNITS, panel_of
from jax_cocktail_tools.timeline.table import lines

HERE = Source("rnn.py", 13, "rnn")
LOOP, WORK, ARRIVE, WAIT = (
    Stamp(1, "loop", "loop of 2", HERE),
    Stamp(2, "stage", "dot", HERE, 1),
    Stamp(3, "arrive", "arrive", NOWHERE, 1),
    Stamp(4, "wait", "wait", NOWHERE, 1),
)
ROWS = (LOOP, WORK, ARRIVE, WAIT)
ORDER = (1, 2, 3, 4, 1, 2, 3, 4, 1)  # two iterations
# Unit 0 works for 10 and 30, unit 1 for 20 and 20; a release comes 2 after the last arrival has become known.
TIMES = ((1, 2, 12, 13, 26, 27, 57, 58, 61), (1, 3, 23, 24, 26, 27, 47, 48, 61))
END = 64


def rings(clocks=TIMES, *, room=16, offsets=(0, 0), rate=1, differ=0, ended=(1, 1), order=ORDER):
    """The rings of two units. `rate`: cycles per nanosecond; `offsets`: of the units' clocks."""
    words = np.zeros((2, 1, HEAD_WORDS + 2 * room), np.uint64)
    for unit, times in enumerate(clocks):
        cycles = [offsets[unit] + rate * time for time in (0, *times, END)]
        head = [len(times), ended[unit], cycles[0], 1000, cycles[-1], 1000 + END, 2, differ]
        words[unit, 0, :HEAD_WORDS] = [
            value if ended[unit] or n not in (4, 5) else 0 for n, value in enumerate(head)
        ]
        for number, (clock, stamp) in enumerate(zip(cycles[1:-1], order, strict=True)):
            at = HEAD_WORDS + 2 * (number % room)
            words[unit, 0, at : at + 2] = clock, stamp
    return words


def timeline(words):
    return read(0, words, ROWS, 2, begin_of(words))


def test_slices_have_no_gaps():
    found = timeline(rings(rate=3))
    for unit, track in enumerate(found.tracks):
        assert [s.stamp.number for s in track] == [0, *ORDER]
        assert [s.begin for s in track] == pytest.approx([0, *TIMES[unit]])
        assert [s.end for s in track] == pytest.approx([*TIMES[unit], END])
    assert (found.start, found.end, found.stamps, found.kept) == (0, END, 18, 18)


def test_crossings():
    first, second = timeline(rings()).crossings
    assert (first.last, first.skew, first.publish, first.hop) == (1, 11, 1, 2)
    assert (second.last, second.skew, second.publish, second.hop) == (0, 10, 1, 3)


def test_critical_path_goes_to_who_arrives_last():
    path = timeline(rings()).critical
    assert [(s.unit, s.stamp.kind) for s in path] == [
        *[(1, "work"), (1, "loop"), (1, "stage"), (1, "arrive")],
        *[(0, "wait"), (0, "loop"), (0, "stage"), (0, "arrive")],
        *[(0, "wait"), (0, "loop")],
    ]
    assert path[0].begin == 0 and path[-1].end == END
    assert all(a.end == b.begin for a, b in zip(path, path[1:], strict=False))


def test_clocks_that_have_nothing_in_common_meet_at_crossings():
    """Wall clocks are read too coarsely to compare units; what they cross together tells the difference."""
    found = timeline(rings(offsets=(5000, 90_000_123), rate=2, differ=1))
    assert [s.begin for s in found.tracks[1]] == pytest.approx([0, *TIMES[1]])
    late = [[*TIMES[0]], [time + 40 for time in TIMES[1]]]
    moved = timeline(rings(late, differ=1))
    assert moved.crossings[0].released == pytest.approx((26, 26))
    assert timeline(rings(late)).crossings[0].released == (26, 66)  # clocks that are one are not moved


def test_rings_keep_the_last_stamps():
    found = timeline(rings(room=4))
    assert (found.stamps, found.kept) == (18, 8)
    for unit, track in enumerate(found.tracks):
        assert [s.stamp.number for s in track] == list(ORDER[-4:])
        assert [s.begin for s in track] == pytest.approx(TIMES[unit][-4:])
    assert len(found.crossings) == 1 and found.crossings[0].last == 0
    assert "the last 8" in lines(found)[0]


def test_a_unit_that_left_has_no_part_in_crossings():
    found = timeline(rings(ended=(1, 0)))
    assert found.crossings == () and found.tracks[1][-1].end == TIMES[1][-1]
    assert {s.unit for s in found.critical} == {0}


def test_only_units_that_took_part_are_read():
    words = rings()
    words[0, 0, 6] = 1
    assert len(timeline(words).tracks) == 1


def test_calls_share_one_time():
    words = rings()
    words[:, :, [3, 5]] += np.uint64(500)
    assert read(1, words, ROWS, 2, 1000).start == 500


def events(tmp_path, *regions):
    path = tmp_path / "trace.json"
    Trace("f", None, regions).perfetto(path)
    return json.loads(path.read_text())["traceEvents"]


def test_perfetto(tmp_path):
    found = events(tmp_path, timeline(rings()))
    slices = [e for e in found if e["ph"] == "X"]
    assert {e["args"]["name"] for e in found if e["ph"] == "M"} == {"unit 0", "unit 1", "critical path"}
    for process in (0, 1, 2):
        check_nesting([e for e in slices if e["pid"] == process])
    loops = [e for e in slices if e["cat"] == "loop" and e["pid"] == 0]
    assert [(e["ts"], e["dur"], e["args"]["source"]) for e in loops] == [
        (pytest.approx(0.001), pytest.approx(0.063), str(HERE))
    ]
    arrows = [e for e in found if e["ph"] in "sf"]
    starts, ends = ({e["id"]: e for e in arrows if e["ph"] == phase} for phase in "sf")
    assert starts.keys() == ends.keys() and len(starts) == 2
    assert [(starts[i]["pid"], ends[i]["pid"]) for i in sorted(starts)] == [(1, 0), (0, 1)]
    for i, start in starts.items():
        assert start["ts"] <= ends[i]["ts"]
        for arrow, kind in ((start, "arrive"), (ends[i], "wait")):
            assert any(
                e["cat"] == kind and e["pid"] == arrow["pid"] and e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"]
                for e in slices
            )


def check_nesting(slices):
    """Slices of a thread lie inside each other or side by side."""
    open_ = []
    for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        assert event["dur"] >= 0 and {"name", "cat", "ts", "pid", "tid", "args"} <= event.keys()
        while open_ and open_[-1] <= event["ts"] + 1e-9:
            open_.pop()
        assert not open_ or event["ts"] + event["dur"] <= open_[-1] + 1e-9
        open_.append(event["ts"] + event["dur"])


def test_calls_of_one_function_are_processes_of_their_own(tmp_path):
    found = events(tmp_path, timeline(rings()), timeline(rings()))
    assert {e["pid"] for e in found} == set(range(6))
    assert "call 0, unit 1" in {e["args"]["name"] for e in found if e["ph"] == "M"}
    assert len({e["id"] for e in found if e["ph"] == "s"}) == 4


def test_table():
    text = str(Trace("rnn", None, (timeline(rings()),), ("a note",)))
    for part in (
        "rnn: 1 custom call recorded\n  a note\n",
        "custom call 0: 2 units, 0.06 us, 18 stamps of level 2\n",
        "loop of 2",
        "rnn.py:13",
        "barrier in loop of 2",
    ):
        assert part in text
    assert text.splitlines()[-1].split()[-6:] == ["2", "0.01", "0.01", "0.00", "0.00", "rnn.py:13"]
    row = next(line for line in text.splitlines() if line.strip().startswith("dot"))
    assert (
        row.split()[1:5] == ["4", "0.02", "0.03", "0.03"] and row.split()[6] == "78%"
    )  # 50 of the path's 64


# ---- pictures ----------------------------------------------------------------------------------------------
SVG = "{http://www.w3.org/2000/svg}"


def shapes(svg, name):
    return list(ElementTree.fromstring(svg).iter(SVG + name))


def boxes(svg):
    """All rectangles but the ground."""
    return [rect for rect in shapes(svg, "rect") if rect.get("class") != "ground"]


def texts(svg):
    return [element.text for element in shapes(svg, "text")]


def test_a_panel_has_the_slices_of_the_window():
    found = timeline(rings())
    whole = panel_of(found)
    assert (whole.begin, whole.end, whole.released) == (0, END, (26, 61))
    kinds = [s.kind for s in whole.spans if s.unit == 1]
    assert kinds[:5] == ["other", "other", "product", "arrive", "wait"]
    pairs = zip(whole.critical, found.critical, strict=True)
    assert all((a.unit, a.begin, a.end) == (b.unit, b.begin, b.end) for a, b in pairs)
    part = panel_of(found, (10, 30))
    assert [(s.kind, s.begin, s.end) for s in part.spans if s.unit == 0] == [
        *[("product", 10, 12), ("arrive", 12, 13), ("wait", 13, 26), ("other", 26, 27), ("product", 27, 30)]
    ]
    assert part.released == (26,) and "0.0 \u00b5s of 0.1 \u00b5s" in part.title
    assert any("dot in loop of 2 at rnn.py:13 (rnn)" in s.tooltip for s in part.spans)


def test_a_picture_of_a_call():
    trace = Trace("rnn", None, (timeline(rings()),), ("a note",))
    svg = trace.to_svg()
    for part in ("rnn: 1 custom call recorded", "a note", "unit 0", "unit 1", "critical path", "\u00b5s"):
        assert part in texts(svg)
    assert svg == trace.to_svg() and 'fill="white"' not in svg
    kinds = [e.get("fill") for e in boxes(svg)]
    assert kinds.count(COLORS["product"][0]) == 4 + 2 + 1  # of units, of the critical path, and in the key
    told = [title.text for title in shapes(svg, "title")]
    assert sum("dot in loop of 2 at rnn.py:13 (rnn)" in each for each in told) == 6
    for rect in boxes(svg):
        assert 0 <= float(rect.get("x")) <= float(rect.get("x")) + float(rect.get("width")) <= 1080


def test_a_window_is_in_microseconds():
    late = replace(timeline(rings()), number=1, start=1e6)
    trace = Trace("rnn", None, (timeline(rings()), late))
    svg = trace.to_svg((0.02, 0.04))
    assert "custom call 0: 2 units, 0.0 \u00b5s of 0.1 \u00b5s" in texts(svg)
    assert {"0.02", "0.03", "0.04"} <= set(texts(svg))
    assert [text[:13] for text in texts(svg) if "call " in text[:13]] == [
        "custom call 0"
    ]  # not the later one
    with pytest.raises(ValueError, match="a window has a begin and a later end"):
        trace.to_svg((3, 3))


def long_timeline(units=2, iterations=400, length=10.0):
    """So many iterations of work and a barrier."""
    tracks = []
    for unit in range(units):
        track = []
        for n in range(iterations):
            for stamp, begin, end in ((WORK, 0, 8), (ARRIVE, 8, 8.1), (WAIT, 8.1, length)):
                track.append(Slice(unit, 0, stamp, n * length + begin, n * length + end))
        tracks.append(tuple(track))
    crossings = tuple(
        Crossing(WAIT, *((n * length + at,) * units for at in (8, 8.1, length))) for n in range(iterations)
    )
    counts = 3 * units * iterations
    return Timeline(0, units, 2, ROWS, 0.0, tuple(tracks), crossings, tracks[0], counts, counts)


def test_a_long_call_shows_iterations_from_its_middle():
    found = long_timeline()
    panel = panel_of(found)
    assert 1800 < panel.begin < panel.end < 2200
    assert panel.end == panel.released[-1] and panel.begin in [max(c.released) for c in found.crossings]
    assert 40 <= sum(span.unit == 0 for span in panel.spans) <= MOST_SLICES
    assert "of 4.0 \u00b5s" in panel.title


def test_short_slices_are_drawn_as_one():
    """The whole call has more slices than a picture has room for."""
    svg = Trace("f", None, (long_timeline(iterations=2000),)).to_svg((0, 20))
    rects = boxes(svg)
    assert 500 < len(rects) < 3 * 1400 and any("slices" in title.text for title in shapes(svg, "title"))
    assert max(float(r.get("x")) + float(r.get("width")) for r in rects) <= 1057


def test_many_units_are_cut():
    panel = panel_of(long_timeline(units=132, iterations=3))
    assert len(panel.units) == MOST_UNITS and "+ 116 more units" in panel.title


def test_a_notebook_shows_the_picture_and_the_table():
    html = Trace("<b>", None, (timeline(rings()),))._repr_html_()
    assert html.startswith("<div><svg ") and "stage, times in us" in html and "<b>" not in html
    empty = Trace("f", None, (), ("nothing",))
    assert empty._repr_html_() == "<pre>f: no custom calls recorded\n  nothing</pre>"
