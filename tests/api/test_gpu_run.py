"""Runs of a pack on the fake driver, by the processes of a real run: what they find, and how they go on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from benchmarks import gpu_check
from benchmarks.gpu import packed, report, results, run_pack
from benchmarks.gpu.results import Results
from benchmarks.gpu.run_pack import PackRun
from tests.api import small_pack
from tests.api.fake_card import FakeCard
from tests.api.small_pack import CHECK, NEXT, PRINTED, QUICK, ROW, begun, command, kernels, ran

# ---- what a run finds --------------------------------------------------------------------------------------


def test_order(there):
    """What counts most comes first."""
    figures = {"micro": ["barrier"], "litmus": ["signals"], "latency": ["tanh"]}
    (other, main), programs = [there.row(name) for name in (NEXT, ROW)], []
    run = PackRun(there, begun(there), 1.0)
    run._rows = {"attention/1": replace(main, name="attention/1"), NEXT: other}
    for kind, name, digest in run._items(figures):
        phases = {p.digest: p.phase for p in run._rows[name].programs} if kind == "program" else {}
        programs.append((kind, name, phases.get(digest, "")))
    assert programs[:4] == [
        ("micro", "barrier", ""),
        ("litmus", "signals", ""),
        ("program", "attention/1", "best"),
        ("program", NEXT, "best"),
    ]
    phases = [phase for kind, _, phase in programs[4:] if kind == "program"]
    assert phases == sorted(phases, key=packed.PHASES.index) and programs[-1] == ("latency", "tanh", "")
    assert packed.ORDER[:15] == (*packed.MAIN, *packed.ENSEMBLES)


def test_run(there):
    """All programs agree with float64 and have times and clocks; timelines have a file of their own."""
    finished, data = ran(there)
    assert finished and data["ended"] == "all items of the pack are there"
    assert data["code"] == packed.source_digest() and re.match(r"\d{4}-\d\d-\d\dT", data["date"])
    for row in there.rows():
        assert len(kernels(data)[row.name]) == len(row.programs)
        for record in kernels(data)[row.name].values():
            assert record["ok"] and record["same_inputs"] and record["sm_clock"] > 0
            assert 0 < record["seconds"] <= 1.5 * record["call_seconds"]
            assert record["difference"] <= record["limit"] and "timeline" not in record
    (path,) = (there.folder.parent / "out").glob("timelines_*.json")
    lines = json.loads(path.read_text())[ROW][f"{there.row(ROW).best().plan}, traced"]
    assert "stamps of level 2" in lines[0] and len(lines) > 3


def cut_off(there, items, *more):
    """Runs the command until it has said so many items, and kills it; returns the file."""
    process = subprocess.Popen(command(there, *more), stdout=subprocess.PIPE, start_new_session=True)
    seen = 0
    for line in process.stdout:
        seen += bool(PRINTED.match(line))
        if seen == items:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert seen >= items
    (path,) = (there.folder.parent / "out").glob("gpu_check_*.json")
    return path


def finished(data):
    """The programs that were begun and answered."""
    every = {(row, label): each for row, found in kernels(data).items() for label, each in found.items()}
    return {place: each for place, each in every.items() if "error" not in each}


def test_cut_off_and_resumed(there):
    """However often: together the runs are one, which repeats nothing."""
    path = cut_off(there, 1)
    first = json.loads(path.read_text())
    assert len(finished(first)) >= 1 and first["ended"] == "it was cut off"
    second = json.loads(cut_off(there, 2, "--resume", path).read_text())
    done = subprocess.run(command(there, "--resume", path), capture_output=True, text=True)
    assert done.returncode == 1 and "1 items failed, are wrong or were skipped: jax all" in done.stdout, (
        done.stdout + done.stderr
    )
    assert "jax has no GPU here: its backend is cpu" in done.stdout
    last = json.loads(path.read_text())
    assert finished(first).items() <= finished(second).items() <= finished(last).items()
    names = {row.name: {p.label for p in row.programs} for row in there.rows()}
    assert {row: set(records) for row, records in kernels(last).items()} == names
    assert last["ended"] == "every item had its turn" and last["seconds"] > second["seconds"]
    again = subprocess.run(command(there, "--resume", path), capture_output=True, text=True)
    assert not PRINTED.search(again.stdout.split("jax: ")[0].encode()) and again.returncode == 1
    shown = subprocess.run(
        [sys.executable, str(CHECK), "--report", str(path)], capture_output=True, text=True
    )
    assert shown.stdout.strip() in again.stdout
    text = report.text(last)
    assert f"{ROW}, {there.row(ROW).best().label}" in text and "agrees" in text


def answers(data):
    """What does not depend on the clock: every item, and whether it is right or what is wrong with it."""
    found = {}

    def look(where, record):
        if "code" in record:
            wrong = re.sub(r"0x[0-9a-f]+", "", record.get("error", record.get("none", "")))
            found[where] = record.get("ok"), record.get("digest"), wrong
        else:
            for key, inner in record.items():
                if isinstance(inner, dict):
                    look((*where, key), inner)

    look((), {name: each for name, each in data["sections"].items() if name not in ("versions", "jax")})
    return found


@pytest.mark.long
def test_the_whole_pack(tmp_path, monkeypatch):
    """All rows, figures and litmus tests take less than 180 s. Cut off three times and resumed, they are what
    an uninterrupted run finds; figures of the card and litmus tests are there after 25 s."""
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(FakeCard(tmp_path).path))
    monkeypatch.setenv("FAKE_FACTS", small_pack.CARD)
    folder = small_pack.made(tmp_path / "pack", packed.ORDER)
    words = [sys.executable, str(CHECK), "--run", str(folder), "--budget", "180"]
    start = time.monotonic()
    whole = subprocess.run([*words, "--out", str(tmp_path / "whole")], capture_output=True, text=True)
    assert whole.returncode == 1 and time.monotonic() - start < 180, whole.stdout + whole.stderr
    (path,) = (tmp_path / "whole").glob("gpu_check_*.json")
    expected = answers(json.loads(path.read_text()))
    assert sum(where[0] == "kernels" for where in expected) > 80
    assert all(ok for where, (ok, _, _) in expected.items() if where[0] in ("kernels", "host"))
    resumed = []
    for seconds in (25, 8, 8, 180):  # the command needs some to begin
        process = subprocess.Popen(
            [*words, "--out", str(tmp_path / "parts"), *resumed], start_new_session=True
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        (path,) = (tmp_path / "parts").glob("gpu_check_*.json")
        resumed = ["--resume", str(path)]
        if seconds == 25:
            first = answers(json.loads(path.read_text()))
            early = {
                where
                for where in expected
                if where[0] in ("measure", "litmus") and "threads" not in where[-1]
            }
            assert early <= set(first)
    assert answers(json.loads(path.read_text())) == expected


def test_without_time(there):
    """Status 75; what is missing, and the command that goes on."""
    done = subprocess.run([*command(there), "--budget", "1e-9"], capture_output=True, text=True)
    assert done.returncode == gpu_check.UNFINISHED
    assert f"no time left for 6 items of the pack, the next one {ROW}" in done.stdout
    (path,) = (there.folder.parent / "out").glob("gpu_check_*.json")
    last = f"--run {there.folder} --resume {path} --budget 1e-09 --only {ROW} {NEXT}"
    assert done.stdout.splitlines()[-1].endswith(last)


def test_without_a_driver(there, monkeypatch, tmp_path):
    """Another call would not help: the reason is in the file and on the screen, and the status is 1."""
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(tmp_path / "none.so"))
    done = subprocess.run(command(there), capture_output=True, text=True)
    (path,) = (there.folder.parent / "out").glob("gpu_check_no_card_*.json")
    why = json.loads(path.read_text())["sections"]["versions"]["all"]["no_card"]
    assert done.returncode == 1 and "none.so" in why and why in done.stdout and "--resume" not in done.stdout


def test_rows_that_are_not_there(there, tmp_path):
    words = [
        sys.executable,
        str(CHECK),
        "--run",
        str(there.folder),
        "--only",
        "lstm1",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1 and "the pack has no row lstm1" in done.stderr
    words[3] = str(tmp_path)
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1 and "there is no pack in" in done.stderr
    path = there.folder / "hidden_markov.json"
    path.write_text(path.read_text()[:-9])
    done = subprocess.run(command(there), capture_output=True, text=True)
    assert done.returncode == 1 and "is damaged, copy it again" in done.stderr


def test_an_interrupted_run(there):
    """Tells what it has found, and leaves no process."""
    process = subprocess.Popen(command(there), stdout=subprocess.PIPE, start_new_session=True)
    for line in process.stdout:
        if PRINTED.match(line):
            process.terminate()
            break
    rest = process.stdout.read().decode()
    assert (
        process.wait() == gpu_check.UNFINISHED and "it was interrupted" in rest and "packed programs" in rest
    )
    (path,) = (there.folder.parent / "out").glob("gpu_check_*.json")
    assert json.loads(path.read_text())["ended"] == "it was interrupted"
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    alive = subprocess.run(["pgrep", "-f", str(there.folder)], capture_output=True, text=True)
    assert not alive.stdout


def test_a_pack_of_other_sources(there, monkeypatch):
    """Or of a compiler that the driver does not know: both are said."""
    facts = there.facts
    packed.write(there.folder / "pack.json", {**facts, "compiler": "nvcc 99.0.1"})
    found = begun(there, code="another")
    PackRun(there, found, 60.0, (ROW,), QUICK).run()
    said = " ".join(found.events)
    assert "made from other sources" in said and "the driver is of CUDA 13.0, nvcc 99.0.1 is newer" in said


def test_only_what_is_of_the_same_sources_is_resumed(there):
    """Else new kernels would stand beside old calls. A program whose machine code is the same is kept."""
    found = begun(there, code="old")
    best = there.row(ROW).best()
    found.keep({"card": {"name": "Fake Card 1"}}, "versions", "all")
    found.found_on("Fake Card 1")
    found.keep({"seconds": 1.0, "digest": best.digest}, "kernels", ROW, best.label)
    found.keep({"seconds": 2.0, "digest": "gone"}, "kernels", ROW, "another plan")
    found.keep({"seconds": {"stock": 3.0, "ours": 1.0}}, "times", ROW)
    found.timelines = {ROW: {best.label: ["kept"], "another plan": ["dropped"]}}
    found.write()
    resumed = begun(there, code="new", resume=found.path)
    assert set(resumed.sections) == {"kernels"} and set(resumed.sections["kernels"][ROW]) == {best.label}
    assert resumed.timelines == {ROW: {best.label: ["kept"]}} and resumed.path != found.path
    same = begun(there, code="old", resume=found.path)
    assert set(same.sections["kernels"][ROW]) == {best.label, "another plan"} and "times" in same.sections
    assert same.path == found.path
    same.found_on("Fake Card 2")
    assert not same.sections and "is left out" in same.events[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting"),
        ("{}", "'sections'"),
        ('{"sections": {}, "seconds": 1, "small": false}', "other sizes"),
        (None, "No such file"),
    ],
)
def test_what_cannot_be_resumed(there, tmp_path, text, why):
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    done = subprocess.run(command(there, "--resume", path), capture_output=True, text=True)
    assert done.returncode == 1 and "cannot be resumed" in done.stderr and why in done.stderr


# ---- the file ----------------------------------------------------------------------------------------------


def test_the_file_is_small(tmp_path):
    """What failed items printed goes first."""
    found = Results(tmp_path, "code")
    for number in range(300):
        found.sections.setdefault("times", {})[str(number)] = {"error": "it", "output": "x" * 10_000}
    found.write()
    assert found.path.stat().st_size < results.MOST_BYTES
    data = json.loads(found.path.read_text())
    assert data["sections"]["times"]["7"] == {"error": "it"} and "is left out" in data["events"][-1]


def test_the_newest_run_of_each_card(tmp_path):
    def written(name, card, date):
        data = {"sections": {"versions": {"all": {"card": card and {"name": card}}}}}
        data["sections"]["kernels"] = {
            "row": {"plan": {"seconds": 1.0} if card != "A100" else {"error": "no"}}
        }
        (tmp_path / f"gpu_check_{name}.json").write_text(json.dumps(data | ({"date": date} if date else {})))

    written("a", "H100", "2026-11-26")
    written("b", "H100", "")
    written("c", "H200", "2026-11-20")
    written("d", None, "2026-11-27")
    written("e", "A100", "2026-11-27")  # which timed nothing
    written("f", "H200", "2026-11-20T08:00:00")
    found = results.newest(tmp_path)
    assert {card: path.name for card, path in found.items()} == {
        "H100": "gpu_check_a.json",
        "H200": "gpu_check_f.json",
    }


def test_words():
    """What is said of an item on the way."""
    said = run_pack._words
    assert said({"trials": 9, "forbidden": 2, "ok": False}) == "9 trials, 2 FORBIDDEN"
    times = {"seconds": 1e-6, "predicted_seconds": 2e-6}
    assert said({**times, "ok": None}) == "1 us, predicted 2, not judged: this machine makes other inputs"
    assert said({"seconds": 1e-6, "ok": False}) == "1 us, WRONG"
