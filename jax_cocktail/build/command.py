"""Runs a program, such as a compiler, within limits of time and output. It ends when its parent does."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_cocktail.build import stuck
from jax_cocktail.errors import BuildError

ANSWER_SECONDS = 10.0
STOPPED = "stopped after"  # in the output of a program that was stopped
_MOST_OUTPUT = 16 << 20
_SHELL = "/bin/sh"
# Standard input is a pipe, and this process holds its other end. However this process ends, `read` returns,
# and the whole process group is killed. (Linux can send a signal when a parent dies, but the processes that a
# compiler starts would not get it, and to ask for it between fork and exec is unsafe with threads.) The
# program replaces the shell, and is not the parent of the process that waits. A system without limits of
# memory does without them.
_BOUNDED = "ulimit -v {} 2>/dev/null; "
_TIED = 'exec 3<&0 </dev/null; ( { read -r _ <&3; kill -9 0; } >/dev/null 2>&1 & ); exec 3<&-; exec "$@"'

# What runs: the descriptor that ends it when it is closed, and for whom it runs.
_running: dict[subprocess.Popen[bytes], tuple[int, object]] = {}
_LOWEST_PRIORITY = 19


class _Local(threading.local):
    """Per thread: whether the programs that it starts have low priority, and for whom it starts them."""

    low: bool = False
    owner: object = None


_local = _Local()
_refusing = threading.Event()
_stopped: weakref.WeakSet[Any] = weakref.WeakSet()  # owners


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a program. `status`: its exit status, or minus the number of the signal that killed it;
    `late`: it was stopped because it took too long."""

    status: int
    output: str
    late: bool = False


def settings_of(names: Iterable[str]) -> tuple[str, ...]:
    """Those of a compiler's variables that are set, with their values: they belong to its version."""
    return tuple(f"{name}={os.environ[name]}" for name in names if os.environ.get(name))


def answer(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, errors: bool = False
) -> str:
    """The output of a short command; "" if it does not run, fails or takes too long. `errors`: whether the
    output includes what it writes to standard error."""
    name = stuck.name_of(command)
    if stuck.remembered(name):
        return ""
    ended = run(command, environment or {}, ANSWER_SECONDS, errors=errors)
    if ended.late:
        stuck.remember(name)
    return ended.output.strip() if ended.status == 0 else ""


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    seconds: float,
    *,
    folder: Path | None = None,
    errors: bool = True,
    more: Callable[[], float] = lambda: 0.0,
    memory_bytes: int = 0,
) -> Ended:
    """Runs a command to its end.

    Args:
      command: the program and its arguments.
      environment: variables to set, in addition to those of this process.
      seconds: the time that it may take.
      folder: where it runs.
      errors: whether the output includes what it writes to standard error.
      memory_bytes: the address space of each of its processes, at most; 0: no limit.
      more: called when the time is over; returns the seconds that it may take in addition.

    Raises:
      BuildError: no process can be started.
      FileNotFoundError: the folder has vanished.
    """
    if _refusing.is_set() or _local.owner in _stopped:
        raise BuildError("it was stopped", "run the program again")
    try:
        process, ours = _started(_tied(command, memory_bytes), environment, folder, errors)
    except OSError as error:
        if folder is not None and not folder.is_dir():
            raise
        reason = f"{command[0]} cannot be started: {error.strerror}"
        raise BuildError(reason, "raise the limits of the process (ulimit -a)") from error
    with process, open(ours, "wb"):
        _running[process] = ours, _local.owner
        if _refusing.is_set():  # since a moment ago
            _end(process)
        try:
            output, stopped = _follow(process, seconds, more)
        except BaseException:
            _end(process)
            raise
        finally:
            _running.pop(process, None)
        if stopped:
            _end(process)
    late = bool(stopped) and len(output) < _MOST_OUTPUT
    return Ended(process.returncode, output.decode(errors="replace") + stopped, late)


def _started(
    words: Sequence[str], environment: Mapping[str, str], folder: Path | None, errors: bool
) -> tuple[subprocess.Popen[bytes], int]:
    """A process, and the descriptor that ends it when it is closed. Raises OSError."""
    theirs, ours = os.pipe()
    try:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", **environment},
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    if _local.low:
        with suppress(OSError):  # it has ended, or the system does not allow it
            os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST_PRIORITY)
    return process, ours


def _tied(command: Sequence[str], memory_bytes: int) -> tuple[str, ...]:
    """The command with its limits, if there is a shell."""
    if not os.access(_SHELL, os.X_OK):
        return tuple(command)
    script = (_BOUNDED.format(memory_bytes >> 10) if memory_bytes else "") + _TIED
    return (_SHELL, "-c", script, "sh", *command)


def stop(owner: object) -> None:
    """Kills what runs now for somebody, and starts nothing for him any more."""
    _stopped.add(owner)
    for process, (_, other) in tuple(_running.items()):
        if other is owner:
            _end(process)


def refuse() -> None:
    """Kills what runs now, and starts nothing any more: the process ends."""
    _refusing.set()
    for process in tuple(_running):
        _end(process)


@contextmanager
def low_priority() -> Iterator[None]:
    """Lets the programs that this thread starts in the block leave the cores to others."""
    before, _local.low = _local.low, True
    try:
        yield
    finally:
        _local.low = before


@contextmanager
def owned_by(owner: object) -> Iterator[None]:
    """Lets the programs that this thread starts in the block end with `stop` of this owner."""
    before, _local.owner = _local.owner, owner
    try:
        yield
    finally:
        _local.owner = before


def owner() -> object:
    """For whom this thread starts programs; None: for nobody in particular."""
    return _local.owner


def is_low() -> bool:
    """True in a block of `low_priority`."""
    return _local.low


def _leave_to_parent() -> None:
    """A forked child neither stops its parent's programs nor keeps them running."""
    for descriptor, _ in _running.values():
        with suppress(OSError):
            os.close(descriptor)
    _running.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def _follow(process: subprocess.Popen[bytes], seconds: float, more: Callable[[], float]) -> tuple[bytes, str]:
    """Waits for the end. Returns the output, and why the program must be stopped, or ""."""
    assert process.stdout is not None
    start, output = time.monotonic(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(output) < _MOST_OUTPUT:
            left = start + seconds - time.monotonic()
            if left > 0 and selector.select(left):
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    break
                output += data
            elif left <= 0:
                longer = more()
                if longer <= 0:
                    return bytes(output), f"{STOPPED} {time.monotonic() - start:.0f} s"
                more, seconds = _no_more, seconds + longer
        else:
            return bytes(output[:_MOST_OUTPUT]), f"\n{STOPPED} {_MOST_OUTPUT >> 20} MB of messages"
    try:
        process.wait(max(start + seconds - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        return bytes(output), f"{STOPPED} {time.monotonic() - start:.0f} s"
    return bytes(output), ""


def _no_more() -> float:
    return 0.0


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
    except ProcessLookupError:
        process.kill()
