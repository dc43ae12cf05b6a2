"""The tree that a report has of an emitted program, and the lines of source that it names."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from jax_cocktail import Report
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.cost.price import barriers_per_iteration, our_price, statement_seconds
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.nvidia import H100
from jax_cocktail.report import Captured, Left
from jax_cocktail.report.code import code_of, flat, parsed, short
from jax_cocktail.report.tree import tree_of
from jax_cocktail.stitch.edges import edges
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import LoopUTask, StitchedUTask, is_a, walk
from tests.null.wavefronts import stacked_lstm

MACHINES = {"processor": machine_of(None), "card": machine_of(H100)}


@pytest.fixture(scope="module", params=MACHINES)
def made(request):
    """An emitted LSTM with its tree: two layers, six steps, two units."""
    machine: Machine = MACHINES[request.param]
    emitted = emit(stacked_lstm(2, 6, 1, 160), machine, candidate=Candidate(2))
    return emitted, *tree_of(emitted.program, 2, machine, edges(emitted.program, emitted.plan))


def test_nodes_are_the_statements_of_the_program(made):
    emitted, tree, _ = made
    nodes, statements = list(flat(tree)), list(walk(emitted.program.entry))
    assert [n.number for n in nodes] == sorted({n.number for n in nodes})
    loops = [n for n in nodes if n.kind in ("loop", "parts")]
    assert [n.trips for n in loops] == [s.trip_count for s in _in_order(emitted.program.entry)]
    assert sum(n.kind == "barrier" for n in nodes) == sum(is_a(s, "wait") for s in statements)
    assert any(n.kind == "stage" and "dot" in n.what for n in nodes)
    groups = [s for s in statements if isinstance(s, StitchedUTask)]
    assert 0 < sum("tanh" in n.what for n in nodes) <= len(groups)
    counts = sorted(count for _, count in barriers_per_iteration(emitted.program))
    assert sorted(n.barriers for n in loops if n.barriers) == counts


def _in_order(region):
    """The loops, each before those inside it."""
    for statement in region.body:
        if isinstance(statement, LoopUTask):
            yield statement
        for inner in getattr(statement, "regions", ()):
            yield from _in_order(inner)


def test_times_add_up_to_the_price(made):
    emitted, tree, _ = made
    seconds = statement_seconds(emitted.program, 2, emitted.machine)
    total = sum(seconds[id(s)] for s in emitted.program.entry.body)
    price = our_price(emitted.program, 2, emitted.machine, emitted.plan).seconds
    assert 0.1 * price < total <= price if emitted.machine.is_gpu else price * 0.5 < total < price
    nodes = list(flat(tree))
    assert all(n.seconds > 0 for n in nodes if n.kind in ("loop", "parts", "barrier"))
    for loop in (n for n in nodes if n.kind == "loop"):
        assert sum(n.seconds for n in loop.inner) == pytest.approx(loop.seconds, rel=0.2)


def test_flows_lead_from_node_to_node(made):
    emitted, tree, flows = made
    nodes = {n.number: n for n in flat(tree)}
    assert {f.made for f in flows} | {f.read for f in flows} <= nodes.keys()
    crossing = [f for f in flows if f.scheme == "global"]
    assert crossing and all(f.made != f.read for f in crossing)
    assert any("dot" in nodes[f.read].what for f in crossing)
    assert {f.scheme for f in flows if f.made == f.read} >= {"local"}
    whole = sum(e.bytes for e in edges(emitted.program, emitted.plan))
    assert 0.9 * whole <= sum(f.bytes for f in flows) <= whole


def test_it_can_be_drawn(made):
    emitted, tree, flows = made
    region = Captured((), (), "", 0, "f" * 64, "", 0.0, True, units=2, tree=tree, flows=flows)
    ElementTree.fromstring(Report("lstm", (region,)).to_svg())
    assert Report.from_dict(Report("lstm", (region,)).to_dict()).captured == (region,)


def test_places():
    assert parsed("a b/c.py:3 (f.<locals>.g)") == ("a b/c.py", 3, "f.<locals>.g")
    assert parsed("<ipython-input-1>:12") == ("<ipython-input-1>", 12, "")
    assert parsed("") is None and parsed("nowhere") is None
    assert short("a b/c.py:3 (f)") == "c.py:3" and short("nowhere") == "nowhere"


def test_lines_are_read_where_they_can_be(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("first\n    second line  \n" + "x" * 500 + "\n")
    where = [f"{path}:{n} (f)" for n in (1, 2, 3, 99)]
    region = Captured((f"scan at {where[0]}",), (), "", 0, "", "", 0.0, True, barriers=((3, where[1], 1),))
    left = (Left("while", "a reason", where[2], where[3]), Left("while", "a reason", "absent.py:1 (f)"))
    code = dict(code_of(Report("f", (region,), left)))
    assert code.pop(where[2]).startswith("xxx") and len(code_of(Report("f", (region,), left))[2][1]) == 200
    assert code == {where[0]: "first", where[1]: "second line"}
    path.write_text("changed\n")
    assert dict(code_of(Report("f", (replace(region, barriers=()),))))[where[0]] == "changed"
