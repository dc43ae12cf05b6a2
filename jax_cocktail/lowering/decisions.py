"""Ours or stock: measured once per program and machine, on the first real arguments, and kept on disk.

The two candidates are timed as whole calls, in turn, so that a drift of the machine hits both.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.extend.core as jex
import jaxlib

from jax_cocktail import cache
from jax_cocktail.build import source_folder
from jax_cocktail.config import VERSION
from jax_cocktail.errors import BuildError

BUDGET_SECONDS = 0.25
LONGEST_SECONDS = 0.6
FEWEST_ROUNDS, MOST_ROUNDS = 4, 60
MARGIN = 0.98  # ours has to win by this much: a tie is noise, and stock needs no trust
WIDE_MARGIN = 0.85  # where heavy operators decide: stock uses all cores, and others may have held one of them
_FORMAT = 2
_FOLDER = "decisions"
_LOCK_SECONDS = 600.0
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Decision:
    """`choice`: "cocktail" or "stock". The times are of one call, None if nothing was measured; `why` says
    then what decided."""

    choice: str
    stock_seconds: float | None = None
    cocktail_seconds: float | None = None
    why: str = ""

    @property
    def measured(self) -> bool:
        return self.stock_seconds is not None


def key_of(jaxpr: Any) -> str:
    """The identity of a decision: what is computed, by which compilers, on which machine.

    Of the jaxpr's text: where stock was chosen, the next process need not even capture.
    """
    parts = [_ADDRESS.sub("", str(jaxpr)), *_machine(), os.environ.get("XLA_FLAGS", "")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.cache
def _machine() -> tuple[str, ...]:
    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.split(":")[0].strip() in ("model name", "CPU part"):
                model = line
                break
    except OSError:
        model = platform.processor()
    versions = (jax.__version__, jaxlib.__version__, VERSION, _compiler_digest())
    return (platform.machine(), model, str(cores()), *versions)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compiler_digest() -> str:
    """SHA-256 of our own sources: a better compiler deserves a new measurement."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for folder in (package, source_folder("cpu_src")):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".h", ".cc") and not {"models", "_src"} & set(path.parts[:-1]):
                digest.update(path.name.encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


# ---- the store ---------------------------------------------------------------------------------------------

_remembered: dict[tuple[str, str], Decision] = {}  # serves where the folder cannot be written


def load(key: str) -> Decision | None:
    """The stored decision, if there is a valid one."""
    root = cache.cache_dir()
    path = root / _FOLDER / f"{key}.json"
    known = _remembered.get((str(root), key))
    if cache.distrust(path) or cache.distrust(path.parent):
        return known
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["format"] != _FORMAT or facts["choice"] not in ("cocktail", "stock"):
            return known
        times = (facts["stock_seconds"], facts["cocktail_seconds"])
        stock, ours = (None if t is None else float(t) for t in times)
        return Decision(facts["choice"], stock, ours, str(facts["why"]))
    except (OSError, ValueError, KeyError, TypeError):
        return known


def store(key: str, decision: Decision) -> None:
    """Keeps a decision; by a rename, so that a reader sees all of it or nothing."""
    _remembered[str(cache.cache_dir()), key] = decision
    try:
        folder = _folder()
        scratch = folder / f"{key}.{os.getpid()}.tmp"
        text = json.dumps({"format": _FORMAT, **asdict(decision)}, indent=1)
        scratch.write_text(text + "\n", encoding="utf-8")
        scratch.chmod(0o644)
        scratch.replace(folder / f"{key}.json")
    except (OSError, BuildError):
        return


def forget() -> None:
    """Removes every stored decision."""
    _remembered.clear()
    for path in (cache.cache_dir() / _FOLDER).glob("*.json"):
        path.unlink(missing_ok=True)


def _folder() -> Path:
    folder = cache.prepare_root() / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@contextmanager
def exclusive(key: str) -> Iterator[None]:
    """One process at a time measures a program; without a usable folder everybody measures for himself."""
    lock: filelock.BaseFileLock | None = None
    try:
        lock = filelock.FileLock(_folder() / f"{key[:2]}.lock", timeout=_LOCK_SECONDS)
        lock.acquire()
    except (OSError, BuildError, filelock.Timeout):
        lock = None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


# ---- measuring ---------------------------------------------------------------------------------------------


def measure(stock: Any, ours: Any, arguments: Sequence[Any], margin: float = MARGIN) -> Decision:
    """Times two closed jaxprs on concrete arguments, in turn, and takes ours if it is clearly not slower.

    The minimum of each counts: whatever else the machine does makes runs longer, never shorter. Both run at
    least once; the first run, which warms caches, counts only where it used up the budget.
    """
    runs = [_runner(jaxpr, arguments) for jaxpr in (stock, ours)]
    begin = time.perf_counter()
    samples: list[list[float]] = [[], []]
    while not _enough(len(samples[0]), time.perf_counter() - begin):
        turn = len(samples[0]) % 2
        for which in (turn, 1 - turn):
            start = time.perf_counter()
            jax.block_until_ready(runs[which]())
            samples[which].append(time.perf_counter() - start)
    times = [min(found[1:] or found) for found in samples]
    return Decision("cocktail" if times[1] <= margin * times[0] else "stock", times[0], times[1])


def _enough(rounds: int, seconds: float) -> bool:
    """Slow programs get a few rounds more than the budget pays for, unless one round takes very long."""
    if rounds < FEWEST_ROUNDS:
        return rounds > 0 and seconds > LONGEST_SECONDS
    return seconds > BUDGET_SECONDS or rounds > MOST_ROUNDS


def _runner(jaxpr: Any, arguments: Sequence[Any]) -> Callable[[], Any]:
    """A compiled call; the calls after the first take JAX's fast path."""
    function = jax.jit(jex.jaxpr_as_fun(jaxpr))
    function.lower(*arguments).compile()
    return lambda: function(*arguments)
