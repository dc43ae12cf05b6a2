"""The tables and targets of `benchmarks/gpu_check.py`, with invented figures."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.gpu import peers, report, targets
from benchmarks.gpu.roofline import limit_seconds
from jax_cocktail.device.nvidia import H200


def figures_of_a_card():
    """Sections as a card would fill them; the LSTM is fast, NASRNN is not, one row failed."""
    kernel = {"seconds": 9e-5, "calls": [{"kernel": "ck_resident", "grid": 132}]}
    return {
        "versions": {
            "all": {
                "card": {
                    "name": "NVIDIA H200",
                    "arch": "sm_90",
                    "driver": 13000,
                    "attributes": {"units": 132, "clock_khz": 1_980_000},
                },
                "packages": {"jax": "0.11.2"},
                "compiler": "nvcc 13.0.88",
            }
        },
        "correct": {"lstm/1": {"ok": True, "highest": {"ours": 1e-7}}, "nasrnn/1": {"ok": False}},
        "measure": {
            "card": {
                "figures": {
                    "barrier, 132 blocks": {"seconds": 1.02e-6},
                    "hop, tagged, 1 word": {"seconds": 0.8e-6},
                    "L2 read": {"rate": 5.5e12},
                    "cluster barrier of 16, 16 blocks": {"error": "CudaError: refused"},
                },
                "spec": asdict(H200),
            }
        },
        "stock_loops": {"while, empty body": {"stock": {"seconds_per_trip": 9e-6, "captured": False}}},
        "times": {
            "lstm/1": {
                "seconds": {"ours": 1e-4, "stock": 5e-3, "cudnn": 2e-4},
                "choice": "cocktail",
                "kernel": kernel,
            },
            "nasrnn/1": {"seconds": {"ours": 2e-3, "stock": 1e-2}, "kernel": {**kernel, "seconds": 2e-4}},
            "rae/1": {"error": "stopped after 60 s"},
        },
    }


def test_targets():
    found = {row["target"]: row for row in targets.judge_all(figures_of_a_card())}
    assert (found["lstm/1: stock / ours"]["state"], found["lstm/1: stock / ours"]["value"]) == ("met", 50)
    assert found["lstm/1: cuDNN / ours"]["state"] == "missed"
    assert found["nasrnn/1: stock / ours"]["state"] == "missed"
    assert found["nasrnn/1: a call of ours"]["state"] == "missed"
    assert found["rae/1: stock / ours"]["state"] == "not measured"
    assert found["device barrier, all units"]["state"] == "met"
    assert found["tagged hop"]["state"] == "missed"
    limits = [limit_seconds(row, H200) for row in ("lstm/1", "nasrnn/1")]
    worst = found["kernel time over its limit, worst model"]
    assert worst["value"] == pytest.approx(9e-5 / limits[0]) and 2e-4 / limits[1] < worst["value"]


def test_targets_of_predictions():
    row = {"seconds": 1e-4, "stock_seconds": 4e-3}
    found = {r["target"]: r for r in targets.judge_all({"plan": {"lstm/1@sm_90": row}})}
    assert found["lstm/1: stock / ours"]["state"] == "predicted: met"
    assert found["lstm/1: cuDNN / ours"]["state"] == "not measured"
    assert found["kernel time over its limit, worst model"]["state"] == "predicted: met"


def test_tables():
    text = report.text({"sections": figures_of_a_card()})
    assert "NVIDIA H200 (sm_90, 132 multiprocessors), CUDA driver 13.0" in text and "PREDICT" not in text
    (line,) = (line for line in text.splitlines() if line.startswith("lstm/1 ") and "agrees" in line)
    assert "100.0" in line and "5000.0" in line and "50.00" in line
    assert "DIFFERS" in text and "ck_resident x 132 blocks" in text and "CudaError: refused" in text
    assert "times rae/1: stopped after 60 s" in text and "(not captured)" in text


def test_what_was_predicted_stands_beside_what_was_measured():
    sections = figures_of_a_card()
    sections["times"]["lstm/1"]["kernel"] = {"seconds": 9e-5, "predicted_seconds": 6e-5, "calls": []}
    plan = {"seconds": 8e-5, "stock_seconds": 4e-3, "barriers": 73}
    sections["plan"] = {
        "lstm/1@card": {**plan, "bytes": {"l2": 2e6}, "plan": "132 units"},
        "rae/1@card": {"error": "no"},
    }
    lines = report.text({"sections": sections}).splitlines()
    head = next(k for k, line in enumerate(lines) if line.startswith("model and card"))
    (lstm, nasrnn, *_) = lines[head + 1 :]
    assert lstm.split() == ["lstm/1", "90.0", "60.0", "1.50", "5000.0", "4000.0", "1.25", "50.00", "50.00"]
    assert not nasrnn  # nothing was predicted of it
    assert "model and card" not in report.text({"sections": figures_of_a_card()})


def test_what_is_inside_of_records_is_told():
    """A form that was not captured, and a branch whose results differ."""
    sections = {
        "build": {"lstm/1": {"graphs": {"captured": False, "error": "no kCommandBuffer"}, "stock": {}}},
        "captured": {"rae/1": {"differences": [0.0, 0.5], "captured": True, "ok": False}},
        "auto": {"lstm/1": {"choice": "stock", "seconds": {"auto": 7e-3}}},
        "times": {"lstm/1": {"seconds": {"stock": 7e-3}}},
    }
    text = report.text({"sections": sections})
    assert "build lstm/1 graphs: no kCommandBuffer" in text
    assert "rae/1                   captured, OTHER RESULTS: NOT RIGHT" in text
    (row,) = (line for line in text.splitlines() if line.startswith("lstm/1 "))
    columns = ["7000.0" if form == "stock" else "-" for form in peers.FORMS]
    assert row.split()[1:] == [*columns, "7000.0", "-", "stock", "not", "checked"]


LIMIT = f"{1e6 * limit_seconds('lstm/1', H200):.1f}"


def test_tables_without_a_card():
    plan = {
        "seconds": 1e-4,
        "stock_seconds": 4e-3,
        "unrolled_seconds": 2.5e-3,
        "barriers": 73,
        "bytes": {"l2": 2e6},
        "plan": "132 units",
    }
    sections = {
        "versions": {"all": {"no_card": "no driver"}},
        "plan": {"lstm/1@sm_90": plan, "rae/1@sm_90": {"skipped": "no time left"}},
        "emulate": {"lstm/1": {"ok": True}},
        "stock_for_card": {"lstm/1": {"kernels": 2050.0, "bytes": 1e9, "unknown": False}},
    }
    text = report.text({"sections": sections})
    assert "no GPU here (no driver)" in text and "PREDICTED" in text
    (line,) = (line for line in text.splitlines() if line.startswith("sm_90  lstm/1"))
    assert "agrees" in line and "2050" in line and "40.0" in line and "2500.0" in line and LIMIT in line
    assert "no time left" in text and "predicted: met" in text
    small = report.text({"sections": sections, "small": True})
    assert "predicted: met" not in small and LIMIT not in small


def test_what_a_pack_finds():
    """Programs with clocks and limits, litmus tests, costs on the host, answers of calls, events."""
    sections = figures_of_a_card()
    kernel = {"seconds": 1e-4, "call_seconds": 1.013e-4, "predicted_seconds": 5e-5, "sm_clock": 1.755e9}
    sections["kernels"] = {"lstm/1": {"132 units": {**kernel, "ok": True}, "1 unit": {**kernel, "ok": None}}}
    sections["litmus"] = {
        "signals": {"trials": 9, "forbidden": 2, "seen": {"stale": 2, "early": 0}, "ok": False},
        "barrier": {"trials": 9, "forbidden": 0, "seen": {"stale": 0}, "ok": True},
    }
    sections["host"] = {
        "calls": {"waited": {"ours": 1e-4}, "started": {"ours": 5e-5}},
        "two streams: a + b": {"seconds": 3e-5, "alone_seconds": [1e-5, 2e-5], "ok": True},
    }
    each = {"ours": 1e-7, "stock": 2e-7, "limit": 2e-5}
    sections["answers"] = {"lstm/64": {"highest": each, "default": each, "ok": True}}
    sections["answers"]["rae/1"] = {"highest": each | {"ours": None}, "default": each, "ok": False}
    sections["torch"] = {"lstm/1": {"seconds": {"ours": 1e-4, "torch_float16": 2e-3}}}
    lines = report.text({"sections": sections, "events": ["it was late"]}).splitlines()
    said = {line.strip().split("  ")[0]: line for line in lines}
    assert said["lstm/1, 132 units"].split()[3:] == [
        "100.0",
        "101.3",
        LIMIT,
        "50.0",
        "2.00",
        "1.75",
        "agrees",
    ]
    assert said["lstm/1, 1 unit"].endswith("not judged: this machine makes other inputs")
    assert said["signals"].split()[1:] == ["9", "2", "stale:", "2", "WRONG"]
    assert said["barrier"].split()[1:] == ["9", "0"]
    assert said["ours"].split()[1:] == ["100.0", "50.0"]
    assert "two streams: a + b: 30.0 us together, 10.0 and 20.0 alone, agrees" in lines
    assert "highest inf 2.0e-07 2.0e-05; " in said["rae/1"] and said["rae/1"].endswith("DIFFERS")
    assert "lstm/64" in said and "it was late" in lines and any("torch_float16" in line for line in lines)
