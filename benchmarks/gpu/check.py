"""A run of items as processes, and what they share."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu.packed import file_name
from benchmarks.gpu.pool import Record, Task, python_path, run_all
from benchmarks.gpu.results import Results, tell

COMMAND = Path(__file__).resolve().parents[1] / "gpu_check.py"  # which runs an item
ALWAYS = ("versions", "measure", "jax")  # sections that other processes depend on
CAP, STATIC_CAP = 60.0, 150.0  # seconds per item; a machine without a card may be slow
CAPS = {"jax": 120.0, "torch": 120.0}  # of items that load or compile much
COMPILERS = 4  # concurrent XLA compilers, which tune matrix products on the card


@dataclass
class Check:
    """A run: its settings, its clock, and its results so far. `pack`: the folder of a pack, if it has one."""

    options: argparse.Namespace
    rows: Sequence[str]
    work: Path
    results: Results
    pack: Path | None = None
    start: float = field(default_factory=time.monotonic)

    @property
    def deadline(self) -> float:
        """The moment at which the budget is spent."""
        return self.start + self.options.budget

    @property
    def card(self) -> bool:
        """True if there is one."""
        return "card" in (self.results.known("versions", "all") or {})

    def until(self, share: float) -> float:
        """The moment at which a fraction of the budget is spent."""
        return self.start + share * self.options.budget

    def task(
        self, phase: str, name: str, prefix: Sequence[str] = (), ours: bool = True, **environment: str
    ) -> Task:
        """An item as a process. `ours`: whether our programs may run in it."""
        command = [*prefix, sys.executable, str(COMMAND), "--item", phase, name]
        command += ["--work", str(self.work), "--seconds", str(self.options.seconds)]
        command += ["--of", str(self.pack)] if self.pack else []
        command += ["--small"] if self.results.small or prefix else []
        command += [] if ours else ["--without-ours"]
        cap = CAPS.get(phase, CAP) if self.card else STATIC_CAP
        return Task(name, command, {**self.environment(), **environment}, cap, log=bool(prefix))

    def environment(self) -> dict[str, str]:
        """The environment of every item: no memory is preallocated, items share compiled programs, and what
        is timed is our program from the first call on."""
        return {
            **python_path(),
            **({"JAX_COCKTAIL_CACHE_DIR": str(self.work / "cache")} if self.pack else {}),
            "JAX_COCKTAIL_COMPILE": "now",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "JAX_COMPILATION_CACHE_DIR": str(self.work / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }

    def dumping(self, phase: str, name: str) -> dict[str, str]:
        """An environment in which XLA dumps its compilations and the item reads them."""
        folder = self.work / "dumps" / file_name(f"{phase}-{name}").replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        return {
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
            "GPU_CHECK_DUMP": str(folder),
        }

    def section(self, name: str, tasks: Sequence[Task], workers: int, deadline: float) -> dict[str, Record]:
        """Runs tasks and keeps each record at once. Those that an earlier run finished are not repeated.
        Raises Stuck."""
        tasks = [task for task in tasks if name in ALWAYS or not self.finished(name, task.name)]
        tell(f"{self.results.seconds:6.1f} s  {name}: {len(tasks)} item(s)")

        def done(key: str, record: Record) -> None:
            if "skipped" not in record or self.results.known(name, key) is None:
                self.results.keep(record, name, key)
            if words := next((f"{k}: {record[k]}" for k in ("error", "skipped") if k in record), ""):
                tell(f"          {key}: {words.splitlines()[0][:120]}")

        return run_all(tasks, workers, min(deadline, self.deadline), done)

    def finished(self, section: str, name: str) -> bool:
        """True if an item is known, and is neither an error nor skipped."""
        record = self.results.known(section, name)
        return record is not None and not {"error", "skipped"} & set(record)
