"""Options and fixtures that all tests share."""

from __future__ import annotations

import getpass
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"

# tests share a cache of their own: what one run compiled, the next one need not
_FOLDER = os.environ.get("TEST_TMPDIR") or str(
    Path(tempfile.gettempdir()) / f"jax_cocktail-tests-{getpass.getuser()}"
)
os.environ.setdefault("JAX_COCKTAIL_CACHE_DIR", _FOLDER)
os.environ.setdefault("JAX_COCKTAIL_PLANS", "fresh")  # a test may have changed a pass
os.environ.setdefault("JAX_COCKTAIL_COMPILE", "now")  # a test looks at our program


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests whose names or parameters say so compile or emulate programs for AMD GPUs."""
    for item in items:
        if re.search(r"rocm|gfx\d|of_waves", item.nodeid):
            item.add_marker(pytest.mark.rocm)


@pytest.fixture(autouse=True)
def nothing_shared() -> None:
    """A function that several tests jit is traced again in each of them."""
    if (marked := sys.modules.get("jax_cocktail.lowering.marked")) is not None:
        marked.forget()


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
