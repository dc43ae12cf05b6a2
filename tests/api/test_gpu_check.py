"""`benchmarks/gpu_check.py` without a card: items on the host, processes, tables with invented figures."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import rnn

from benchmarks import gpu_check
from benchmarks.gpu import items, peer, peers, pool, report, thunks, timing
from benchmarks.gpu.rows import QUICK, ROWS, widened
from benchmarks.gpu.unroll import CannotUnroll, unrolled
from jax_cocktail.cost import hlo
from jax_cocktail.device.cards import spec_for
from jax_cocktail.lowering.choice import stock_forms
from jax_cocktail.lowering.edge import gpu_call
from jax_cocktail_tools.models import largest_difference
from tests.api.fake_card import FakeCard
from tests.cpu.cuda_compilers import nvcc

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

ROOT = Path(__file__).parents[2]


# ---- rows and forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_rows(name):
    """Float64 goes in and comes out: no row narrows it on the way."""
    function, arguments = ROWS[name].make(True)
    with jax.enable_x64(True):
        wide = jax.tree.map(widened, arguments)
        shapes = jax.eval_shape(function, *wide)
    assert all(leaf.dtype != np.float32 for leaf in jax.tree.leaves(shapes))
    assert set(QUICK) <= set(ROWS)


@pytest.mark.exact_xla
@pytest.mark.parametrize("name", ["scalar_scan", "hidden_markov", "attention/1"])
def test_unrolled(name):
    function, arguments = ROWS[name].make(True)
    straight = unrolled(function, arguments)
    text = jax.jit(straight).lower(*arguments).as_text()
    assert (
        "stablehlo.while" not in text and "stablehlo.while" in jax.jit(function).lower(*arguments).as_text()
    )
    assert largest_difference(jax.jit(straight)(*arguments), jax.jit(function)(*arguments)) < 1e-6


@pytest.mark.parametrize(
    ("name", "small", "reason"),
    [("rae/1", True, "unknown"), ("blockdrop/1", True, "no loop"), ("nasrnn/1", False, "limit is 20000")],
)
def test_not_unrolled(name, small, reason):
    with pytest.raises(CannotUnroll, match=reason):
        unrolled(*ROWS[name].make(small))


def test_cudnn_weights():
    """In cuDNN's order: jax's own reference, given what is unpacked from it, agrees with the model."""
    function, arguments = ROWS["lstm/64"].make(True)
    x, weights, lengths, state = peers.cudnn_arguments(*arguments)
    unpacked = rnn.unpack_lstm_weights(weights, 16, 16, 3, False)
    _, h, _ = rnn.lstm_ref(x, state, state, *unpacked, lengths, 16, 16, 3, 0.0, False)
    assert largest_difference(h[-1], jax.jit(function)(*arguments)) < 1e-6


def test_peers_that_are_not_there():
    function, arguments = ROWS["rae/1"].make(True)
    for form in peers.FORMS.keys() - {"ours", "stock", "graphs"}:
        with pytest.raises(peers.NoPeer):
            peers.FORMS[form]("rae/1", function, arguments)


def test_torch_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for form in ("torch", "torch_bfloat16", "torch_float16", "torch_compiled"):
        with pytest.raises(peers.NoPeer, match="torch is not installed"):
            peers.FORMS[form]("lstm/1", *ROWS["lstm/1"].make(True))


def test_weights_for_torch():
    _, (xs, layers) = ROWS["lstm/64"].make(True)
    found = peers.torch_weights(layers)
    assert len(found) == 4 * len(layers)
    assert found["weight_ih_l0"].shape == (64, 16) and found["bias_hh_l2"].shape == (64,)
    assert (found["weight_hh_l1"] == np.asarray(layers[1][1]).T).all()
    assert all(value.flags.c_contiguous for value in found.values())


def test_cells_for_torch():
    """They are those of the row, whoever computes them."""
    function, (xs, layers) = ROWS["lstm/64"].make(True)
    cell = functools.partial(peers.lstm_cell, jax.nn.sigmoid, jnp.tanh)
    zeros = jnp.zeros((xs.shape[1], layers[0][1].shape[0]))
    found = peers.lstm_by_cells(cell, xs, layers, zeros)
    assert largest_difference(found, function(xs, layers)) < 1e-6


def test_graphs_with_unrolled_loops_are_small(monkeypatch):
    function, arguments = ROWS["lstm/1"].make(True)
    assert largest_difference(peers.graphs_unrolled("", function, arguments)(), function(*arguments)) < 1e-6
    monkeypatch.setattr(stock_forms, "MOST_NODES", 10)
    with pytest.raises(peers.NoPeer, match="nodes"):
        peers.graphs_unrolled("", function, arguments)


# ---- items, on the host ------------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path):
    return items.Settings(tmp_path, small=True, seconds=0.02)


def test_correct(settings):
    with jax.enable_x64(True):
        assert items.reference("rae/1", settings)["ok"]
    found = items.correct("rae/1", settings)
    assert found["ok"] and 0 < found["highest"]["ours"] <= found["highest"]["limit"]
    with np.load(settings.work / "rae-1.npz") as file:
        (expected,) = (file[key] for key in file.files)
    np.savez(settings.work / "rae-1.npz", expected + 1)
    assert not items.correct("rae/1", settings)["ok"]


def test_build_and_times(settings):
    assert {"ours", "stock", "graphs", "graphs_unrolled", "kernels"} == set(items.build("rae/1", settings))
    assert "none" in items.unroll("rae/1", settings)
    found = items.times("rae/1", settings)
    assert set(found["seconds"]) == {"ours", "stock", "graphs"}
    assert all(value > 0 for value in found["seconds"].values())
    assert max(found["differences"].values()) < 1e-5 and "unroll" in found["missing"]["unrolled"]
    assert "none" in found["kernel"]
    json.dumps(found)
    found = items.auto("rae/1", settings)
    assert set(found["seconds"]) == {"auto", "stock"} and found["choice"] in ("stock", "cocktail")
    assert found["first_seconds"] > max(found["seconds"].values())
    json.dumps(found)


def test_unrolled_rows_are_timed_once_they_are_compiled(settings):
    assert items.unroll("scalar_scan", settings)["compiled"]
    assert timing.unrolled_mark(settings.work, "scalar_scan").exists()


def test_stock_loops(settings):
    found = items.stock_loops("scan, empty body", settings)
    assert set(found) == set(peers.MODES) and all("seconds_per_trip" in r for r in found.values())
    assert set(items.stock_loops("while, empty body", settings)) == {"stock", "graphs"}  # nothing to unroll


@pytest.fixture
def dumping(settings, tmp_path, monkeypatch):
    """Settings with which XLA dumps steps outside of command buffers; the one for CPUs dumps none."""
    numbers = itertools.count()

    def dumps(folder):
        (tmp_path / f"module_{next(numbers):04}.jit_f.thunk_sequence.txt").write_text("000: kGemm [source]\n")
        return frozenset(tmp_path.glob("*thunk_sequence*"))

    monkeypatch.setattr(thunks, "dumps", dumps)
    return replace(settings, dump=str(tmp_path))


def test_a_mode_that_was_not_captured_is_an_error(dumping):
    found = items.stock_loops("scan, empty body", dumping)
    assert "kCommandBuffer" in found["graphs"]["error"] and "error" not in found["stock"]


def test_without_dumps_nobody_knows_what_was_captured(settings, tmp_path):
    """XLA dumps nothing of what its cache has."""
    found = items.build("scalar_scan", replace(settings, dump=str(tmp_path)))
    assert found["graphs"]["captured"] is None and "error" not in found["graphs"]


def test_our_call_in_a_branch(settings):
    assert items.captured("rae/1", settings)["ok"]


def test_emulated_row():
    """In a process of its own: it changes the compiler."""
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), "--item", "emulate", "rae/1"]
    record = pool.run(pool.Task("rae/1", command, {"JAX_PLATFORMS": "cpu", "PYTHONPATH": _path()}))
    assert record.get("ok") and set(record["differences"]) == {"ck_resident", "ck_portable"}, record
    assert record["blocks"] > 1


def test_plan_and_code():
    nvcc()
    found = items.code("rae/1@sm_90", items.Settings(Path(), small=True))
    assert found["registers"] > 0 and found["spill_bytes"] == 0 and found["seconds"] > 0
    model = items.plan("rae/1@sm_90", items.Settings(Path(), small=True))
    assert model.items() <= found.items()
    assert set(found["bytes"]) == {"shared", "l2", "memory"} and found["stock_seconds"] > 0


def test_versions(monkeypatch, tmp_path, settings):
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(tmp_path / "none.so"))
    found = items.versions("all", settings)
    assert found["packages"]["jax"] == jax.__version__ and "cannot be loaded" in found["no_card"]
    assert "card" not in found


@pytest.fixture
def amd_card(monkeypatch, tmp_path):
    """jax says that there is one; everything runs on the host."""
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(tmp_path / "none.so"))
    card, real = gpu_call.Gpu("AMD Instinct MI300X", "gfx942", 304), gpu_call.gpu
    monkeypatch.setattr(
        gpu_call, "gpu", lambda arch="", platform="cuda": card if platform == "rocm" else real(arch, platform)
    )
    devices = [SimpleNamespace(memory_stats=lambda: {"bytes_limit": 192 << 30})]
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: devices)
    monkeypatch.setattr(gpu_call, "driver_version", lambda platform: 70051831)


def test_an_amd_card(amd_card, settings, monkeypatch):
    """It is described, planned for by the table's figures, checked and timed; nothing asks CUDA's driver."""
    found = items.versions("all", settings)
    assert (found["card"]["arch"], found["card"]["attributes"]) == ("gfx942", {"units": 304})
    measured = items.measure("card", settings)
    assert "CUDA's driver" in measured["none"] and measured["spec"]["units"] == 304
    told = report.text({"sections": {"versions": {"all": found}, "measure": {"card": measured}}})
    assert told.startswith("AMD Instinct MI300X (gfx942, 304 multiprocessors), HIP 7.0\n")
    assert items.times("scalar_scan", settings)["kernel"] == {"none": measured["none"]}
    with jax.enable_x64(True):
        assert items.reference("scalar_scan", settings)["ok"]
    assert items.correct("scalar_scan", settings)["ok"]
    branch = items.captured("scalar_scan", settings)
    assert branch["ok"] and "error" not in branch
    monkeypatch.setattr(gpu_call, "gpu", lambda arch="", platform="cuda": gpu_call.Gpu("", arch or "sm_90"))
    assert items.plan("scalar_scan@card", settings)["card"] == "AMD Instinct MI300X"  # on the host alone


# ---- stock XLA for a card ----------------------------------------------------------------------------------

MODULE = """HloModule jit_f, is_scheduled=true

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %a = f32[4]{0} add(%p, %p)
}

%body (arg: (s32[], f32[4])) -> (s32[], f32[4]) {
  %arg = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %x = f32[4]{0} get-tuple-element(%arg), index=1
  %i = s32[] get-tuple-element(%arg), index=0
  %f = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  %g = f32[4]{0} custom-call(%f, %f), custom_call_target="__cublas$gemm"
  ROOT %t = (s32[], /*index=1*/f32[4]{0}) tuple(%i, %g)
}

%condition (arg.1: (s32[], f32[4])) -> pred[] {
  %arg.1 = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %j = s32[] get-tuple-element(%arg.1), index=0
  ROOT %c = pred[] fusion(%j), kind=kLoop, calls=%fused
}

%small (q: f32[4]) -> f32[4] {
  ROOT %q = f32[4]{0} parameter(0)
}

ENTRY %main (n: s32[], x: f32[4]) -> f32[4] {
  %n = s32[] parameter(0)
  %x.1 = f32[4]{0} parameter(1)
  %tuple = (s32[], /*index=1*/f32[4]{0}) tuple(%n, %x.1)
  %w = (s32[], /*index=1*/f32[4]{0}) while(%tuple), condition=%condition, body=%body, backend_config={TRIPS}
  %y = f32[4]{0} get-tuple-element(%w), index=1
  ROOT %z = f32[4]{0} conditional(%n, %y, %y), branch_computations={%small, %fused}
}
"""


@pytest.mark.parametrize(
    ("trips", "number", "unknown"), [('"known_trip_count":{"n":"7"}', 7, False), ("", 10, True)]
)
def test_module_cost(trips, number, unknown):
    """A loop counts its trips, a branch its longest side."""
    cost = hlo.Module(MODULE.replace("TRIPS", trips), peer.UNKNOWN_TRIPS).cost
    each = (16 + 16) + (16 + 2 * 16) + (1 + 4)
    assert cost == hlo.Cost(3 * number + 1, each * number + 3 * 16, number + 1, unknown)


def test_target_text():
    text = peer.target_text(spec_for("sm_100"))
    assert "major: 10 minor: 0" in text and "core_count: 148" in text and text.count("{") == text.count("}")
    versions = ("runtime", "driver", "compile_time_toolkit")
    assert all(f'{name}_version: "13.0.0"' in text for name in versions)


# ---- processes, results and tables -------------------------------------------------------------------------


def _path():
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _task(text, **how):
    return pool.Task("task", [sys.executable, "-c", text], **how)


def test_processes():
    assert pool.run(_task("print('RESULT {\"a\": 1}')"))["a"] == 1
    failed = pool.run(_task("print('so far', flush=True); raise SystemExit('no such thing')"))
    assert failed["error"] == "exit status 1: no such thing" and "so far" in failed["output"]
    assert pool.run(_task("import os; os.abort()"))["error"].startswith("ended by signal 6")
    assert "error" in pool.run(pool.Task("none", ["no-such-program-at-all"]))
    assert "log" in pool.run(_task("print('tool says'); print('RESULT {}')", log=True))


def test_processes_end_in_time():
    start = time.monotonic()
    stopped = pool.run(_task("import time; print('begun', flush=True); time.sleep(60)", cap=0.5))
    assert "stopped after" in stopped["error"] and "begun" in stopped["output"]
    assert pool.run(_task("pass"), deadline=time.monotonic() + 1) == {"skipped": "no time left"}
    assert time.monotonic() - start < 20


def test_many_processes():
    seen = []
    tasks = [replace(_task(f"print('RESULT {{\"n\": {k}}}')"), name=str(k)) for k in range(4)]
    records = pool.run_all(tasks, 2, math.inf, lambda name, record: seen.append(name))
    assert [records[str(k)]["n"] for k in range(4)] == [0, 1, 2, 3] and sorted(seen) == ["0", "1", "2", "3"]


def test_forms_that_are_not_captured_are_errors(dumping):
    found = items.build("scalar_scan", dumping)
    assert found["graphs"]["error"] == thunks.NOT_CAPTURED and not found["graphs"]["captured"]
    assert "error" not in found["stock"]
    branch = items.captured("scalar_scan", dumping)
    assert branch["error"] == thunks.NOT_CAPTURED and not branch["ok"]


def test_whole_run_with_a_card_that_jax_cannot_use(monkeypatch, tmp_path):
    """The driver has a card, too old for us, and jax has none: everything is said, status 0, in time."""
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(FakeCard(tmp_path).path))
    monkeypatch.setenv("FAKE_MAJOR", "7")
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), "--small", "--only", "scalar_scan"]
    command += ["--quick", "--budget", "15", "--sanitize", "--out", str(tmp_path)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": _path()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("gpu_check_fake_card_1_*.json")
    found = json.loads(path.read_text())
    assert found["seconds"] < 20 and found["sections"]["versions"]["all"]["card"]["name"] == "Fake Card 1"
    assert {"error", "skipped"} & set(found["sections"]["measure"]["card"])
    assert {"plan", "stock_for_card", "emulate", "code", "sanitize"} <= set(found["sections"])
    assert "Fake Card 1 (sm_70" in done.stdout and "not done:" in done.stdout
    assert {row["state"] for row in found["targets"]} == {"not measured"}


def test_shares():
    """Phases follow each other within the budget, which ends in time."""
    for shares in (gpu_check.SHARES, gpu_check.QUICK_SHARES, gpu_check.WITHOUT_CARD):
        assert list(shares.values()) == sorted(shares.values()) and max(shares.values()) <= 1
    assert gpu_check.BUDGET <= 470 and gpu_check.QUICK_BUDGET <= 90
    options = gpu_check.parse(["--quick", "--out", "somewhere"])
    assert (options.budget, options.out) == (gpu_check.QUICK_BUDGET, "somewhere")
