"""A pack of small rows, made for the emulation and run on the fake driver by the processes of a real run."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu_check, results_table
from benchmarks.gpu import latency, pack, packed, report, worker
from benchmarks.gpu.rows import ROWS
from benchmarks.gpu.run_pack import PackRun
from jax_cocktail import compiler
from jax_cocktail.codegen.cuda import cuda
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.compiler import Artifact
from jax_cocktail.device.machine import Machine
from jax_cocktail.errors import BuildError
from jax_cocktail.runtime.cuda import card as gpu_card
from jax_cocktail.runtime.cuda import micro as gpu_micro
from tests.api.fake_card import FakeCard, emulate
from tests.cpu.emulated import SPEC, THREADS
from tests.cpu.emulation import emulator
from tests.cpu.fake_gpu.driver import compiled
from tests.cpu.runner import EAGER

CHECK = Path(gpu_check.__file__)
ROW, NEXT = "conjugate_gradient", "hidden_markov"  # in the order of a run
PROBES = b"the probes of latencies"
UNITS = replace(SPEC, units=3, cluster_units=1)


def emulated(emitted):
    """Stands for the CUDA compiler."""
    binary = emulator.build(emitted.source).path.read_bytes()
    launch = launch_plan(emitted.program, emitted.plan, emitted.machine, emitted.sizes)
    return Artifact(binary, hashlib.sha256(binary).hexdigest(), emitted, 0.0, False, "", launch)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A pack of two rows, never written to."""
    folder = tmp_path_factory.mktemp("pack")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "limits_for", lambda *_: EAGER)
        patch.setattr(pack, "machine_of", lambda spec: Machine(cuda(THREADS), spec))
        patch.setattr(pack, "build", emulated)
        emulate(patch)
        patch.setattr(latency, "program", lambda arch: PROBES)
        assert pack.make(folder, UNITS, (ROW, NEXT), small=True) == 0
    return folder


@pytest.fixture
def there(made, tmp_path, monkeypatch):
    """The pack where the card is."""
    folder = tmp_path / "pack"
    folder.mkdir()
    for path in made.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(FakeCard(tmp_path).path))
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    return packed.Pack(folder)


def ran(there, only=(ROW, NEXT), seconds=60.0, item_seconds=20.0):
    """Whether a run was complete, and the kernels' section of its file."""
    out = there.folder.parent / "out"
    finished = PackRun(there, out, seconds, only, item_seconds).run()
    (path,) = out.glob("*.json")
    return finished, json.loads(path.read_text())["sections"]["kernels"]


def test_every_row_has_a_place():
    assert sorted(packed.ORDER) == sorted(ROWS)


def test_pack(there):
    """Arguments are left out, what they are is known, and making the pack again does nothing."""
    rows = there.rows()
    assert [row.name for row in rows] == [ROW, NEXT] and there.facts["small"]
    for row in rows:
        assert row.programs[0].phase == "best" and {operand.argument for operand in row.operands} != {-1}
        assert set(there.arrays(row.name)) == {"result 0"}
        assert {p.phase for p in row.programs} <= set(packed.PHASES)
        assert all(hashlib.sha256(there.binary(p.digest)).hexdigest() == p.digest for p in row.programs)
    assert there.size() < packed.MOST_BYTES


def test_pack_goes_on(made, monkeypatch, capsys):
    monkeypatch.setattr(pack, "_add", None)
    emulate(monkeypatch)
    monkeypatch.setattr(latency, "program", lambda arch: PROBES)
    assert pack.make(made, UNITS, (ROW, NEXT), small=True) == 0
    assert capsys.readouterr().out.count("is there") == 2
    monkeypatch.setattr(packed, "source_digest", lambda: "another")
    assert pack.make(made, UNITS, (ROW,), small=True) == 1  # it tries, and says that it failed


def test_run_and_resume(there, capsys):
    """All programs agree with float64 and have times; another run completes what is missing, and no more."""
    finished, first = ran(there, only=(ROW,))
    assert finished and set(first) == {ROW}
    finished, found = ran(there)
    assert finished and found[ROW] == first[ROW]
    for row in there.rows():
        assert len(found[row.name]) == len(row.programs)
        for record in found[row.name].values():
            assert record["ok"] and record["same_inputs"] and record["seconds"] > 0
            assert record["difference"] <= record["limit"]
        lines = found[row.name][f"{row.programs[0].plan}, traced"]["timeline"]
        assert "stamps of level 2" in lines[0] and len(lines) > 3
    capsys.readouterr()
    assert ran(there) == (True, found) and capsys.readouterr().out == ""


HANGING = """
#define KERNEL(NAME) \\
  extern "C" __attribute__((visibility("default"))) void NAME(void* const*, unsigned, unsigned, unsigned) { \\
    for (volatile int i = 0;; i = 1) {} \\
  }
KERNEL(ck_resident)
KERNEL(ck_portable)
"""


def test_broken_programs(there, capsys):
    """One that hangs, one that is refused and one that is wrong: each is told, and the next still runs."""
    row, arrays = there.row(ROW), there.arrays(ROW)
    row = replace(row, programs=tuple(p for p in row.programs if p.phase != "traced"))
    hanging, working = (program.digest for program in row.programs[:2])
    works, other_works = map(there.binary, (hanging, working))
    there.add_binary(hanging, compiled(HANGING).read_bytes())
    broken = replace(row.programs[1], digest="refused", plan="refused")
    there.add(replace(row, programs=(row.programs[0], broken)), arrays, [("refused", b"no code")])
    other = there.row(NEXT)
    wrong = {"result 0": there.arrays(NEXT)["result 0"] + np.float32(0.1)}
    there.add(replace(other, programs=other.programs[:1]), wrong, ())
    finished, found = ran(there, item_seconds=8.0)
    assert finished and found[ROW][row.programs[0].label]["error"] == "stopped after 8 s"
    assert "CUDA_ERROR_INVALID_IMAGE" in found[ROW][broken.label]["error"]
    (record,) = found[NEXT].values()
    assert record["ok"] is False and record["difference"] > record["limit"]
    assert "WRONG" in capsys.readouterr().out
    there.add(replace(row, programs=row.programs[:2]), arrays, [(hanging, works), (working, other_works)])
    _, again = ran(there)
    assert again[NEXT] == found[NEXT] and again[ROW][row.programs[1].label]["digest"] == working
    assert all(again[ROW][program.label]["ok"] for program in row.programs[:2])


def test_command(there):
    """The exit status tells whether another call would go on; tables show what there is."""
    out = there.folder.parent / "out"
    command = [sys.executable, str(CHECK), "--run", str(there.folder), "--out", str(out), "--only", ROW]
    late = subprocess.run([*command, "--budget", "1e-9"], capture_output=True, text=True)
    assert late.returncode == gpu_check.UNFINISHED and "no time left" in late.stdout
    done = subprocess.run([*command, "--budget", "30"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.json")
    results = json.loads(path.read_text())
    label = there.row(ROW).programs[0].label
    line = next(line for line in report.text(results).splitlines() if line.startswith(f"{ROW}, {label}"))
    assert line.endswith("agrees")
    assert results_table.Run(results, path).kernel(ROW) == results["sections"]["kernels"][ROW][label]


def test_figures(there, monkeypatch):
    """One at a time, from the packed binaries."""
    emulate(monkeypatch)
    monkeypatch.setattr(gpu_micro, "program", None)
    with gpu_card.Card() as card:
        names = gpu_micro.names(card)
        made = worker.Worker(card, there, there.folder)
        assert "launch in a graph" in names and "seconds" in made.do("figure", "launch in a graph", "")
        assert "none" in made.do("figure", "no such figure", "")
        kinds = made.do("card", "", "")["figures"]
        assert set(kinds) <= set(there.facts) and "division" in kinds["latency"] and names == kinds["micro"]
        seen = []
        monkeypatch.setattr(latency, "measure", lambda card, binary, probe: seen.append((binary, probe.kind)))
        made.do("figure", "division", "")
        assert seen == [(PROBES, "division")]


def test_difference():
    """Errors are relative to the largest element, however small it is; NaNs and integers are exact."""
    result = packed.Result(packed.Type("float32", (4,)), 3, 1e-6)
    row = packed.Row("r", "", (), (result,), ())
    expected = {"result 0": np.array([1e-6, 2e-7], np.float32)}
    array = np.array([1e-6, 9, 9, 2e-7], np.float32)  # only every third element is known
    assert packed.difference([array], row, expected) == 0
    assert packed.difference([np.zeros(4, np.float32)], row, expected) == pytest.approx(1)
    array[3] = np.nan
    assert packed.difference([array], row, expected) == np.inf
    whole = packed.Row("r", "", (), (packed.Result(packed.Type("int32", (2,)), 1, 3.0),), ())
    assert packed.difference([np.array([1, 2])], whole, {"result 0": np.array([1, 3])}) == np.inf


def test_a_plan_that_cannot_be_built_is_left_out(monkeypatch, capsys):
    def build(emitted):
        raise BuildError("too many registers", "fewer threads")

    monkeypatch.setattr(pack, "build", build)
    assert pack._built(ROWS[ROW], "other", "132 units", None) is None
    assert "132 units, other: too many registers" in capsys.readouterr().out
    with pytest.raises(BuildError):
        pack._built(ROWS[ROW], "best", "132 units", None)


def test_other_phases_go_on(tmp_path, monkeypatch):
    """What the same source finished is not measured again, and no time left takes nothing away."""
    check = gpu_check.Check(gpu_check.parse(["--out", str(tmp_path)]), [ROW], tmp_path)
    finished, older, failed = (
        {"ok": True, "code": check.code},
        {"ok": True, "code": "older"},
        {"error": "stopped", "code": check.code},
    )
    figure = {"clocks": 5.0, "digest": "of the probes"}
    check.sections["correct"] = {"a": finished, "b": older, "c": failed}
    check.sections["measure"] = {
        "card": {"figures": {"x": figure, "y": {"seconds": 1.0}}, "code": check.code}
    }
    records = {
        "b": {"skipped": "no time left"},
        "c": {"ok": False},
        "card": {"figures": {"y": {"seconds": 2.0}}},
    }
    asked = []

    def run_all(tasks, *_):
        asked.extend(task.name for task in tasks)
        return {task.name: records[task.name] for task in tasks}

    monkeypatch.setattr(gpu_check, "run_all", run_all)
    check.section("correct", [check.task("correct", name) for name in "abc"], 1, check.deadline)
    check.section("measure", [check.task("measure", "card")], 1, check.deadline)
    assert asked == ["b", "c", "card"]
    assert check.sections["correct"] == {"a": finished, "b": older, "c": {"ok": False, "code": check.code}}
    assert check.sections["measure"]["card"]["figures"] == {"x": figure, "y": {"seconds": 2.0}}
