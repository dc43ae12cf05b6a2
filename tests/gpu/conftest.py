"""The card that the tests of this folder run on.

With a GPU they all run on it. Without one, those marked `emulated` run in the emulation, and the others are
skipped with the reason; JAX_COCKTAIL_TEST_EMULATED=1 emulates whatever can be. Compiling takes most of the
time: `pytest -n 8 tests/gpu` is the way to run them on a card.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

# Several processes share the card, and the driver wants memory for programs.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from jax_cocktail import compiler  # noqa: E402
from jax_cocktail.lowering.choice import decisions, variants  # noqa: E402
from jax_cocktail.utask.candidate import way  # noqa: E402
from tests.cpu.emulated import Emulation  # noqa: E402
from tests.cpu.emulation import emulator  # noqa: E402
from tests.cpu.runner import EAGER  # noqa: E402
from tests.gpu.card import Card, why_no_gpu  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "emulated: without a GPU, the test runs in the emulation of one")


@pytest.fixture
def gpu() -> Card:
    """A real card."""
    if why_no_gpu():
        pytest.skip(why_no_gpu())
    return Card()


@pytest.fixture
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Card:
    """A card; an emulated one where there is none and the test may have that."""
    if not why_no_gpu():
        return Card()
    wanted = os.environ.get("JAX_COCKTAIL_TEST_EMULATED") == "1"
    if not wanted and request.node.get_closest_marker("emulated") is None:
        pytest.skip(why_no_gpu())
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    return Card(Emulation(launches=[]).install(monkeypatch))


@pytest.fixture
def eager(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of any size is divided."""
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)


@pytest.fixture
def candidate(card: Card, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`candidate(distribute=..., pipeline=...)`: from now on there is this one alone."""

    def force(**fields: Any) -> None:
        monkeypatch.setattr(
            variants, "candidates", lambda _, units, *__: (way(**{"units": min(units, 256), **fields}),)
        )
        monkeypatch.setattr(decisions, "load", lambda key: None)

    return force


@pytest.fixture
def few_blocks(card: Card, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`few_blocks(count)`: programs compiled from now on find that many blocks and little shared memory."""

    def limit(count: int) -> None:
        plan, launch = compiler.launch_plan, emulator.Program.launch

        def small_plan(*how: Any) -> Any:
            given = plan(*how)
            return replace(given, resident_shared_bytes=1 << 30, portable_units=min(count, given.most_units))

        def small_launch(program: Any, *arrays: Any, units: int, kernel: str, **how: Any) -> None:
            launch(program, *arrays, units=min(units, count), kernel="ck_portable", **how)

        monkeypatch.setattr(compiler, "launch_plan", small_plan)
        monkeypatch.setattr(emulator.Program, "launch", small_launch)

    return limit
