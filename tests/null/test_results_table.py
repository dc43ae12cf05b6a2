"""The tables of measured figures in README.md and docs/gpu.md are what the script writes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import results_table
from benchmarks.gpu.roofline import limit_seconds
from benchmarks.results_table import PAGES, ROOT, TABLES, Run, written
from jax_cocktail.device.nvidia import H200


@pytest.mark.parametrize("page", PAGES)
def test_committed_tables_are_up_to_date(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "<!-- begin results:" in text
    assert written(text, results_table.runs()) == text, "run benchmarks/results_table.py"


@pytest.fixture
def run():
    sections = {
        "versions": {"all": {"card": {"name": "Card"}}},
        "reference": {"a/1": {}, "b": {}, "c": {}},
        "correct": {"a/1": {"ok": True}, "b": {"ok": False}},
        "times": {
            "a/1": {
                "seconds": {"ours": 2e-6, "stock": 3e-5, "graphs": 1e-5},
                "kernel": {"seconds": 4e-6},
            },
            "b": {"seconds": {"ours": 1.23456e-3, "stock": 1e-3}},
            "c": {"skipped": "no time left"},
        },
        "plan": {"a/1@card": {"plan": "2 units", "barriers": 3.5, "seconds": 1e-6}},
        "auto": {
            "b": {"choice": "stock", "trials": {"stock XLA": 1e-3, "1 unit": 2e-3}},
            "c": {"error": "stopped"},
        },
    }
    goal = {"target": "a/1: stock / ours", "limit": 20, "unit": "x", "least": True}
    targets = [{**goal, "value": 15.0, "state": "missed"}]
    return Run({"sections": sections, "targets": targets}, Path("gpu_check_card.json"))


def test_cells(run):
    assert "| a/1 | 2 | 30 | 10 | 15 | 5.0 | 20 |" in TABLES["calls"](run)
    assert "| b | 1,230 | 1,000 | - | 0.81 | 0.81 | - |" in TABLES["calls"](run)
    assert "| c " not in TABLES["calls"](run)
    assert "| a/1 | 2 units | 3.5 | 4 | 1 | - | 4.0 |" in TABLES["kernels"](run)
    assert "| b | - | - | - | - | - | - |" in TABLES["kernels"](run)
    assert "| b | stock XLA | stock XLA: 1,000; 1 unit: 2,000 |" in TABLES["decided"](run)
    assert "| tagged hop | <= 0.75 us | - | not measured |" in TABLES["goals"](run)


def test_goals_and_limits_are_those_of_today(run):
    """Whatever the record says of them."""
    figures = {"hop, tagged, 1 word": {"seconds": 4.3e-7}}
    card = {"name": H200.name, "arch": H200.arch, "attributes": {"clock_khz": 1_980_000}}
    sections = {
        **run.figures["sections"],
        "versions": {"all": {"card": card}},
        "measure": {"card": {"figures": figures, "spec": asdict(H200)}},
        "reference": {"attention/1": {}},
        "times": {"attention/1": {"kernel": {"seconds": 5e-5}}},
        "plan": {
            "attention/1@card": {"plan": "12 units", "barriers": 0, "seconds": 2e-5, "limit_seconds": 1}
        },
    }
    found = replace(run, figures={**run.figures, "sections": sections})
    limit = limit_seconds("attention/1", H200)
    assert f"| attention/1 | 12 units | 0 | 50 | 20 | {1e6 * limit:.3g} | 2.5 |" in TABLES["kernels"](found)
    goals = TABLES["goals"](found)
    assert "| tagged hop | <= 0.75 us | 0.43 us | met |" in goals
    assert f"worst model | <= 2 x | {5e-5 / limit:.3g} x | missed |" in goals


def test_ways_of_a_batch_of_loops(run):
    """The prices of both beside what they took, and whether the model takes the faster one."""
    assert "No batch of loops has run on Card yet." in TABLES["elements"](run)
    row, sections = "lorenz/100000", run.figures["sections"]
    times = {"by threads": (1e-4, 2e-4), "together": (5e-5, 7e-4)}
    sections["kernels"] = {
        row: {
            way: {
                "way": way,
                "phase": "other",
                "seconds": seconds,
                "predicted_seconds": predicted,
                "predicted_stock_seconds": 1e-2,
            }
            for way, (seconds, predicted) in times.items()
        }
    }
    line = f"| {row} | 100 | 200 | 50 | 700 | - | 10,000 | - | the slower way |"
    assert line in TABLES["elements"](run)
    sections["times"][row] = {"seconds": {"stock": 8e-3, "ours": 1e-4}}
    line = f"| {row} | 100 | 200 | 50 | 700 | 8,000 | 10,000 | 80 | the slower way |"
    assert line in TABLES["elements"](run)


def test_forms_of_stock_that_were_timed_have_a_column(run):
    assert "| stock | captured | stock / ours |" in TABLES["calls"](run)
    run.figures["sections"]["times"]["a/1"]["seconds"]["graphs_unrolled"] = 8e-6
    text = TABLES["calls"](run)
    assert "| stock | captured | captured, unrolled | stock / ours | best / ours |" in text
    assert "| a/1 | 2 | 30 | 10 | 8 | 15 | 4.0 | 20 |" in text
    assert "| b | 1,230 | 1,000 | - | - | 0.81 | 0.81 | - |" in text


def test_misses_are_told(run):
    text = TABLES["short"](run)
    assert "1 of 3 programs agree" in text and "wrong: b" in text and "not checked: c" in text
    assert "1 of 2 timed programs are faster than stock XLA; slower: b." in text


def test_only_marked_tables_are_written(run):
    page = "before\n<!-- begin results: answers -->\nold\n<!-- end results: answers -->\nafter\n"
    new = written(page, (run,))
    assert new.startswith("before\n") and new.endswith("-->\nafter\n") and "old" not in new
    assert written(new, (run,)) == new


def test_what_was_not_measured_is_a_dash(run):
    """Not the figure of a table that stands for it."""
    sections = run.figures["sections"]
    sections["versions"]["all"] |= {"packages": {"jax": "0.12"}, "compiler": "nvcc"}
    left = {"hop_seconds": "it failed", "l2_rate": "it failed", "flops": "it failed"}
    sections["measure"] = {"card": {"spec": asdict(H200), "kept_from_table": left}}
    text = TABLES["card"](run)
    assert "| hop by a flag | - us |" in text and "| float32 multiply-add | - TFLOP/s |" in text
    assert f"{H200.shared_rate / 1e12:.3g} / - / {H200.memory_rate / 1e12:.3g} TB/s" in text


def test_runs_without_a_card_are_left_out(tmp_path, monkeypatch):
    """And runs that timed nothing."""
    times = {"lstm/1": {"seconds": {"stock": 1.0}}}
    for name, card, timed in (("no_card", None, times), ("card", "Card", times), ("failed", "Other", {})):
        versions = {"card": card and {"name": card}}
        figures = {"sections": {"versions": {"all": versions}, "times": timed}, "targets": []}
        (tmp_path / f"gpu_check_{name}.json").write_text(json.dumps(figures))
    monkeypatch.setattr(results_table, "RESULTS", tmp_path)
    assert [run.card for run in results_table.runs()] == ["Card"]
