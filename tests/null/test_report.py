"""Reports that are made by hand: as HTML, as pictures, as plain data, and compared."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from xml.etree import ElementTree

import pytest

from jax_cocktail import Report
from jax_cocktail.report import Captured, Edge, Flow, Left, Memory, Node, Setting, Stock, Trial
from jax_cocktail.report.values import KINDS, SCHEMES
from jax_cocktail_tools.report.picture import MOST_FLOWS, MOST_NODES, limited

EVIL = "<script>alert('x')</script> & \"quotes\" \x07"
STEP, SCAN = "rnn.py:10 (rnn.<locals>.step)", "rnn.py:13 (rnn)"
DOT, TANH = Node(3, "stage", "dot", STEP, None, 9e-6), Node(7, "stage", "tanh", SCAN, others=(STEP,))
SIDES = (Node(5, "side", "side 0"), Node(6, "side", "side 1", inner=(TANH,)))
BODY = (
    Node(1, "barrier", "barrier", seconds=2.5e-7),
    Node(2, "parts", "parallel loop", STEP, 2, 1e-5, inner=(DOT,)),
    Node(4, "branch", "branch of 2", STEP, inner=SIDES),
)
TREE = (Node(0, "loop", "loop", SCAN, trips=50, seconds=1.2e-5, barriers=1, inner=BODY),)
FLOWS = (Flow(3, 7, "global", 4096.0), Flow(7, 3, "regional", 2048.0), Flow(7, 7, "local", 1024.0, 2))
REGION = Captured(
    (f"scan at {SCAN}",),
    (("dot_general", 1), ("tanh", 1)),
    "device (L2)",
    2048,
    "f" * 64,
    "folder/program.so",
    0.5,
    False,
    units=2,
    barriers=((50, SCAN, 1),),
    fired=("hoist", "place"),
    remarks=("place: an axis",),
    exits=(f"{STEP}: a reason",),
    exited=(1, 3),
    waits=50.0,
    loaded_bytes=1e6,
    stored_bytes=1e5,
    edges=(Edge(f"dot at {STEP}", f"tanh at {STEP}", "global", "other units read it", 4096.0, 0.0),),
    stock=Stock(100.0, 2e6),
    memory=(Memory("workspace", 2048, 1024, 4096),),
    lengths=((50, SCAN),),
    tree=TREE,
    flows=FLOWS,
)
REPORT = Report(
    "rnn",
    (REGION,),
    (Left("while", "it has side effects", "rnn.py:20 (rnn)", "rnn.py:18 (rnn)"),),
    beside=(("dot_general", 2),),
    recursions=("fib: levels",),
    choice="cocktail",
    why="measured before",
    stock_seconds=2e-3,
    cocktail_seconds=7e-4,
    trials=(Trial("stock XLA", 2e-3), Trial("2 units", 7e-4, chosen=True)),
    others=0.3,
    pressure="1 call so far lost units",
    inner=(Report("inner", why="it contains no loop or branch"),),
    made=Setting("0.1.0", "0.10.2", "a processor", 2),
    code=((STEP, "h = jnp.tanh(h @ w + x @ u)"), (SCAN, "return lax.scan(step, h, xs)")),
)


def evil(value):
    """The same value, with markup in the place of every text but those that the program knows."""
    if isinstance(value, tuple):
        return tuple(map(evil, value))
    if isinstance(value, str):
        known = value in (*KINDS, *SCHEMES, "cocktail", "stock")
        return value if known else f"{EVIL}:7 ({EVIL})" if ":1" in value else EVIL
    if hasattr(value, "__dataclass_fields__"):
        return type(value)(**{field.name: evil(getattr(value, field.name)) for field in fields(value)})
    return value


def texts(svg):
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and not list(root.iter("script"))
    return [element.text for element in root.iter() if element.text and element.text.strip()]


def well_formed(html):
    """The HTML as XML: all that it contains is closed, but for the names of characters."""
    return ElementTree.fromstring(html.replace("&emsp;", " ").replace("<br>", "<br/>"))


# ---- forms -------------------------------------------------------------------------------------------------
def test_markup_in_texts_is_escaped():
    report = evil(REPORT)
    assert EVIL in str(report)
    for form in (report._repr_html_(), report.to_svg(), report.difference(REPORT)._repr_html_()):
        assert "<script" not in form and "alert(" in form
        well_formed(form)


def test_html_has_what_the_text_has():
    found = "".join(well_formed(REPORT._repr_html_()).itertext())
    for part in (
        "rnn runs on jax_cocktail (measured before)",
        "2 units",
        "busy",  # in place of a speedup
        "custom call 0",
        "h = jnp.tanh(h @ w + x @ u)",
        "workspace",
        "other units read it",
        "place: an axis",
        "it has side effects",
        "side exit at",
        "fib: levels",
        "other processes held 30%",
        "inner",
        "jax_cocktail 0.1.0, jax 0.10.2, a processor, 2 cores",
    ):
        assert part in found, part
    assert REPORT._repr_html_().count("<details") >= 8


def test_pages_have_no_colours_of_their_own():
    """What is grey has the colour of the text around it, so the page may be light or dark."""
    html = REPORT._repr_html_()
    assert "currentColor" in html and "#1f2933" not in html and 'fill="white"' not in html
    assert "prefers-color-scheme" not in html and "prefers-color-scheme:dark" in REPORT.to_svg()


def test_picture():
    svg = REPORT.to_svg()
    found = texts(svg)
    for part in (
        "rnn",
        "loop, 50 trips",
        "1 barrier, 12.0 us per iteration",
        "barrier",
        "parallel loop, 2 trips",
        "dot",
        "2 local \u00b7 0 ns",
        "side 0",
        "+ 1 line",
        "rnn.py:10",
        "h = jnp.tanh(h @ w + x @ u)",
        "left to stock XLA: while",
        "edge in memory that all units see",
        "global: 1 edge, 4.0 KiB a call",
    ):
        assert part in found, part
    assert svg.count("<polyline") == 2 and svg == REPORT.to_svg()
    rects = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect")
    boxes = [
        {key: float(e.attrib[key]) for key in ("x", "y", "width", "height")}
        for e in rects
        if e.get("class") != "ground"
    ]
    loop, parts, stage = boxes[0], boxes[1], boxes[2]
    for outer, inner in ((loop, parts), (parts, stage)):
        assert outer["x"] < inner["x"] and outer["y"] < inner["y"]
        assert inner["x"] + inner["width"] < outer["x"] + outer["width"]
        assert inner["y"] + inner["height"] < outer["y"] + outer["height"]


def test_large_programs_are_cut_and_say_so():
    """The parts that take most time are drawn, in the order of the program."""
    nodes = tuple(Node(n, "stage", f"stage {n}", seconds=1e-6 * (n % 7)) for n in range(500))
    *shown, more = limited(nodes, MOST_NODES)
    assert [n.number for n in shown] == sorted(n.number for n in shown) and len(shown) == MOST_NODES
    assert more.what == f"+ {500 - MOST_NODES} more parts" and all(n.number % 7 == 6 for n in shown)
    flows = tuple(Flow(a, b, "regional", 8.0) for a in range(6, 300, 7) for b in range(13, 300, 49) if a != b)
    svg = replace(REPORT, captured=(replace(REGION, tree=nodes, flows=flows),), left=()).to_svg()
    more = [int(m[1]) for text in texts(svg) if (m := re.match(r"\+ (\d+) more edges", text))]
    assert f"+ {500 - MOST_NODES} more parts" in texts(svg) and svg.count("<rect") < 2 * MOST_NODES
    assert 0 < svg.count("<polyline") <= MOST_FLOWS and more == [len(flows) - svg.count("<polyline")]


def test_loops_count_with_all_their_iterations():
    inner = Node(2, "stage", "tanh", seconds=1e-6)
    loop = Node(1, "loop", "loop", trips=9, seconds=1e-6, inner=(inner,))
    shown, more = limited((Node(0, "stage", "dot", seconds=5e-6), loop), 2)
    assert shown == loop and more.what == "+ 1 more part"


def test_a_report_without_programs():
    report = Report("f", why="it contains no loop or branch")
    assert "it contains no loop or branch" in " ".join(texts(report.to_svg()))
    assert str(report) == "f: runs on stock XLA (it contains no loop or branch)"
    well_formed(report._repr_html_())


# ---- plain data --------------------------------------------------------------------------------------------
def test_a_round_trip_keeps_everything(tmp_path):
    assert Report.from_dict(REPORT.to_dict()) == REPORT
    REPORT.save(tmp_path / "report.json")
    loaded = Report.load(tmp_path / "report.json")
    assert loaded == REPORT and type(loaded) is type(loaded.inner[0]) is Report
    assert str(loaded) == str(REPORT) and loaded.to_svg() == REPORT.to_svg()
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == 1


def test_files_by_suffix(tmp_path):
    begins = {".html": "<!DOCTYPE html>", ".svg": "<svg ", ".txt": str(REPORT), ".json": "{"}
    for suffix, begin in begins.items():
        REPORT.save(tmp_path / f"report{suffix}")
        assert (tmp_path / f"report{suffix}").read_text(encoding="utf-8").startswith(begin)
    with pytest.raises(ValueError, match=r"'report.pdf': the suffix .* is .json, .html, .svg or .txt"):
        REPORT.save(tmp_path / "report.pdf")
    assert not (tmp_path / "report.pdf").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "not a report of schema 1: its schema is 2"),
        ({"function": 3}, "report.function: 3 is not of type str"),
        ({"captured": 3}, "report.captured: 3 is no list"),
        ({"trials": [{"name": "x"}]}, r"report.trials\[0\] lacks the field 'seconds'"),
        ({"beside": [["add"]]}, r"report.beside\[0\]: 1 items in place of 2"),
        ({"made": {"moon": 1}}, "report.made has no field 'moon'"),
        ({"others": True}, "report.others: True is not of type float"),
    ],
)
def test_data_that_are_no_report_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Report.from_dict({**REPORT.to_dict(), **change})


def test_fields_that_are_missing_have_defaults():
    assert Report.from_dict({"schema": 1, "function": "f"}) == Report("f")


# ---- differences -------------------------------------------------------------------------------------------
def slower(seconds=1.4e-3, **changes):
    """The report of a slower call."""
    trials = (Trial("stock XLA", 2e-3), Trial("2 units", seconds, chosen=True))
    return replace(REPORT, **{"cocktail_seconds": seconds, "trials": trials, **changes})


def in_region(**changes):
    return (replace(REGION, fingerprint="e" * 64, **changes),)


def test_nothing_differs():
    found = REPORT.difference(REPORT)
    assert found.findings == () and not found.has_new_time
    assert str(found).splitlines()[:2] == ["rnn: as fast as before: 700.0 us before, 700.0 us now",
                                           "  nothing else differs"]  # fmt: skip


@pytest.mark.parametrize(
    ("new", "topic", "text"),
    [
        (slower(choice="stock", stock_seconds=2e-3), "the choice", "stock XLA runs it now"),
        (
            slower(left=(*REPORT.left, Left("scan", "an operation", "rnn.py:30 (rnn)", "rnn.py:29 (g)"))),
            "a loop left to stock XLA",
            "scan at rnn.py:30: an operation at rnn.py:29",
        ),
        (slower(captured=()), "a custom call lost", "scan at rnn.py:13"),
        (slower(captured=(REGION, replace(REGION, control_flow=("while at rnn.py:40 (g)",)))),
         "a custom call gained", "while at rnn.py:40"),
        (slower(made=replace(REPORT.made, jax="0.11.0")), "the version of jax", "0.10.2 before, 0.11.0 now"),
        (slower(), "the machine", "the custom calls are the same; stock XLA took 1.00 times"),
        (slower(captured=in_region(), others=0.6), "other processes", "30% of the cores"),
        (slower(captured=in_region(units=1)), "the units", "2 before, 1 now"),
        (slower(captured=in_region(barriers=((50, SCAN, 3),))), "the barriers", "1 before, 3 now"),
        (slower(captured=in_region(waits=100.0)), "the barriers", "50 barriers a call before, 100 now"),
        (slower(captured=in_region(loaded_bytes=9e6)), "the bytes", "1.0 MiB a call before, 8.7 MiB now"),
        (slower(captured=in_region(edges=())), "the edges", "1 global before and 0 now"),
        (slower(captured=in_region(fired=("hoist",))), "the passes", "no longer changed by place"),
        (slower(captured=in_region(exited=(9, 9))), "side exits", "9 of 9 calls"),
        (slower(captured=in_region(operators=(("tanh", 2),))), "the operators", "tanh 1 times before"),
        (slower(captured=in_region(workspace_bytes=1 << 20)), "the workspace", "2.0 KiB before, 1.0 MiB now"),
    ],
)  # fmt: skip
def test_the_most_likely_cause_comes_first(new, topic, text):
    found = new.difference(REPORT)
    assert found.has_new_time and "slower" in found.summary
    assert found.findings[0].topic == topic and text in found.findings[0].text
    assert str(found).splitlines()[1].startswith(f"  most likely because of {topic}: ")
    assert topic in "".join(well_formed(found._repr_html_()).itertext())
    back = REPORT.difference(new)
    assert "faster" in back.summary and back.findings


@pytest.mark.parametrize("what", ["beside", "inner", "no custom call"])
def test_another_program_is_not_the_machine(what):
    """Equal custom calls do not mean equal programs."""
    beside = (("dot_general", 200),)
    if what == "inner":
        old, new = (replace(REPORT, inner=(replace(REPORT, captured=c),)) for c in ((REGION,), ()))
    else:
        old = replace(REPORT, captured=()) if what == "no custom call" else REPORT
        new = replace(old, beside=beside)
    found = replace(new, cocktail_seconds=9 * REPORT.cocktail_seconds).difference(old)
    assert found.findings and "the machine" not in [each.topic for each in found.findings]


def test_custom_calls_are_matched_by_place():
    """An order that has changed, and lines that have moved, are no difference."""
    other = replace(REGION, control_flow=("while at rnn.py:40 (g)",), units=1)
    old = replace(REPORT, captured=(REGION, other))
    assert replace(REPORT, captured=(other, REGION)).difference(old).findings == ()
    moved = replace(REGION, control_flow=("scan at rnn.py:15 (rnn)",), units=4)
    (finding,) = replace(REPORT, captured=(other, moved)).difference(old).findings
    assert (finding.topic, finding.text) == ("the units", "2 before, 4 now, in scan at rnn.py:15")
    lower = replace(REPORT.left[0], where="rnn.py:22 (rnn)", culprit="rnn.py:21 (rnn)")
    assert replace(REPORT, left=(lower,)).difference(REPORT).findings == ()


def test_times_of_candidates_are_compared():
    new = slower(trials=(Trial("stock XLA", 2e-3), Trial("1 unit", 1.4e-3, chosen=True)))
    found = new.difference(REPORT)
    assert found.times == (("stock XLA", 2e-3, 2e-3), ("2 units", 7e-4, None), ("1 unit", None, 1.4e-3))
    assert str(found).splitlines()[-1].split() == ["1", "unit", "1,400.0"]
    unknown = replace(REPORT, cocktail_seconds=None)
    assert unknown.difference(REPORT).summary == "the time of a call was not measured in both reports"


def test_no_speedup_of_a_busy_machine():
    """Others held cores while both were timed, so the ratio of the times says nothing."""
    assert "2.86" not in str(REPORT) and "busy" in str(REPORT) and "on a busy machine" in str(REPORT)
    quiet = replace(REPORT, others=0.0)
    assert "2.86" in str(quiet) and "busy" not in str(quiet) and "2.86" in quiet._repr_html_()
