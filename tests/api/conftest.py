"""A pack of two small rows on the fake card. Few tests need one, and not every environment can make it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _one_candidate(one_candidate: None) -> None:
    """Most tests compare answers; those of the choice between candidates are marked `all_candidates`."""


@pytest.fixture(scope="session")
def two_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pack, never written to."""
    from tests.api import small_pack

    return small_pack.made(tmp_path_factory.mktemp("pack"), (small_pack.ROW, small_pack.NEXT))


@pytest.fixture
def there(two_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The pack where the card is."""
    from benchmarks.gpu.packed import Pack
    from tests.api import small_pack
    from tests.api.fake_card import FakeCard

    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(FakeCard(tmp_path).path))
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_FACTS", small_pack.CARD)
    return Pack(small_pack.copied(two_rows, tmp_path / "pack"))
