"""Latency checks: kernels of the benchmark take as many emulated cycles as are recorded.

``python -m tests.cpu.latency_checks`` takes all rows that were measured on a card.
"""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu.elements import BY_HAND, ROWS, emulated_cycles, planned
from benchmarks.gpu.sass.emulate import LAYOUTS
from benchmarks.gpu.sass.machine import Multiprocessor, machine_for
from benchmarks.gpu.sass.programs import record, recorded_card
from benchmarks.gpu.sass.report import MEASURED
from jax_cocktail.device.nvidia import H200
from tests.cpu import latency_checks, sass, static_checks
from tests.cpu.cuda_compilers import nvcc

# An exchange, a wavefront, no crossing; of each architecture one.
CASES = [
    *(("sm_90", row) for row in ("nasrnn/1", "lstm/1", "attention/1")),
    ("sm_80", "nasrnn/1"),
    ("sm_100", "attention/1"),
]
BY_HAND_FACTOR = 1.3
MODEL_FACTOR = 1.6


@pytest.mark.skipif(not sass.tools(), reason=sass.NO_TOOLS)
@pytest.mark.parametrize(("arch", "row"), CASES)
def test_row(arch, row):
    known = latency_checks.recorded(arch, nvcc().release)
    if not known:
        pytest.skip("nothing is recorded for this release of nvcc")
    problem = latency_checks.problem(latency_checks.found(row, arch), known[row])
    assert not problem, f"{problem}; if meant: python -m tests.cpu.latency_checks {arch} {row} --update"


@pytest.mark.skipif(not sass.tools(), reason=sass.NO_TOOLS)
@pytest.mark.parametrize("row", BY_HAND)
def test_elements_beside_code_by_hand(row):
    """A thread runs the loop of an element as if somebody had written it in CUDA."""
    nvcc()
    ours, for_any, by_hand = emulated_cycles(row)
    assert by_hand > 1000 and max(ours, for_any) <= BY_HAND_FACTOR * by_hand
    if row == "lorenz/100000":  # the model knows the trips of this row
        model = planned(row, ROWS[row](), H200).ours * H200.clock_rate
        assert ours / MODEL_FACTOR < model < MODEL_FACTOR * ours


def test_what_is_recorded():
    for archs in json.loads(latency_checks.RECORDED.read_text()).values():
        assert archs.keys() <= LAYOUTS.keys() == static_checks.CARDS.keys()
        for arch, rows in archs.items():
            assert {row for each, row in CASES if each == arch} <= rows.keys() <= set(MEASURED)


@pytest.mark.parametrize(
    ("cycles", "crossings", "word"),
    [(1000, 3, ""), (1099, 3, ""), (1101, 3, "10% slower"), (800, 3, "20% faster"), (1000, 4, "crossings")],
)
def test_problems(cycles, crossings, word):
    here, there = ({"cycles": n, "crossings": {"barrier": k}} for n, k in ((cycles, crossings), (1000, 3)))
    said = latency_checks.problem(here, there)
    assert word in said and bool(said) == bool(word)


def test_records(tmp_path, monkeypatch):
    monkeypatch.setattr(latency_checks, "RECORDED", tmp_path / "cycles.json")
    one, other = {"cycles": 1, "crossings": {}}, {"cycles": 2, "crossings": {}}
    assert latency_checks.recorded("sm_90", "13.0") == {}
    latency_checks.record("sm_90", "13.0", {"lstm/1": one})
    latency_checks.record("sm_90", "13.0", {"attention/1": other})
    latency_checks.record("sm_80", "13.0", {"lstm/1": other})
    assert latency_checks.recorded("sm_90", "13.0") == {"attention/1": other, "lstm/1": one}
    assert latency_checks.recorded("sm_80", "13.0") == {"lstm/1": other}
    assert latency_checks.recorded("sm_90", "13.1") == {}


def test_the_machine_takes_what_a_card_measured():
    sections = record()
    found, arch = machine_for(recorded_card().arch, sections), recorded_card().arch
    figures = sections["measure"]["card"]["figures"]
    units = recorded_card().units
    assert found.barrier == figures[f"barrier, {units} blocks"]["seconds"] != Multiprocessor(arch).barrier
    assert found.hertz == 1e3 * sections["versions"]["all"]["card"]["attributes"]["clock_khz"]
    assert found.far_load == Multiprocessor(arch).far_load  # it does not say
    assert machine_for("sm_80", sections) == Multiprocessor("sm_80")
    more = {**figures, "shuffle": {"clocks": 31.5}, "block barrier, 256 threads": {"error": "no time"}}
    card = {**sections["measure"]["card"], "figures": more}
    with_clocks = machine_for(arch, {**sections, "measure": {"card": card}})
    assert with_clocks.shuffle == 31.5 and with_clocks.block_barrier == Multiprocessor(arch).block_barrier
