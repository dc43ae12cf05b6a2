"""``python -m jax_cocktail cache``: it shows, checks and empties the folder, and needs no jax."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jax_cocktail import cache, portable
from tests.process import ROOT

KEY, OTHER = "ab" * 32, "cd" * 32
NO_JAX = "import sys; sys.modules['jax'] = None; import runpy; sys.argv = ['jax_cocktail', *sys.argv[1:]]; "
NO_JAX += "runpy.run_module('jax_cocktail', run_name='__main__')"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with a program, its source, a plan and a call."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    root = cache.prepare_root()
    entry(root, KEY, "int main;")
    facts = {"key": KEY}
    cache.write_record("plans", "program-1", {"facts": facts, "sha256": portable.digest_of_facts(facts)})
    cache.write_record("calls", "1", {})
    return root


def entry(root: Path, key: str, text: str, name: str = "program.cc") -> Path:
    with cache.build_folder(root) as folder:
        (folder / cache.BINARY).write_bytes(b"a program" * 500)
        (folder / name).write_text(text)
        cache.seal(folder, key, {"seconds": 1.0})
        cache.publish(folder, cache.entry_folder(root, key))
    return cache.entry_folder(root, key)


def run(*words: str) -> tuple[int, list[str]]:
    """The exit status, and the lines that are printed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", NO_JAX, "cache", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def test_list(root: Path) -> None:
    """What it has, by last use; to look is no use."""
    entry(root, OTHER, "ck_cpu_instantiate")
    entry(root, "ef" * 32, "", "program.cu")
    now = time.time()
    for age, path in enumerate(sorted((root / "entries").iterdir())):
        os.utime(path / cache.META, (now, now - 86400 * (age + 1)))
    for each in (root / "plans", root / "calls"):
        for path in each.iterdir():
            os.utime(path, (now + 10_000, now + 10_000))  # the clock was set back since
    status, lines = run("list")
    kinds = [line[:16].strip() for line in lines]
    assert status == 0 and sorted(kinds[:2]) == ["call", "plan"]
    assert kinds[2:] == ["CPU program", "runtime library", "GPU program"]
    assert all("used    0 s ago" in line for line in lines[:2])
    assert "4.6 KiB" in lines[2] and "used    1 d ago" in lines[2] and KEY[:24] in lines[2]
    assert (root / "entries" / KEY / cache.META).stat().st_mtime == pytest.approx(now - 86400)


def test_info(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_LIMIT_BYTES", str(3 << 20))
    status, lines = run("info")
    assert status == 0 and lines[0].split() == ["folder", str(root)]
    assert lines[1].startswith("programs   1, 4.") and lines[1].endswith("of at most 3.0 MiB")
    assert lines[2].startswith("records    2, ")
    assert [line.split()[:2] for line in lines[3:]] == [["calls", "1"], ["plans", "1"]]
    root.chmod(0o777)
    assert "not usable: " in run("info")[1][0]


def test_an_empty_place(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(root / "nowhere"))
    assert run("list") == (0, [])
    assert run("verify") == (0, ["0 entries and records, 0 of them damaged"])
    assert run("clear") == (0, [])
    assert run("info")[0] == 0 and not (root / "nowhere").exists()


def test_clear(root: Path) -> None:
    assert run("clear") == (0, [])
    assert run("list") == (0, []) and root.is_dir()


DAMAGES = {
    "program": ("its SHA-256 is not the recorded one", lambda root: root / "entries" / KEY / cache.BINARY),
    "no facts": ("", lambda root: root / "entries" / KEY / cache.META),
    "plan": ("", lambda root: root / "plans" / "program-1.json"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_verify(root: Path, what: str) -> None:
    words, place = DAMAGES[what]
    assert run("verify") == (0, ["3 entries and records, 0 of them damaged"])
    path = place(root)
    path.write_bytes(path.read_bytes()[:-3])  # truncated
    status, lines = run("verify")
    assert status == 1 and len(lines) == 2 and words in lines[0]
    assert lines[1] == "3 entries and records, 1 of them damaged"
    status, lines = run("verify", "--remove")
    assert status == 0 and lines[0].endswith("; removed")
    assert run("verify") == (0, ["2 entries and records, 0 of them damaged"])


def test_verify_finds_what_was_tampered_with(root: Path) -> None:
    """A fact of a plan, entries in each other's places, a file that others can write."""
    entry(root, OTHER, "")
    one, two, aside = root / "entries" / KEY, root / "entries" / OTHER, root / "aside"
    one.rename(aside), two.rename(one), aside.rename(two)
    path = root / "plans" / "program-1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "facts": {"key": OTHER}}))
    (root / "calls" / "1.json").chmod(0o666)
    status, lines = run("verify")
    assert status == 1 and lines[-1] == "4 entries and records, 4 of them damaged"
    assert sum("another key" in line for line in lines) == 2
    assert "SHA-256" in "".join(lines) and "writable by other users" in "".join(lines)


def test_a_wrong_word(root: Path) -> None:
    assert run("wash")[0] != 0 and run()[0] != 0


def test_a_reader_that_ends_early(root: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", NO_JAX, "cache", "info"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=writes,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writes)
    assert (done.returncode, done.stderr) == (141, "")
