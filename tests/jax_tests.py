"""Runs JAX's own tests with our `jit` in the place of `jax.jit`, and compares with what they say of stock.

    python -m tests.jax_tests PATH                              PATH: the folder `tests` of a checkout of JAX
    python -m tests.jax_tests PATH --files ode api --force auto
    python -m tests.jax_tests PATH --files lax_control_flow -k "while and not grad"

The checkout must be that of the installed release. Nothing is fetched. With `--force cocktail`, the default,
every loop and branch that we can compile is ours, those outside of any `jit` included; with `--force auto`
the one that measures faster runs. What we do not pass runs again with stock: a test that it does not pass
either is no difference. Differences that are known have a reason in tests/jax_known.toml. The exit status is
1 if there are others. A test that kills the process or exceeds --seconds counts as failed, and the rest goes
on.
The environment variable JAX_NUM_GENERATED_CASES says how many cases JAX draws for a test with parameters.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KNOWN = Path(__file__).with_name("jax_known.toml")
FILES = (
    *("lax_control_flow", "lax_vmap", "custom_root", "custom_linear_solve", "ode", "scipy_optimize"),
    *("experimental_rnn", "checkify", "random", "api", "debug_nans"),
)
CONTROL_FLOW = frozenset({"while", "scan", "cond"})
SHOWN = 1500  # characters of a failure
STOCK, PASSED = "stock", "passed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a test: passed, failed, skipped or crashed; and the end of its message."""

    word: str
    message: str = ""


Outcomes = Mapping[str, Outcome]  # by "file::class::test"


# ---- one run of pytest, in a process of its own ------------------------------------------------------------


class Recorder:
    """Writes what becomes of every test to a file, line by line, as a plugin of pytest."""

    def __init__(self, log: Path, seconds: int) -> None:
        self.log, self.seconds = log, seconds
        self.done = set(outcomes(log))
        wanted = _wanted_file(log)
        self.wanted = set(json.loads(wanted.read_text(encoding="utf-8"))) if wanted.exists() else None

    def _write(self, test: str, word: str, message: str = "") -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps([test, word, message]) + "\n")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        left = (i for i in items if i.nodeid not in self.done)
        items[:] = [i for i in left if self.wanted is None or i.nodeid in self.wanted]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(
            nodeid, "crashed", "the process ended, or the time was over"
        )  # unless it is heard of again
        signal.alarm(self.seconds)  # whose default is to end the process

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != PASSED:
            self._write(report.nodeid, report.outcome, report.longreprtext[-SHOWN:] if report.failed else "")
        if report.when == "teardown":
            signal.alarm(0)


def _wanted_file(log: Path) -> Path:
    """The names of the tests to run, if not all of a file; beside its log."""
    return log.with_name(f"{log.name}.json")


@contextmanager
def ours_everywhere(force: str) -> Iterator[None]:
    """Our `jit` for the tests, for JAX's helpers of tests, and for control flow outside of any `jit`."""
    from jax._src import dispatch, test_util

    import jax_cocktail

    stock = dispatch.api.jit

    class Api:
        """JAX's module `api` with another `jit`."""

        def __getattr__(self, name: str) -> Any:
            return getattr(type(self).module, name)

        module = dispatch.api

        def jit(self, function: Any = None, **options: Any) -> Any:
            is_primitive = getattr(function, "_apply_primitive", False)
            if is_primitive and function.__name__ not in CONTROL_FLOW:
                return stock(function, **options)
            made = jax_cocktail.jit(function, options={"force": force}, **options)
            if is_primitive:  # debug_nans wants to know
                made._dispatch.base.__wrapped__._apply_primitive = True
            return made

    replacement = jax_cocktail.replace_jit(force=force)
    replacement.install()
    dispatch.api = test_util.api = Api()
    yield
    dispatch.api = test_util.api = Api.module
    replacement.remove()


def collect(folder: Path, name: str, force: str, log: Path, seconds: int, rest: Sequence[str]) -> int:
    """Runs one file of tests in this process, without those that the log has."""
    import pytest

    arguments = ["-q", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider", "--tb=short"]
    # JAX's helpers keep the standard output that they are imported with, and pytest's would be another one
    arguments += ["--capture=no", "-p", "no:xdist", "-p", "no:randomly"]
    arguments += [*rest, str(folder / f"{name}_test.py")]
    if force == STOCK:
        return int(pytest.main(arguments, [Recorder(log, seconds)]))
    with ours_everywhere(force):
        return int(pytest.main(arguments, [Recorder(log, seconds)]))


# ---- all runs, and what they say ---------------------------------------------------------------------------


def outcomes(log: Path) -> dict[str, Outcome]:
    """What a log says of its tests: the last word of each, but the first bad one if it was heard."""
    found: dict[str, Outcome] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        test, *heard = json.loads(line)
        if test not in found or found[test].word != "failed":
            found[test] = Outcome(*heard)
    return found


def run_file(folder: Path, name: str, force: str, log: Path, seconds: int, rest: Sequence[str]) -> Outcomes:
    """The tests of a file; a process that ends early is followed by another one for the rest."""
    places = [str(folder), name, force, str(log), str(seconds)]
    command = [sys.executable, "-m", "tests.jax_tests", "--collect", *places, *rest]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    while True:
        before = len(outcomes(log))
        with log.with_suffix(".txt").open("a", encoding="utf-8") as output:
            done = subprocess.run(
                command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, stdout=output, stderr=output
            )
        found = outcomes(log)
        if done.returncode in (0, 1, 5) or len(found) == before:  # 5: no tests left
            return found


def known_differences(path: Path = KNOWN) -> list[tuple[str, str]]:
    """(pattern of a test's name, reason) in order."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["difference"]
    return [(pattern, entry["reason"]) for entry in entries for pattern in entry["tests"]]


def differing(stock: Outcomes, ours: Outcomes) -> dict[str, Outcome]:
    """The tests that stock passes, and we do not."""
    return {t: o for t, o in ours.items() if o.word != PASSED and t in stock and stock[t].word == PASSED}


def report(name: str, stock: Outcomes, ours: Outcomes, known: Sequence[tuple[str, str]]) -> list[str]:
    """Prints the counts of a file and its unexpected differences, and returns their names."""
    unexpected = []
    explained: Counter[str] = Counter()
    for test, outcome in differing(stock, ours).items():
        reason = next((why for pattern, why in known if fnmatch.fnmatch(test, pattern)), "")
        if reason:
            explained[reason] += 1
        else:
            unexpected.append(test)
            print(f"UNEXPECTED {test}: {outcome.word}\n{outcome.message}\n")
    counts = Counter(each.word for each in ours.values())
    alike = sum(counts.values()) - counts[PASSED] - explained.total() - len(unexpected)
    print(f"{name}: {', '.join(f'{word} {n}' for word, n in sorted(counts.items()))}")
    print(f"  as with stock {alike}, known differences {explained.total()}, unexpected {len(unexpected)}")
    for reason, count in explained.items():
        print(f"  {count}: {reason}")
    return unexpected


def run_both(folder: Path, name: str, force: str, logs: Path, seconds: int, rest: Sequence[str]) -> list[str]:
    """Runs a file with ours, what did not pass with stock, and returns the unexpected differences."""
    ours = run_file(folder, name, force, logs / f"{name}.{force}", seconds, rest)
    if not ours:
        said = (logs / f"{name}.txt").read_text(encoding="utf-8")
        raise RuntimeError(f"{name}: no tests ran; the end of what pytest said:\n{said[-SHOWN:]}")
    log = logs / f"{name}.{STOCK}"
    again = [test for test, outcome in ours.items() if outcome.word != PASSED]
    _wanted_file(log).write_text(json.dumps(again), encoding="utf-8")
    stock = run_file(folder, name, STOCK, log, seconds, rest) if again else {}
    return report(name, stock, ours, known_differences())


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--collect"]:
        folder, name, force, log, seconds, *rest = arguments[1:]
        return collect(Path(folder), name, force, Path(log), int(seconds), rest)
    parser = argparse.ArgumentParser(
        prog="python -m tests.jax_tests", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--files", nargs="+", default=FILES, help="without _test.py")
    parser.add_argument("--force", choices=("cocktail", "auto"), default="cocktail")
    parser.add_argument("--seconds", type=int, default=300, help="most time for one test")
    parser.add_argument("--logs", type=Path, help="a folder for the logs; a second run goes on from it")
    parser.add_argument("-k", default="", help="only these tests, as in pytest")
    chosen = parser.parse_args(arguments)
    rest = ["-k", chosen.k] if chosen.k else []
    unexpected: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        logs = (chosen.logs or Path(scratch)).resolve()
        logs.mkdir(parents=True, exist_ok=True)
        for name in chosen.files:
            unexpected += run_both(chosen.path.resolve(), name, chosen.force, logs, chosen.seconds, rest)
    print(f"{len(unexpected)} unexpected differences")
    return int(bool(unexpected))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
