"""The GPU's handler, and a driver of each vendor for it to speak to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cpu.fake_gpu.driver import VENDORS, Fake, Handlers, Vendor, Xla


@pytest.fixture(params=VENDORS, ids=str)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    return request.param


@pytest.fixture
def fake(vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(tmp_path, vendor=vendor)
    monkeypatch.setenv(vendor.variable, str(made.path))
    return made


@pytest.fixture
def handlers(vendor: Vendor, tmp_path: Path) -> Handlers:
    return Handlers(tmp_path, vendor)


@pytest.fixture
def xla(fake: Fake) -> Xla:
    return Xla(fake.stream(fake.context()))
