"""Batches of loops as rows of a pack: their ways, what is predicted of them, and what a run says of both."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from benchmarks.gpu import ensembles, pack, packed, report, ways
from benchmarks.gpu.ensembles import ENSEMBLES, Ensemble
from benchmarks.gpu.kernels import planned
from benchmarks.gpu.packed import BY_THREADS, TOGETHER
from benchmarks.gpu.roofline import predict
from benchmarks.gpu.rows import ROWS, widened
from jax_cocktail.device.nvidia import H200
from tests.api import small_pack
from tests.api.small_pack import kernels, ran

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

ROW, DRAWN = "collatz/10000", "metropolis/4096"


# ---- programs ----------------------------------------------------------------------------------------------


def steps_of(n):
    steps = 0
    while n > 1:
        n, steps = n // 2 if n % 2 == 0 else 3 * n + 1, steps + 1
    return steps


def test_trips():
    """Threads wait for the last one of their warp, elements that stay together for the last of all."""
    expected = [steps_of(n) for n in range(1, ensembles.SMALL + 1)]
    found = ENSEMBLES[ROW].trips_by_way(True, 64)
    warps = [max(expected[k : k + 64]) for k in range(0, len(expected), 64)]
    assert found == {BY_THREADS: round(np.mean(warps)), TOGETHER: max(expected)}
    assert ENSEMBLES["lorenz/100000"].trips_by_way(True, 32) == {}


@pytest.mark.parametrize("name", ENSEMBLES)
def test_elements_differ(name):
    """So that one in another's place is noticed; what is drawn does not depend on the precision."""
    function, arguments = ENSEMBLES[name].make(True)
    found = np.asarray(jax.jit(function)(*arguments))
    count = ensembles.SMALL_SIDE**2 if name.startswith("ray") else ensembles.SMALL
    assert found.reshape(count, -1).shape[0] == count
    assert len(np.unique(found.reshape(count, -1), axis=0)) > 0.2 * count
    with jax.enable_x64(True):
        wide = jax.jit(function)(*jax.tree.map(widened, arguments))
    assert ROWS[name].difference(found, wide) <= ROWS[name].tolerance


def test_strays():
    """The share that may be far is left out, and no more."""
    expected = np.arange(100.0)
    found = expected.copy()
    found[[3, 70]] += np.nan, 5
    assert np.array_equal(packed.without_strays(found, expected, 0.02), expected)
    assert np.abs(packed.without_strays(found, expected, 0.01) - expected).max() == 5
    assert packed.without_strays(found, expected, 0.009) is found
    result = packed.Result(packed.Type("float64", (100,)), 1, 99.0, 0.02)
    assert packed.difference([found], (result,), [expected]) == 0
    found[5] += 99
    assert packed.difference([found], (result,), [expected]) == pytest.approx(5 / 99)
    row = pack.Row("", lambda small: None, 1e-5, Ensemble(None, None, 1, strays=0.02))
    assert row.difference(found, expected) == pytest.approx(5 / 99)


# ---- what is packed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ROW, DRAWN])
def test_ways(name):
    """Both ways are packed, whatever the model says of them, and the best program is one of them."""
    row = ROWS[name]
    found = [(p.phase, pack.way_of(row, p.emitted)) for p in pack._plans(row, row.make(False), H200)]
    untraced = [way for phase, way in found if phase in ("best", "other")]
    assert {BY_THREADS, TOGETHER} == set(untraced) and found[0][0] == "best"
    assert len(found) <= pack.MOST_PLANS + 3


def test_a_way_that_the_model_dislikes(monkeypatch):
    monkeypatch.setattr(pack, "WORTH", 1.0)
    row = ROWS[ROW]
    found = list(pack._plans(row, row.make(False), H200))
    assert [pack.way_of(row, p.emitted) for p in found] == [
        BY_THREADS,
        TOGETHER,
        *([BY_THREADS] * 2),  # with a timeline, and exact
    ]


def test_other_rows_have_no_way():
    row = ROWS["vmapped_while"]
    assert {pack.way_of(row, p.emitted) for p in pack._plans(row, row.make(True), H200)} == {""}


def test_stock_runs_as_long_as_the_last_element():
    row = ROWS[ROW]
    short, long = (next(pack._plans(row, row.make(False), H200, n)).stock for n in (100, 200))
    assert long == pytest.approx(2 * short)


def test_predictions_know_the_trips():
    """Each way has its own."""
    row, trips = ROWS[ROW], {BY_THREADS: 171, TOGETHER: 261}
    for plan in pack._plans(row, row.make(False), H200):
        launch = SimpleNamespace(attribute=())
        artifact = SimpleNamespace(digest="", aliases=(), launch=launch, emitted=plan.emitted)
        found = pack._packed(row, plan, artifact, 0.0, H200, trips)
        assert found.way == pack.way_of(row, plan.emitted) and found.limit == row.tolerance
        known, assumed = (predict(plan.emitted, H200, n).seconds for n in (trips[found.way], None))
        assert found.predicted_seconds == known > assumed


# ---- a run -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_rows(tmp_path_factory):
    """A pack of two batches of loops, never written to."""
    return small_pack.made(tmp_path_factory.mktemp("pack"), (ROW, DRAWN))


def test_run(there):
    """Every way gives what float64 gives, and its time stands beside what was predicted of it."""
    finished, data = ran(there, only=(ROW, DRAWN))
    assert finished
    for row in (ROW, DRAWN):
        records = kernels(data)[row].values()
        assert {record["way"] for record in records} == {BY_THREADS, TOGETHER}
        assert all(record["ok"] and record["seconds"] > 0 for record in records)
        programs = {p.digest: p for p in there.row(row).programs}
        for record in records:
            program = programs[record["digest"]]
            assert record["predicted_seconds"] == program.predicted_seconds > 0
            assert record["predicted_stock_seconds"] == program.predicted_stock_seconds > 0
    lines = report.text(data).splitlines()
    begin = next(k for k, line in enumerate(lines) if line.startswith("batches of loops, us"))
    assert [line.split()[0] for line in lines[begin + 1 : begin + 3]] == [ROW, DRAWN]


def test_a_pack_of_other_fields_is_made_anew(there):
    """It may come from older sources; only what is packed now is read."""
    data = json.loads((there.folder / "collatz-10000.json").read_text())
    for program in data["programs"]:
        del program["way"], program["predicted_stock_seconds"]
    packed.write(there.folder / "collatz-10000.json", data | {"code": "older"})
    assert not there.has(ROW) and there.has(DRAWN)
    assert [row.name for row in there.rows()] == [DRAWN]


# ---- what is said of it ------------------------------------------------------------------------------------


def record(way, seconds, predicted, phase="other"):
    times = {"seconds": seconds, "predicted_seconds": predicted, "predicted_stock_seconds": 8e-3}
    return {**times, "way": way, "phase": phase, "ok": True, "code": "code"}


def sections(threads, together):
    """Of one row: measured and predicted seconds of each way."""
    records = {
        "132 units": record(BY_THREADS, *threads, phase="best"),
        "132 units, traced": record(BY_THREADS, 9.0, 0.0, phase="traced"),
        "8 units in a cluster": record(BY_THREADS, 2e-6, 9e-3),  # the model does not take it
        "132 units, batch together": record(TOGETHER, *together),
    }
    times = {"seconds": {"stock": 4e-3, "ours": 3e-5}, "differences": {"ours": 1e-7}}
    auto = {"choice": "cocktail", "seconds": {"auto": 3e-5}}
    return {"kernels": {ROW: records}, "times": {ROW: times}, "auto": {ROW: auto}}


@pytest.mark.parametrize(
    ("threads", "together", "ranked", "word"),
    [
        ((1e-5, 2e-5), (3e-4, 1e-4), True, "rightly"),
        ((5e-4, 2e-5), (3e-4, 1e-4), False, "WRONGLY"),
        ((5e-4, 2e-4), (3e-4, 1e-4), True, "rightly"),
    ],
)
def test_table(threads, together, ranked, word):
    """The best plan of each way by the model, measured and predicted, and whether the faster one is taken."""
    found = sections(threads, together)
    (row,) = ways.compared(found)
    assert (row.threads, row.together) == (ways.Pair(*threads), ways.Pair(*together))
    assert row.stock == ways.Pair(4e-3, 8e-3) and row.ranked is ranked
    lines = report.text({"sections": found}).splitlines()
    (line,) = (line for line in lines if line.startswith(ROW) and line.endswith(word))
    expected = [f"{1e6 * threads[0]:.1f}", f"{1e6 * threads[1]:.1f}", f"{threads[0] / threads[1]:.2f}"]
    assert line.split()[1:4] == expected
    assert line.split()[7:] == ["4000.0", "8000.0", "0.50", "30.0", "1.0e-07", "cocktail", word]


def test_fit():
    """The kernels of both ways are planned again for a record, each with the trips that it had."""
    spec = asdict(H200)
    card = {"name": H200.name, "attributes": {"clock_khz": 1_980_000}}
    names = ("132 units", "1 unit")
    records = {name: {"phase": "best", "seconds": 1e-5} for name in names}
    found = planned(
        {
            "sections": {
                "versions": {"all": {"card": card, "spec": spec}},
                "measure": {"card": {"spec": spec, "figures": {}}},
                "kernels": {ROW: records},
            }
        }
    )
    trips = ENSEMBLES[ROW].trips_by_way(False, H200.warp)
    assert found.plans[ROW].keys() == set(names) and trips[BY_THREADS] < trips[TOGETHER]
    assert found.trips_of(ROW, "132 units") == trips[BY_THREADS]
    assert found.trips_of(ROW, "1 unit") == trips[TOGETHER]


def test_table_without_one_way():
    """A program may have failed."""
    found = sections((1e-5, 2e-5), (3e-4, 1e-4))
    del found["kernels"][ROW]["132 units, batch together"], found["times"], found["auto"]
    (row,) = ways.compared(found)
    assert row.ranked is None and row.together == ways.Pair() and row.stock == ways.Pair(None, 8e-3)
    text = report.text({"sections": found})
    assert "rightly" not in text and "WRONGLY" not in text
    assert "batches of loops" not in report.text({"sections": {}})
