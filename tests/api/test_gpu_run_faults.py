"""Runs of a pack on the fake driver, by the processes of a real run: whatever goes wrong."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.gpu import pack_jax, pool, report, results, serving
from benchmarks.gpu.run_pack import PackRun
from tests.api import small_pack
from tests.api.small_pack import NEXT, QUICK, ROW, begun, kernels, ran
from tests.cpu.fake_gpu.driver import compiled

KERNELS = """
#define KERNEL(NAME) \\
  extern "C" __attribute__((visibility("default"))) void NAME(void* const*, unsigned, unsigned, unsigned) { \\
    BODY \\
  }
KERNEL(ck_resident)
KERNEL(ck_portable)
"""


def only_file(there):
    (path,) = (there.folder.parent / "out").glob("gpu_check_*.json")
    return path


HANGS, CRASHES = "for (volatile int i = 0;; i = 1) {}", "__builtin_trap();"


def broken(there, row, body, crossing=""):
    """Puts another machine code into the best program of a row."""
    found = there.row(row)
    best = replace(found.best(), digest=f"of {row}", crossing=crossing)
    kept = tuple(p for p in found.programs if p.phase == "other")
    binary = compiled(KERNELS.replace("BODY", body)).read_bytes()
    there.add(replace(found, programs=(best, *kept)), there.arrays(row), [(best.digest, binary)])
    return best.label


def waits_at_barriers(there, row):
    """Says of the programs of several units of a row that they do."""
    found = there.row(row)
    programs = (replace(p, crossing="barrier") if p.phase == "other" else p for p in found.programs)
    there.add(replace(found, programs=tuple(programs)), there.arrays(row), [])


def test_a_hang(there):
    """It is stopped. Programs that wait in the same way are skipped and named, others run under a shorter
    limit. So it is in a run that goes on, until the program has stopped hanging."""
    works = there.binary(there.row(ROW).best().digest)
    label = broken(there, ROW, HANGS, crossing="barrier")
    waits_at_barriers(there, NEXT)
    finished, data = ran(there, limits=replace(QUICK, item=2))
    found = kernels(data)
    assert finished and found[ROW][label]["error"] == "stopped after 2 s" and found[ROW][label]["hung"]
    assert found[ROW]["4 units"]["ok"] and found[NEXT]["1 unit"]["ok"]  # cross by something else, or not
    why = f"{ROW}, {label}, hung, and waits in the same way (barrier)"
    assert found[NEXT]["4 units"]["skipped"] == why
    assert not pack_jax.is_usable(begun(there, resume=only_file(there)), ROW)
    assert why in report.text(data)
    path = only_file(there)
    _, after = ran(there, resume=path)
    assert kernels(after)[NEXT]["4 units"]["skipped"] == why
    there.add_binary(there.row(ROW).best().digest, works)
    again = PackRun(there, begun(there, resume=path), 60.0, (ROW, NEXT), QUICK, again=True)
    assert again.run() and again.results.known("kernels", ROW, label)["ok"]
    assert again.results.known("kernels", NEXT, "4 units")["ok"] and only_file(there) == path
    assert pack_jax.is_usable(again.results, ROW)


def test_the_limit_after_a_hang(there):
    """The machine may be lost: no other item gets as long."""
    labels = [broken(there, name, HANGS) for name in (ROW, NEXT)]
    _, data = ran(there, limits=replace(QUICK, item=2, hung=1))
    errors = [kernels(data)[name][label]["error"] for name, label in zip((ROW, NEXT), labels, strict=True)]
    assert errors == ["stopped after 2 s", "stopped after 1 s"]


def test_an_innocent_item_in_flight(there, monkeypatch):
    """Interrupted, or not begun because no process starts: nothing is said of it."""
    ask = serving.Worker.ask

    def interrupted(self, item, seconds):
        if item[1] == NEXT:
            raise KeyboardInterrupt
        return ask(self, item, seconds)

    monkeypatch.setattr(serving.Worker, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ran(there)
    data = json.loads(only_file(there).read_text())
    assert kernels(data)[ROW]["1 unit"]["ok"] and not kernels(data)[NEXT]


def test_a_crash_a_refusal_and_a_wrong_answer(there, capsys):
    """Each is told, and the next item runs."""
    label = broken(there, ROW, CRASHES)
    row, arrays = there.row(NEXT), there.arrays(NEXT)
    refused = replace(row.programs[0], digest="refused", plan="refused", phase="other")
    wrong = {"result 0": 2 * arrays["result 0"]}
    there.add(replace(row, programs=(row.best(), refused)), wrong, [("refused", b"no code")])
    finished, data = ran(there)
    found = kernels(data)
    assert finished and found[ROW][label]["error"].startswith("the process ended with status -")
    assert "CUDA_ERROR_INVALID_IMAGE" in found[NEXT]["refused"]["error"] and found[ROW]["4 units"]["ok"]
    best = found[NEXT][row.best().label]
    assert best["ok"] is False and best["difference"] > best["limit"]
    assert "WRONG" in capsys.readouterr().out and "DIFFERS" in report.text(data)


LATE = (
    "import runpy, sys, time; time.sleep({}); sys.argv[:1] = []; runpy.run_module('{}', run_name='__main__')"
)


def late(monkeypatch, seconds):
    """The worker's process takes so long before it begins."""
    start = serving.Worker.start

    def started(self):
        module = next(word for word in self.command if word.endswith(".worker"))
        after = list(self.command)[list(self.command).index(module) :]
        self.command = [sys.executable, "-c", LATE.format(seconds, module), *after]
        return start(self)

    monkeypatch.setattr(serving.Worker, "start", started)


def test_a_cold_machine(there, monkeypatch):
    """The first answer is on no item's clock."""
    late(monkeypatch, 3)
    finished, data = ran(there, only=(ROW,), limits=replace(QUICK, item=2.5))
    assert finished and all(record["ok"] for record in kernels(data)[ROW].values())


def test_a_machine_that_never_answers(there, monkeypatch):
    """Two tries; the file says so."""
    late(monkeypatch, 60)
    begins = []
    popen = subprocess.Popen
    monkeypatch.setattr(serving.subprocess, "Popen", lambda c, **k: begins.append(c) or popen(c, **k))
    finished, data = ran(there, limits=replace(QUICK, start=0.5))
    assert not finished and data["ended"] == "the card cannot be used: stopped after 0.5 s"
    assert data["sections"]["versions"]["all"]["no_card"] == data["ended"]
    assert sum("runpy" in " ".join(c) for c in begins) == 2


def test_a_process_that_does_not_end(there, monkeypatch):
    """The driver holds it, and perhaps the card: the run ends with what it has."""
    label = broken(there, NEXT, HANGS)
    kill = pool._kill
    held = []
    monkeypatch.setattr(pool, "KILL_SECONDS", 0.3)
    monkeypatch.setattr(pool, "_kill", lambda process: held.append(process))
    finished, data = ran(there, limits=replace(QUICK, item=2))
    for process in held:
        kill(process)
        process.wait()
    assert not finished and "does not end" in data["ended"] and "started again" in data["ended"]
    assert kernels(data)[ROW]["1 unit"]["ok"]
    assert kernels(data)[NEXT][label]["error"] == "it was begun, and never answered"


def test_arguments_that_cannot_be_made(there, tmp_path):
    """The rows without are told; the process that makes them may also end without a word."""
    found = serving.Inputs(there, tmp_path, dict(os.environ), 5.0)
    found._makers = {ROW: subprocess.Popen(["false"]), NEXT: subprocess.Popen(["sleep", "60"])}
    assert found.problem(ROW) == "the process that makes arguments ended with status 1"
    (tmp_path / "hidden_markov.error").write_text("OSError: No space left on device")
    assert found.problem(NEXT) == "OSError: No space left on device"
    (tmp_path / "hidden_markov.error").unlink()
    found.deadline = 0.0
    assert found.problem(NEXT) == "no arguments in time"
    found.end()


def test_arguments_are_on_no_clock(there, monkeypatch):
    """However long they take to be made."""
    begin = serving.Inputs.begin

    def late(self, rows):
        begin(self, rows[1:])
        words = [
            sys.executable,
            "-m",
            "benchmarks.gpu.inputs",
            str(self.pack.folder),
            str(self.folder),
            rows[0],
        ]
        self._makers[rows[0]] = subprocess.Popen(
            ["sh", "-c", 'sleep 3; exec "$@"', "sh", *words], env=self.environment
        )

    monkeypatch.setattr(serving.Inputs, "begin", late)
    finished, data = ran(there, limits=replace(QUICK, item=2.5))
    assert finished and all(record["ok"] for record in kernels(data)[ROW].values())


def full(monkeypatch, has_reserve):
    """A disk without room but for the reserve."""
    write = results.write

    def refused(path, data):
        if not has_reserve or (path.parent / results.RESERVE).exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(results, "write", refused)


def test_a_full_disk(there, monkeypatch):
    """The reserve is given up for the file, which says so."""
    full(monkeypatch, has_reserve=True)
    finished, data = ran(there, only=(ROW,))
    assert finished and "has no room left" in data["events"][0] and kernels(data)[ROW]["1 unit"]["ok"]


def test_a_disk_that_stays_full(there, monkeypatch, capsys):
    """All items run, and what was written before stays."""
    ran(there, only=(ROW,))
    (path,) = (there.folder.parent / "out").glob("gpu_check_*.json")
    full(monkeypatch, has_reserve=False)
    finished, data = ran(there, resume=path)
    said = capsys.readouterr().out
    assert finished and said.count("cannot be written") == 1 and f"{NEXT}, 1 unit: " in said
    assert set(kernels(data)) == {ROW}


def test_clusters_that_do_not_fit(there, monkeypatch):
    """Figures of clusters are missing, and nothing else."""
    monkeypatch.setenv("FAKE_FACTS", f"{small_pack.CARD} in_cluster=0")
    _, data = ran(there, only=())
    litmus = data["sections"]["litmus"]
    failed = {name for name, record in litmus.items() if not record.get("ok")}
    assert failed and all("cluster" in name for name in failed) and "none" in litmus[min(failed)]
    figures = data["sections"]["measure"]["card"]["figures"]
    assert {"barrier, 4 blocks", "launch in a graph"} <= set(figures) and figures["L2 read"]["sm_clock"] > 0
    assert data["sections"]["measure"]["card"]["spec"]["units"] == 4
    assert list(data["sections"])[:3] == ["versions", "measure", "litmus"]
    host = data["sections"].get("host", {})
    assert not host or all(record["ok"] for record in host.values())
