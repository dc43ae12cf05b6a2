"""Timelines from rings that are made by hand: slices, crossings, the critical path, files for Perfetto."""

from __future__ import annotations

import json

import numpy as np
import pytest

from jax_cocktail.codegen.stamps import HEAD_WORDS, Stamp
from jax_cocktail.timeline.rings import begin_of, read
from jax_cocktail.timeline.table import lines
from jax_cocktail.timeline.trace import Trace
from jax_cocktail.utask.types import NOWHERE, Source

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
