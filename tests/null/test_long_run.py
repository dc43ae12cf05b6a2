"""The record of the long run."""

from __future__ import annotations

import json

from tests import long_run


def test_each_step_keeps_its_last_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(long_run, "RECORD", tmp_path / "record.json")
    long_run.main(["812 every case: cpu", "40 release", "--failed", "release"])
    first = json.loads(long_run.RECORD.read_text())
    long_run.main(["50 release"])
    second = json.loads(long_run.RECORD.read_text())
    assert list(second) == ["every case: cpu", "release"]
    assert second["every case: cpu"] == first["every case: cpu"]
    assert (first["release"]["passed"], second["release"]["passed"]) == (False, True)
    assert (second["release"]["seconds"], second["every case: cpu"]["seconds"]) == (50, 812)
    assert len(second["release"]["commit"]) == 40 and second["release"]["jax"]


def test_the_record_names_steps_of_the_long_run() -> None:
    text = (long_run.ROOT / ".ci" / "long").read_text()
    known = json.loads(long_run.RECORD.read_text()) if long_run.RECORD.exists() else {}
    for name in known:
        assert name.split(",")[0].split(" $")[0] in text or name.startswith(("jax ", "H200", "install")), name
