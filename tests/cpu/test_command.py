"""Programs that are run: limits of time and output, and what remains of them when their parent ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jax_cocktail import cache
from jax_cocktail.build import command, stuck
from jax_cocktail.errors import BuildError
from jax_cocktail.memory import MEMORY

ENDLESS = 'sleep 1021 & echo $! > "$0"; wait'  # a child of its own, as compilers have


def _gone(pid: int, within: float = 10.0) -> bool:
    """Whether a process ends soon."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def _pid(path: Path) -> int:
    while not path.exists() or not path.read_text().endswith("\n"):
        time.sleep(0.01)
    return int(path.read_text())


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    MEMORY.stuck.clear()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_runs_ends_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    place = tmp_path / "pid"
    script = (  # what runs in the background of a shell ignores interrupts
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from jax_cocktail.build import command\ncommand.run(['sh', '-c', *sys.argv[1:]], {}, 60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", script, ENDLESS, str(place)]
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as parent:
        pid = _pid(place)
        assert not _gone(pid, 0.1)
        parent.send_signal(how)
        parent.wait(30)
    assert _gone(pid)


def test_what_takes_too_long_is_stopped(tmp_path: Path) -> None:
    asked: list[int] = []

    def more() -> float:
        asked.append(1)
        return 0.2

    place = tmp_path / "pid"
    ended = command.run(["sh", "-c", f"echo begun; {ENDLESS}", str(place)], {}, 0.5, more=more)
    assert ended.late and ended.output.startswith("begun\nstopped after") and asked == [1]
    assert _gone(_pid(place))


def test_those_of_an_owner_can_be_stopped(tmp_path: Path) -> None:
    place, found = tmp_path / "pid", []
    words, owner = ["sh", "-c", ENDLESS, str(place)], threading.Event()

    def work() -> None:
        with command.owned_by(owner):
            found.append(command.run(words, {}, 60))

    thread = threading.Thread(target=work)
    thread.start()
    pid = _pid(place)
    command.stop(threading.Event())
    assert thread.is_alive()
    command.stop(owner)
    thread.join(30)
    with command.owned_by(owner), pytest.raises(BuildError):
        command.run(words, {}, 60)
    assert found[0].status == -signal.SIGKILL and not found[0].late and _gone(pid)


def test_status_and_output() -> None:
    assert command.run(["sh", "-c", "echo $A; echo b >&2; exit 3"], {"A": "a"}, 60).output == "a\nb\n"
    assert command.run(["sh", "-c", "exit 3"], {}, 60).status == 3
    assert command.run(["sh", "-c", "kill -TERM $$"], {}, 60).status == -signal.SIGTERM
    assert command.run(["cat"], {}, 60) == command.Ended(0, ""), "no input"
    assert command.answer(["sh", "-c", "echo a; echo b >&2"]) == "a"
    assert command.answer(["sh", "-c", "echo a; exit 1"]) == "" == command.answer(["/no/such/program"])


def test_nobody_waits_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither this process nor, by the cache, another one; until the cache is cleared or time has passed."""
    monkeypatch.setattr(command, "ANSWER_SECONDS", 0.2)
    words = ["sh", "-c", 'echo run >> "$0"; sleep 1021', str(tmp_path / "runs")]

    def runs() -> int:
        assert command.answer(words) == ""
        return len((tmp_path / "runs").read_text().splitlines())

    assert [runs(), runs()] == [1, 1]
    MEMORY.stuck.clear()
    assert runs() == 1, "from the cache"
    MEMORY.forget()
    cache.clear_all_records()
    assert [runs(), runs()] == [2, 2]
    MEMORY.forget()
    cache.clear_all_records()
    monkeypatch.setattr(stuck, "RETRY_SECONDS", -1.0)
    assert [runs(), runs()] == [3, 4]
