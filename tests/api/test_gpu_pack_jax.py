"""Jax's part of a run of a pack: what it runs, and what goes on when something fails. Items are invented."""

from __future__ import annotations

import json
import sys
import time

import pytest

from benchmarks import gpu_check
from benchmarks.gpu import check, host, items, pack_jax, packed, peers
from benchmarks.gpu.check import Check
from benchmarks.gpu.packed import AUTO, MAIN, TIMED
from benchmarks.gpu.pool import Stuck, Task
from benchmarks.gpu.results import Results

GPU = {"backend": "gpu"}


@pytest.fixture
def begun(tmp_path):
    """A check whose card is known."""
    options = gpu_check.parse(["--out", str(tmp_path / "out"), "--budget", "60", "--run", str(tmp_path)])
    found = Results(tmp_path / "out", "code", small=True)
    found.keep({"card": {"name": "Card"}}, "versions", "all")
    return Check(options, packed.ORDER, tmp_path, found, tmp_path)


def answering(monkeypatch, answer):
    """Items are processes that print what `answer(phase, name, ours)` says; a number is slept for instead."""
    seen = []

    def task(self, phase, name, prefix=(), ours=True, **environment):
        seen.append((phase, name, ours))
        found = answer(phase, name, ours)
        text = (
            f"import time; time.sleep({found})"
            if isinstance(found, float)
            else f"print('RESULT' + {' ' + json.dumps(found)!r})"
        )
        return Task(name, [sys.executable, "-c", text], environment, cap=5.0)

    monkeypatch.setattr(Check, "task", task)
    return seen


def test_everything_has_its_turn(begun, monkeypatch):
    seen = answering(monkeypatch, lambda phase, *_: GPU if phase == "jax" else {"seconds": 1.0})
    assert pack_jax.with_pack(begun)
    sections = list(dict.fromkeys(phase for phase, *_ in seen))
    assert sections == ["jax", "host", "answers", "build", "times", "auto", "torch"]
    assert [name for phase, name, _ in seen if phase == "times"] == list(TIMED)
    assert all(begun.finished(phase, name) and ours for phase, name, ours in seen)
    assert set(AUTO) | set(packed.ANSWERED) <= set(TIMED)


def test_rows_whose_programs_failed_are_left_to_stock(begun, monkeypatch):
    """Ours would hang or be wrong again, and take the time of the others."""
    bad = {"lstm/1": {"hung": True, "phase": "other"}, "nasrnn/64": {"phase": "best", "ok": False}}
    bad |= {"attention/1": {"phase": "best", "error": "it crashed"}}
    bad |= {"seq2seq/1": {"phase": "best", "skipped": "lstm/1 hung"}}
    for row, record in bad.items():
        begun.results.keep(record, "kernels", row, "plan")
    begun.results.keep({"phase": "best", "ok": True}, "kernels", "lstm/64", "plan")
    seen = answering(monkeypatch, lambda phase, *_: GPU if phase == "jax" else {"seconds": 1.0})
    assert pack_jax.with_pack(begun)
    ours = {name for phase, name, ours in seen if phase == "times" and ours}
    assert ours == set(TIMED) - set(bad)
    assert not [name for phase, name, _ in seen if phase == "auto" and name in bad]
    assert not [name for phase, name, _ in seen if phase == "host"]  # it calls attention/1
    assert ("torch", "lstm/1", False) in seen and ("torch", "lstm/64, compiled", True) in seen


def test_what_was_finished_is_kept_when_a_run_is_cut_off(begun, monkeypatch):
    """Each item of a section at once, not all at its end."""

    answering(monkeypatch, lambda phase, *_: GPU if phase == "jax" else {"seconds": 1.0})
    stopped = []
    keep = Results.keep

    def kept(self, record, section, *keys):
        keep(self, record, section, *keys)
        if (section, *keys) == ("times", MAIN[1]):
            stopped.append(json.loads(self.path.read_text())["sections"]["times"])
            raise KeyboardInterrupt

    monkeypatch.setattr(Results, "keep", kept)
    with pytest.raises(KeyboardInterrupt):
        pack_jax.with_pack(begun)
    assert set(stopped[0]) == set(MAIN[:2])


def test_after_a_resumed_run_only_what_is_missing_is_compiled(begun, monkeypatch):
    """XLA's cache of the run before is gone."""
    for row in TIMED:
        begun.results.keep({"stock": {"seconds": 1.0}}, "build", row)
        if row != "lstm/64":
            begun.results.keep({"seconds": {"stock": 1.0, "ours": 1.0}}, "times", row)
    seen = answering(monkeypatch, lambda phase, *_: GPU if phase == "jax" else {"seconds": 1.0})
    assert pack_jax.with_pack(begun)
    assert [name for phase, name, _ in seen if phase == "build"] == ["lstm/64"]
    assert begun.results.known("build", "lstm/64", "seconds") == 1.0
    assert begun.results.known("build", "lstm/1")["stock"]  # what is known of the others is kept


def test_rows_that_became_good_are_timed_again(begun, monkeypatch):
    """A resumed run has repaired their programs since stock was timed alone."""
    begun.results.keep({"seconds": {"stock": 1.0}, "missing": {}}, "times", "lstm/1")
    begun.results.keep({"seconds": {"stock": 1.0}, "missing": {"ours": "it failed"}}, "times", "lstm/64")
    begun.results.keep({"seconds": {"stock": 1.0}}, "torch", "lstm/1, compiled")
    answering(monkeypatch, lambda phase, *_: GPU if phase == "jax" else {"seconds": {"ours": 2.0}})
    assert pack_jax.with_pack(begun)
    assert "ours" in begun.results.known("times", "lstm/1", "seconds")
    assert "ours" in begun.results.known("torch", "lstm/1, compiled", "seconds")
    assert begun.results.known("times", "lstm/64", "seconds") == {"stock": 1.0}


@pytest.mark.parametrize(
    ("said", "words", "finished"),
    [
        ({"backend": "cpu"}, "its backend is cpu; is jax-cuda13-plugin installed?", True),
        ({"backend": "none", "why": "no driver"}, "jax has no GPU here: no driver", True),
    ],
)
def test_jax_without_a_gpu(begun, monkeypatch, said, words, finished):
    answering(monkeypatch, lambda *_: said)
    assert pack_jax.with_pack(begun) is finished
    assert words in begun.results.known("jax", "all")["error"]


def test_a_slow_start_of_jax_is_tried_twice(begun, monkeypatch):
    seen = answering(monkeypatch, lambda *_: 30.0)
    monkeypatch.setitem(check.CAPS, "jax", 1.0)
    begun.options.budget = 14.0
    assert not pack_jax.with_pack(begun)  # another call may be luckier
    assert [phase for phase, *_ in seen] == ["jax", "jax"]
    assert begun.results.known("jax", "all")["error"] == "stopped after 5 s"


def test_a_jax_that_cannot_start(begun, monkeypatch):
    """Another call would not help."""
    answering(monkeypatch, lambda *_: {"error": "ModuleNotFoundError"})
    assert pack_jax.with_pack(begun) and begun.results.failures() == ["jax all"]


def test_no_time_left(begun, monkeypatch):
    """It is no complete run, whatever jax has."""
    answering(monkeypatch, lambda phase, *_: GPU if phase == "jax" else {"seconds": 1.0})
    begun.options.budget = 0.5
    assert not pack_jax.with_pack(begun)
    begun.options.budget, begun.start = 3.2, time.monotonic()  # an item is not begun with less than 3 s
    assert not pack_jax.with_pack(begun)
    assert begun.finished("host", "calls") and not begun.finished("torch", "lstm/64, compiled")


def test_an_item_that_does_not_end(begun, monkeypatch):
    """Ends the run; what was finished before is in the file."""
    answering(monkeypatch, lambda phase, *_: GPU if phase == "jax" else {"seconds": 1.0})
    run_all = check.run_all

    def stuck(tasks, workers, deadline, done):
        run_all(tasks[:1], workers, deadline, done)
        if len(tasks) > len(packed.ANSWERED):
            raise Stuck("process 1 does not end")

    monkeypatch.setattr(check, "run_all", lambda *a: stuck(*a) or {"all": GPU})
    with pytest.raises(Stuck):
        pack_jax.with_pack(begun)
    assert begun.finished("host", "calls") and begun.finished("build", MAIN[0])


def test_host_calls(monkeypatch):
    """On the host, where nothing is captured."""
    monkeypatch.setattr(host, "COMMAND_BUFFERS", {})
    found = host.calls(True, 0.05)
    assert set(found["waited"]) == set(found["started"]) and "one addition" in found["waited"]
    assert all(seconds > 0 for seconds in (*found["waited"].values(), *found["started"].values()))
    found = host.branch(True, 0.05)
    assert found["ok"] and set(found["started"]) == {"in a branch", "in a branch, captured"}


def test_forms_beside_a_pack(tmp_path):
    """Torch has items of its own, which wait for its compiler; a row that failed has no call of ours."""
    settings = items.Settings(tmp_path, small=True, seconds=0.02, pack=tmp_path, ours=False)
    found = items.times("rae/1", settings)
    assert "ours" not in found["seconds"] and not {"torch", "unrolled"} & set(found["missing"])
    found = items.torch("lstm/1", settings)
    assert set(found["missing"]) == {"torch", "torch_bfloat16", "torch_float16"}
    found = items.torch("lstm/1, compiled", settings)
    assert set(found["missing"]) == {"torch_compiled"} and set(found["seconds"]) == {"stock"}
    assert {"ours", "stock"} <= set(peers.FORMS)
