"""Processes that answer items for a run of a pack: one that uses the card, and some that make arguments."""

from __future__ import annotations

import json
import math
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu.packed import Pack, file_name
from benchmarks.gpu.pool import Record, Stuck, ended

MOST_BYTES = 16 << 20  # of an answer
STATUS_SECONDS = 3.0
LEAST_SECONDS = 5.0  # that a process has for its first answer
MOST_WORDS = 1000  # of what a process said before it ended
MAKERS = 4  # processes that make arguments
Item = tuple[str, str, str]  # what it is: "program", "streams", or a kind of figure; its name; its digest
CARD: Item = ("card", "", "")


class CannotStart(RuntimeError):
    """The process that uses the card gives no first answer."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds. start: of a process until its first answer, which is tried `starts` times: a cold machine
    loads Python and the driver; item: of an item; hung: of an item after one that has hung; inputs: until
    the arguments of a row are there."""

    start: float = 120.0
    starts: int = 2
    item: float = 30.0
    hung: float = 8.0
    inputs: float = 120.0


class Hangs(ValueError):
    """There is no answer in time."""


@dataclass
class Worker:
    """A process that answers items. It is started when it is needed, and again after one that failed. `log`:
    the file of what it says beside its answers."""

    command: Sequence[str]
    environment: dict[str, str]
    log: Path
    limits: TimeLimits = TimeLimits()
    deadline: float = math.inf  # of `time.monotonic`: no start is waited for any longer
    process: subprocess.Popen[bytes] | None = None
    _rest: bytes = b""

    def start(self) -> Record:
        """Starts the process; returns what it says of the card. Raises CannotStart or Stuck."""
        for _ in range(self.limits.starts):
            with open(self.log, "wb") as said:
                self.process = subprocess.Popen(
                    self.command,
                    env=self.environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    start_new_session=True,
                )
            self._rest = b""
            record = self._asked(self.process, CARD, min(self.limits.start, self._left()))
            if "error" not in record:
                return record
            self.end()
        raise CannotStart(record["error"])

    def ready(self) -> None:
        """Starts the process if there is none. Raises CannotStart or Stuck."""
        if self.process is None:
            self.start()

    def ask(self, item: Item, seconds: float) -> Record:
        """The record of an item; an `error` if there is none after so long, and then the process is ended.
        Raises CannotStart or Stuck."""
        self.ready()
        assert self.process is not None
        record = self._asked(self.process, item, seconds)
        if "error" in record:
            self.end()  # the card may be lost to it
        return record

    def _left(self) -> float:
        return max(self.deadline - time.monotonic(), LEAST_SECONDS)

    def _asked(self, process: subprocess.Popen[bytes], item: Item, seconds: float) -> Record:
        known: Record = {}
        end = time.monotonic() + seconds
        try:
            while "so far" in (record := self._answer(process, item if not known else None, end)):
                known = record["so far"]
            return record
        except Hangs:
            return {**known, "error": f"stopped after {seconds:g} s", "hung": True}
        except (OSError, ValueError) as error:
            return {**known, "error": str(error)}

    def _answer(self, process: subprocess.Popen[bytes], item: Item | None, end: float) -> Record:
        """A line of the process, after it was given an item, if there is one."""
        assert process.stdin is not None and process.stdout is not None
        if item is not None:
            process.stdin.write(json.dumps(item).encode() + b"\n")
            process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left = end - time.monotonic()
                if left < 0 or not selector.select(left) or len(self._rest) > MOST_BYTES:
                    raise Hangs
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    raise ValueError(f"the process ended with status {_status(process)}{self._last_words()}")
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError(f"the process answered {line[:100]!r}")
        return record

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace")[-MOST_WORDS:].strip().splitlines()
        return f": {lines[-1].strip()}" if lines else ""

    def end(self) -> None:
        """Ends the process, whatever it does. Raises Stuck if it does not end."""
        process, self.process = self.process, None
        if process is not None:
            ended(process)


def _status(process: subprocess.Popen[bytes]) -> str:
    """Of a process that closed its output; the driver may hold it for a while."""
    try:
        return str(process.wait(STATUS_SECONDS))
    except subprocess.TimeoutExpired:
        return "unknown: it does not end"


@dataclass
class Inputs:
    """Processes that make the arguments of rows, in order, beside the card."""

    pack: Pack
    folder: Path
    environment: dict[str, str]
    limit: float
    deadline: float = math.inf  # of `time.monotonic`
    _makers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)  # by row

    def begin(self, rows: Sequence[str]) -> None:
        """Begins to make them; the limit counts from now on."""
        self.deadline = min(self.deadline, time.monotonic() + self.limit)
        for number in range(min(MAKERS, len(rows))):
            mine = rows[number::MAKERS]
            command = [sys.executable, "-m", "benchmarks.gpu.inputs", str(self.pack.folder), str(self.folder)]
            process = subprocess.Popen([*command, *mine], env=self.environment, start_new_session=True)
            self._makers.update(dict.fromkeys(mine, process))

    def problem(self, row: str) -> str:
        """Waits for the arguments of a row; the reason if there are none, or ""."""
        path = self.folder / f"{file_name(row)}.npz"
        while not path.exists():
            status = self._makers[row].poll()
            if (failed := path.with_suffix(".error")).exists():
                return failed.read_text(encoding="utf-8")
            if status is not None and not path.exists():
                return f"the process that makes arguments ended with status {status}"
            if time.monotonic() > self.deadline:
                return "no arguments in time"
            time.sleep(0.02)
        return ""

    def end(self) -> None:
        """Ends all of them."""
        for process in set(self._makers.values()):
            with suppress(Stuck):  # they do not use the card
                ended(process)
