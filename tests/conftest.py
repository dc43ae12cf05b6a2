"""Options and fixtures that all tests share."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.seconds import Meter, Seconds
from tests.selection import ALL, MARKERS, deselect

GOLDEN = Path(__file__).parent / "golden"

# tests share a cache of their own: what one run compiled, the next one need not
_FOLDER = os.environ.get("TEST_TMPDIR") or str(
    Path(tempfile.gettempdir()) / f"jax_cocktail-tests-{getpass.getuser()}"
)
os.environ.setdefault("JAX_COCKTAIL_CACHE_DIR", _FOLDER)
os.environ.setdefault("JAX_COCKTAIL_PLANS", "fresh")  # a test may have changed a pass
os.environ.setdefault("JAX_COCKTAIL_COMPILE", "now")  # a test looks at our program
os.environ.setdefault("JAX_COCKTAIL_DETACH", "0")  # the processes of a test leave nothing behind
os.environ.setdefault("JAX_COCKTAIL_VERIFY", "passes")  # a fault is told of the pass that makes it


# A shell lets what it runs in the background ignore Ctrl-C, and so do the processes that tests start there.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.pluginmanager.register(Meter(), "meter")
    if not hasattr(config, "workerinput"):  # the process that prints
        config.pluginmanager.register(Seconds(config), "seconds")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")
    parser.addoption("--update-seconds", action="store_true", help="write the budget of the files that ran")
    parser.addoption("--hold-seconds", action="store_true", help="fail for files beyond their budget")
    parser.addoption("--exact-xla", choices=("only", "without"), help="of the tests with this mark")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests whose names or parameters say so compile or emulate programs for AMD GPUs. Those of the long run
    wait to be asked for."""
    for item in items:
        if re.search(r"rocm|gfx\d|of_waves", item.nodeid):
            item.add_marker(pytest.mark.rocm)
    deselect(config, items)


@pytest.fixture(autouse=True)
def nothing_shared() -> None:
    """A function that several tests jit is traced again in each of them, and each warns again. What
    varies from call to call in one test says nothing about the programs of another."""
    shutil.rmtree(Path(os.environ["JAX_COCKTAIL_CACHE_DIR"]) / "families", ignore_errors=True)
    if (memory := sys.modules.get("jax_cocktail.memory")) is not None:
        memory.MEMORY.wrapped.clear()
        memory.MEMORY.warned.clear()
        memory.MEMORY.families.clear()


@pytest.fixture
def one_candidate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans one candidate per program instead of all: planning takes most of the time of a small test.

    The name of the test decides which one is the first, and every program takes the next one. So the tests
    together run all kinds, not only the cheapest.
    A test with a parameter `units` gets one of that many units. One that is marked `all_candidates` gets all,
    and in a long run every test does.
    """
    if ALL or request.node.get_closest_marker("all_candidates"):
        return
    from jax_cocktail.lowering.choice import variants

    numbers, candidates = count(crc32(request.node.name.encode())), variants.candidates
    asked = "units" in getattr(getattr(request.node, "callspec", None), "params", ())

    def one(*given: Any) -> Any:
        found = candidates(*given)
        if asked:
            found = [c for c in found if c.units == max(c.units for c in found)]
        return (found[next(numbers) % len(found)],)

    monkeypatch.setattr(variants, "candidates", one)


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
