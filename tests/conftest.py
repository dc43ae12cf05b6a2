"""Options and fixtures that all tests share."""

from __future__ import annotations

import getpass
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

GOLDEN = Path(__file__).parent / "golden"

# tests share a cache of their own: what one run compiled, the next one need not
_FOLDER = os.environ.get("TEST_TMPDIR") or str(
    Path(tempfile.gettempdir()) / f"jax_cocktail-tests-{getpass.getuser()}"
)
os.environ.setdefault("JAX_COCKTAIL_CACHE_DIR", _FOLDER)
os.environ.setdefault("JAX_COCKTAIL_PLANS", "fresh")  # a test may have changed a pass
os.environ.setdefault("JAX_COCKTAIL_COMPILE", "now")  # a test looks at our program


LEAST_RUN, LEAST_FILE = 60.0, 5.0  # seconds: those of shorter runs and files are not printed


class Seconds:
    """Adds up the seconds of every test file, wherever it runs, and prints those of the longest."""

    def __init__(self) -> None:
        self.by_file: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by_file[report.nodeid.partition("::")[0]] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = sum(self.by_file.values())
        if total < LEAST_RUN:
            return
        terminalreporter.write_line(f"{total:.0f} s in {len(self.by_file)} files of tests, of which")
        for name, seconds in sorted(self.by_file.items(), key=lambda pair: -pair[1]):
            if seconds >= LEAST_FILE:
                terminalreporter.write_line(f"{seconds:8.0f} s  {name}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that prints
        config.pluginmanager.register(Seconds(), "seconds")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests whose names or parameters say so compile or emulate programs for AMD GPUs. Long ones wait to be
    asked for."""
    for item in items:
        if re.search(r"rocm|gfx\d|of_waves", item.nodeid):
            item.add_marker(pytest.mark.rocm)
    if not os.environ.get("JAX_COCKTAIL_TEST_ALL"):
        asked = {arg for arg in config.args if "[" in arg}  # by its whole name
        waiting = [i for i in items if i.get_closest_marker("long") and not _is_named(i, asked)]
        items[:] = [item for item in items if item not in waiting]
        config.hook.pytest_deselected(items=waiting)


def _is_named(item: pytest.Item, names: set[str]) -> bool:
    return any(item.nodeid.endswith(name.lstrip("./")) for name in names)


@pytest.fixture(autouse=True)
def nothing_shared() -> None:
    """A function that several tests jit is traced again in each of them."""
    if (marked := sys.modules.get("jax_cocktail.lowering.marked")) is not None:
        marked.forget()


@pytest.fixture
def one_candidate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans one candidate per program instead of all: planning takes most of the time of a small test.

    The name of the test decides which one is the first, and every program takes the next one. So the tests
    together run all kinds, not only the cheapest.
    A test with a parameter `units` gets one of that many units.
    """
    from jax_cocktail.lowering import survey

    numbers, candidates = count(crc32(request.node.name.encode())), survey.candidates
    asked = "units" in getattr(getattr(request.node, "callspec", None), "params", ())

    def one(*given: Any) -> Any:
        found = candidates(*given)
        if asked:
            found = [c for c in found if c.units == max(c.units for c in found)]
        return (found[next(numbers) % len(found)],)

    monkeypatch.setattr(survey, "candidates", one)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: the text must be that of tests/golden/NAME."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path.name} is missing: run pytest --update-golden and read what it wrote"
        assert text == path.read_text(encoding="utf-8"), "differs; if meant, run pytest --update-golden"

    return check
