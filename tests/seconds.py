"""Seconds of every test file, printed by each longer run and held to a committed budget, `seconds.toml`.

The seconds are those of processors, of the tests and of the processes that they wait for: what else the
machine does changes them little. `--hold-seconds` holds a run to the budget. `make test` does so; other runs
have other cases. `--update-seconds` writes the budget of the files that ran. Start it with an empty cache:

    JAX_COCKTAIL_CACHE_DIR=$(mktemp -d) make test PYTEST_ARGS=--update-seconds
"""

from __future__ import annotations

import os
import tomllib
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest

BUDGET = Path(__file__).with_suffix(".toml")
LEAST = 5.0  # of a file with a budget of its own; all others may take this
# A file fails only if it takes this much more than its budget: the file that a process happens to run first
# pays for what all share, such as imports and remembered plans.
LEAST_EXCESS = 20.0
LEAST_FILES = 10  # with a budget of their own, whose median tells how fast the machine is
LEAST_RUN = 60.0  # shorter runs print nothing


def budgets() -> dict[str, float]:
    """The budget of every file that has one."""
    return {name: float(budget) for name, budget in tomllib.loads(BUDGET.read_text(encoding="utf-8")).items()}


def slowness(seconds: Mapping[str, float], allowed: Mapping[str, float]) -> float | None:
    """The seconds that this machine takes for one of the budget's, at least 1; None if too few files ran."""
    ratios = [seconds[name] / budget for name, budget in allowed.items() if name in seconds]
    return max(1.0, median(ratios)) if len(ratios) >= LEAST_FILES else None


def exceeding(seconds: Mapping[str, float], allowed: Mapping[str, float]) -> list[str]:
    """A line for each file at twice its budget on this machine or above."""
    slow = slowness(seconds, allowed)
    if slow is None:
        return []
    lines = []
    for name, taken in sorted(seconds.items()):
        budget = allowed.get(name, LEAST) * slow
        if taken >= 2 * budget and taken - budget >= LEAST_EXCESS * slow:
            lines.append(f"{name} took {taken:.0f} s and may take {budget:.0f} s here")
    return lines


class Meter:
    """Notes the seconds of each phase of each test in its report, in the process that runs it."""

    def __init__(self) -> None:
        self.last = self._now()

    @staticmethod
    def _now() -> float:
        return sum(os.times()[:4])

    def pytest_runtest_logstart(self) -> None:
        self.last = self._now()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = self._now()
        report.seconds = now - self.last  # it travels with the report
        self.last = now
        return report


class Seconds:
    """Adds up the seconds of every file, prints those of the longest, and fails a run with files beyond their
    budget."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.by_file: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.by_file[report.nodeid.partition("::")[0]] += getattr(report, "seconds", 0.0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.config.getoption("--update-seconds"):
            if session.exitstatus == pytest.ExitCode.OK:
                self._write()
        elif self._exceeding() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _exceeding(self) -> list[str]:
        held = self.config.getoption("--hold-seconds")
        return exceeding(self.by_file, budgets()) if held else []

    def _write(self) -> None:
        known = {name: budget for name, budget in budgets().items() if name not in self.by_file}
        found = {**known, **{name: s for name, s in self.by_file.items() if s >= LEAST}}
        lines = [f'"{name}" = {budget:.0f}' for name, budget in sorted(found.items())]
        BUDGET.write_text("\n".join(["# Seconds by file: see seconds.py.", *lines, ""]), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = sum(self.by_file.values())
        if total < LEAST_RUN:
            return
        allowed = budgets()
        slow = slowness(self.by_file, allowed)
        machine = f"; this machine takes {slow:.1f} s for one of the budget" if slow is not None else ""
        files = f"{len(self.by_file)} files of tests"
        terminalreporter.write_line(f"{total:.0f} s of processors in {files}{machine}:")
        for name, seconds in sorted(self.by_file.items(), key=lambda pair: -pair[1]):
            if seconds >= LEAST:
                budget = f"{allowed[name]:.0f}" if name in allowed else "-"
                terminalreporter.write_line(f"{seconds:8.0f} s  budget {budget:>4}  {name}")
        for line in self._exceeding():
            terminalreporter.write_line(f"BEYOND ITS BUDGET (tests/seconds.toml): {line}", red=True)
