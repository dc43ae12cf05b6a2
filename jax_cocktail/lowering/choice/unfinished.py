"""Finishes in another process what a process that ends has begun to plan and to compile.

A script may end before the background has its program. If it left nothing, no later run of it would ever find
a program in the cache. So a process that ends hands its captured calls to one of the lowest priority, which
outlives it. That one has the programs, but no arguments: it plans and builds, and measures nothing. The next
run takes the program if the cost model prefers it, and measures.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from jax_cocktail import cache
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering.choice import plan_cache
from jax_cocktail.lowering.choice.host import host_of, measure_host
from jax_cocktail.lowering.choice.request import Request, insisted, known_survey
from jax_cocktail.lowering.choice.variants import Translated, program_keys, store_programs
from jax_cocktail.lowering.run.background import before_end, may_detach
from jax_cocktail.lowering.state import HURRYING, Mark, go_on
from jax_cocktail.memory import MEMORY
from jax_cocktail.utask.ir import UProgram

MOST_BYTES = 64 << 20  # of what is handed over
MOST_PROCESSES = 2  # at a time, for one cache folder
MOST_SECONDS = 600  # of such a process
_COMMAND = """
import os, sys
os.nice(19)
sys.path.append(sys.argv[1])
from jax_cocktail.lowering.choice import unfinished
unfinished.finish_all()
"""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A call that is captured, and has no programs yet.

    Attributes:
      programs, memory_bound: see `Translated`.
      spec: of the GPU; None for the host.
      units: the number to plan for.
      mark: the name of the function, and its options.
      key: of the call in the plan cache, if no decision is known.
      seconds: the time that its capture took.
    """

    programs: tuple[UProgram, ...]
    memory_bound: tuple[bool, ...]
    spec: DeviceSpec | None
    units: int
    mark: Mark
    key: str
    seconds: float


@contextmanager
def remembered(request: Request) -> Iterator[None]:
    """In the background: hands a call over if the process ends during the block."""
    key = request.call_key(None)
    if not may_detach(request.mark) or request.known is not None or plan_cache.is_built(key):
        yield
        return
    prepared, spec = request.prepared, request.machine.spec
    programs, bound = prepared.programs, prepared.memory_bound
    call = Unfinished(programs, bound, spec, request.units, request.mark, key, request.seconds)
    MEMORY.unfinished[key] = call
    try:
        go_on()
        yield
    finally:
        if not HURRYING.is_set():
            MEMORY.unfinished.pop(key, None)


def _hand_over() -> None:
    """Starts a process that finishes what this one does not. It is in a session of its own and has none of
    this one's files, so nothing waits for it and no key of a terminal reaches it."""
    if not MEMORY.unfinished or not _is_python():
        return
    with suppress(Exception):  # the process ends, and the next run begins anew
        data = pickle.dumps(tuple(MEMORY.unfinished.values()))
        if len(data) > MOST_BYTES or (slot := _slot()) is None:
            return
        package = str(Path(cache.__file__).resolve().parents[1])
        isolated = ["-I"] if sys.flags.isolated else ["-P"]
        with slot, tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            process = subprocess.Popen(
                [sys.executable, *isolated, "-c", _COMMAND, package],
                stdin=file,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(slot.fileno(),),
                env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_COCKTAIL_DETACH": "0"},
            )
        process.returncode = 0  # nobody waits for it, which Python would warn of


before_end.append(_hand_over)


def _is_python() -> bool:
    """True if `sys.executable` is an interpreter. A program that contains one would start anew."""
    return Path(sys.executable or "").name.startswith("python") and not getattr(sys, "frozen", False)


def _opened_high(path: Path) -> int:
    """Opens a file with none of the first three numbers, which are the streams of a started process."""
    low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(low)


def _slot() -> IO[bytes] | None:
    """A locked file; None if too many processes have one. It stays locked while any process has it open."""
    for number in range(MOST_PROCESSES):
        path = cache.lock_path(cache.prepare_root(), "unfinished", str(number))
        file = os.fdopen(_opened_high(path), "ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError:
            file.close()
    return None


def finish_all() -> None:
    """Finishes the calls that standard input has; what the other process runs."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # whatever the first process has made of it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(MOST_SECONDS)
    calls = pickle.load(sys.stdin.buffer)
    measure_host()
    for call in calls:
        with suppress(Exception):  # the next run tells the user
            finish(call)


def finish(call: Unfinished) -> None:
    """Plans a call, and builds its programs for the plan cache.

    The plan that the next run takes comes first, and then those that it times.
    """
    from jax_cocktail.lowering.choice.decide import worth_building  # and all that plans and measures

    options, machine = call.mark.options, machine_of(call.spec, host=host_of(call.mark, False))
    translated = Translated(machine=machine, programs=call.programs, memory_bound=call.memory_bound)
    thorough = options.profile == "full"
    found = known_survey(translated, call.units, call.mark, thorough)
    if options.force != "auto":
        first, *others = (translated.forced(insisted(translated, call.units, call.mark, found).best),)
    elif found.comparison.hopeless() and not thorough:
        return
    else:
        first, *others = found.assumed, *worth_building(found, call.programs, thorough)
    store_programs(translated, first, options.cache_limit_bytes)
    plan_cache.add_call(call.key, program_keys(translated, first), call.seconds)
    for plan in others:
        store_programs(translated, plan, options.cache_limit_bytes)
