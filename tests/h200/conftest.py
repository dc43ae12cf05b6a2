"""The lane of the H200 that is not here: jax's CUDA plugin compiles, and nothing runs on a GPU."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture(autouse=True, scope="session")
def plugin() -> None:
    """Without the plugin every test here is skipped, with the reason."""
    from tests.h200 import card

    if not card.has_plugin():
        pytest.skip(card.NO_PLUGIN)
