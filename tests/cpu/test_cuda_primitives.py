"""Every primitive and dtype on the CUDA target, emulated, against `jax.jit` on the host."""

from __future__ import annotations

import jax
import pytest

from tests.buckets import buckets, check_bucket
from tests.cpu.emulated import Emulation


@pytest.mark.parametrize("cases, x64", list(buckets()))
def test_bucket(cases, x64, monkeypatch):
    emulation = Emulation(launches=[]).install(monkeypatch)
    with jax.default_matmul_precision("highest"):
        check_bucket(cases, x64)
    assert emulation.launches
