"""Items of work as processes of their own, each with a cap, all within a budget; failures are records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = "RESULT "  # begins the line that holds an item's result
_closed = threading.Event()  # no item begins any more
_running: set[subprocess.Popen[Any]] = set()
LEAST_SECONDS = 3.0  # with less time left an item is not started
KILL_SECONDS = 20.0  # in which a process ends after SIGKILL, unless the driver holds it
PARENT_SECONDS = 0.5
TAIL = 1500  # characters of output that are kept of an item that failed

Record = dict[str, Any]


class Stuck(RuntimeError):
    """A process cannot be ended: the driver holds it, and perhaps the card. No other one is to be started."""


@dataclass(frozen=True, slots=True)
class Task:
    """A process: `command`, with more `environment`; stopped after `cap` seconds. `log`: keep its output."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    cap: float = 60.0
    log: bool = False


def python_path() -> dict[str, str]:
    """The environment in which a process finds our modules."""
    root = str(Path(__file__).resolve().parents[2])
    return {"PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}


def end_with_parent() -> None:
    """Lets this process end when the one that started it has ended, however that was: it may use the card."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def tell(record: Record) -> None:
    """Says, in the process of an item, what is known so far; what is told last counts."""
    print(MARK + json.dumps(record), flush=True)


def run(task: Task, deadline: float = float("inf")) -> Record:
    """Runs an item: returns what it printed behind `MARK`; or `error`, or `skipped`. `deadline`: of
    `time.monotonic`. Raises Stuck."""
    left = deadline - time.monotonic()
    if left < LEAST_SECONDS or _closed.is_set():
        return {"skipped": "no time left"}
    limit = min(task.cap, left)
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            list(task.command),
            env={**os.environ, **task.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return {"error": str(error)}
    _running.add(process)
    if _closed.is_set():  # since it was asked
        _kill(process)
    try:
        output, _ = process.communicate(timeout=limit)
        record = _record(process.returncode, output)
    except subprocess.TimeoutExpired:
        output = ended(process) or ""
        words = f"stopped after {limit:.0f} s" + (", as no time was left" if limit < task.cap else "")
        kind = "error" if limit == task.cap else "skipped"
        record = {**(_last_record(output) or {}), kind: words, "output": output[-TAIL:]}
    except BaseException:
        _kill(process)
        raise
    finally:
        _running.discard(process)
    if task.log:
        record["log"] = output[-20 * TAIL :]
    return {**record, "wall_seconds": round(time.monotonic() - start, 2)}


def end_all(for_good: bool = False) -> None:
    """Ends the processes of all items, whichever thread waits for them. `for_good`: no other one begins."""
    if for_good:
        _closed.set()
    for process in list(_running):
        _kill(process)


def ended(process: subprocess.Popen[Any]) -> Any:
    """Ends a process and what it started, and returns the rest of its output. Raises Stuck."""
    _kill(process)
    try:
        output, _ = process.communicate(timeout=KILL_SECONDS)
    except subprocess.TimeoutExpired as error:
        if process.poll() is not None:  # what it started, in a session of its own, holds its output
            return None
        raise Stuck(f"process {process.pid} does not end {KILL_SECONDS:g} s after SIGKILL") from error
    return output


def _kill(process: subprocess.Popen[Any]) -> None:
    """The session is its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def _record(status: int, output: str) -> Record:
    told = _last_record(output)
    if status == 0 and told is not None:
        return told
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "without a word")
    words = (f"ended by signal {-status}" if status < 0 else f"exit status {status}") + f": {last}"
    return {**(told or {}), "error": words, "output": output[-TAIL:]}


def _last_record(output: str) -> Record | None:
    """The last record that an item told; None if it told nothing."""
    for line in reversed(output.splitlines()):
        if line.startswith(MARK):
            try:
                return dict(json.loads(line[len(MARK) :]))
            except ValueError:  # cut off
                continue
    return None


def run_all(
    tasks: Sequence[Task],
    workers: int,
    deadline: float,
    done: Callable[[str, Record], None] = lambda name, record: None,
) -> dict[str, Record]:
    """The record of every task, `workers` of them at a time, in this order. `done` gets each one at once.
    Raises Stuck; this, or Ctrl-C, ends all of them."""

    def one(task: Task) -> Record:
        record = run(task, deadline)
        done(task.name, record)
        return record

    with ThreadPoolExecutor(max(workers, 1)) as threads:
        try:
            records = list(threads.map(one, tasks))
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise
    return {task.name: record for task, record in zip(tasks, records, strict=True)}
