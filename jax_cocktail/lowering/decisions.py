"""Which candidate, or stock: measured once per program and machine, on the first real arguments, and kept.

The candidates are timed as whole calls, in turn, so that a drift of the machine hits all of them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import filelock
import jax
import jaxlib

from jax_cocktail import cache
from jax_cocktail.build.host import program_folders, source_folder
from jax_cocktail.config import VERSION
from jax_cocktail.errors import BuildError
from jax_cocktail.lowering.stopwatch import CAPTURE, Times
from jax_cocktail.report import Trial
from jax_cocktail.utask.candidate import SINGLE, Candidate

MARGIN = 0.98  # ours has to win by this much: a tie is noise, and stock needs no trust
# Where heavy operators decide, ours leaves cores alone that stock uses, and others held some of those.
WIDE_MARGIN = 0.85
QUIET = 0.03  # others held no more than this part of our cores
STOCK = "stock XLA"
CAPTURED = "stock XLA, captured"  # with the compiler options `stopwatch.CAPTURE`
_FORMAT = 4
_FOLDER = "decisions"
_LOCK_SECONDS = 600.0
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Plan:
    """How a whole call is compiled by us: the candidate for its regions, and the numbers of the regions that
    stay with stock XLA all the same."""

    candidate: Candidate = SINGLE
    skip: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        left = f" without call {', '.join(map(str, self.skip))}" if self.skip else ""
        return self.candidate.name + left


@dataclass(frozen=True, slots=True)
class Decision:
    """What runs: `choice` is "cocktail" or "stock", `plan` the best of ours either way.

    `trials`: the times of all that were timed; none if nothing was measured, and then `why` says what
    decided. `thorough`: all candidates were timed. `others`: the part of our cores that other processes held
    meanwhile.
    """

    choice: str
    plan: Plan = Plan()
    trials: tuple[Trial, ...] = ()
    why: str = ""
    thorough: bool = False
    others: float = 0.0

    @property
    def measured(self) -> bool:
        return bool(self.trials)

    @property
    def stock_seconds(self) -> float | None:
        return next((t.seconds for t in self.trials if t.name == STOCK), None)

    @property
    def cocktail_seconds(self) -> float | None:
        """Of the best of ours."""
        return next((t.seconds for t in self.trials if t.name == self.plan.name), None)

    @property
    def advice(self) -> str:
        """What the caller can do, "" if nothing: how XLA compiles a module is said where it is jitted."""
        stock, ours = self.stock_seconds, self.cocktail_seconds
        captured = next((t.seconds for t in self.trials if t.name == CAPTURED), None)
        if stock is None or ours is None or captured is None:
            return ""
        now = stock if self.choice == "stock" else ours
        if captured > MARGIN * now:
            return ""
        return (
            f"stock XLA captured in command buffers is fastest, {now / captured:.1f} times as fast"
            f" as what runs now: jit(..., compiler_options={dict(CAPTURE)})"
        )


def choose(plans: Sequence[Plan], times: Times, heavy: bool, cores: int, captured: bool = False) -> Decision:
    """Who won: `times` are those of stock XLA, if `captured` of stock XLA in that form, and of the plans.

    More threads than one have to win by the margin too: they may have to wait for cores one day. Ours has to
    beat stock as it would run instead; a form of stock that is faster than both only the caller can choose
    (see `Decision.advice`).
    """
    names: tuple[str, ...] = (STOCK, CAPTURED) if captured else (STOCK,)
    stock, ours = times.seconds[0], times.seconds[len(names) :]
    handicaps = [1.0 if plan.candidate.units == 1 else 1 / MARGIN for plan in plans]
    best = min(range(len(plans)), key=lambda i: ours[i] * handicaps[i])
    unfair = heavy and plans[best].candidate.units < cores and times.others > QUIET
    margin = WIDE_MARGIN if unfair else MARGIN
    choice = "cocktail" if ours[best] <= margin * stock else "stock"
    names += tuple(plan.name for plan in plans)
    trials = tuple(map(Trial, names, times.seconds))
    return Decision(choice, plans[best], trials, others=times.others)


def key_of(jaxpr: Any, units: int, device: str = "", options: Mapping[str, Any] | None = None) -> str:
    """The identity of a decision: what is computed, by which compilers, on which machine and how many units,
    for which `device`, if it is not the CPU, and with which `options` of XLA's compiler.

    Of the jaxpr's text: where stock was chosen, the next process need not even capture.
    """
    parts = [_ADDRESS.sub("", str(jaxpr)), *_machine(), os.environ.get("XLA_FLAGS", ""), str(units)]
    parts += [device] if device else []
    parts += [f"{name}={value}" for name, value in sorted((options or {}).items())]
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
    for folder in (package, *program_folders("cpu_src"), source_folder("cuda_src")):
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
        return _from_facts(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return known


def _from_facts(facts: Any) -> Decision:
    """Raises ValueError, KeyError or TypeError if they are damaged or of another format."""
    if facts["format"] != _FORMAT or facts["choice"] not in ("cocktail", "stock"):
        raise ValueError("not a decision")
    plan = Plan(Candidate(**facts["plan"]["candidate"]), tuple(map(int, facts["plan"]["skip"])))
    trials = tuple(Trial(str(t["name"]), float(t["seconds"])) for t in facts["trials"])
    thorough, others = bool(facts["thorough"]), float(facts["others"])
    return Decision(facts["choice"], plan, trials, str(facts["why"]), thorough, others)


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
        lock = filelock.FileLock(_folder() / f"{key}.lock", timeout=_LOCK_SECONDS)
        lock.acquire()
    except (OSError, BuildError, filelock.Timeout):
        lock = None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
