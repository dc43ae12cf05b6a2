"""The GPU's handler in both its forms, and a driver for it to speak to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cpu.fake_cuda.driver import Fake, Handlers, Xla


@pytest.fixture(params=["built", "callback"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(tmp_path)
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(made.path))
    return made


@pytest.fixture
def handlers(kind: str, tmp_path: Path) -> Handlers:
    return Handlers(kind, tmp_path)


@pytest.fixture
def xla(fake: Fake) -> Xla:
    return Xla(fake.stream(fake.context()))
