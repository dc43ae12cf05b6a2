"""Every primitive and dtype on the CUDA target, emulated, against `jax.jit` on the host."""

from __future__ import annotations

import os

import jax
import pytest

from tests.buckets import buckets, check_bucket
from tests.cpu.emulated import Emulation

# The templates are the same for all types of a kind; JAX_COCKTAIL_TEST_ALL=1 runs every type.
DTYPES = {"float32", "bfloat16", "float64", "int32", "uint8", "bool"}
ALL = bool(os.environ.get("JAX_COCKTAIL_TEST_ALL"))
CHOSEN = [bucket for bucket in buckets() if ALL or DTYPES & set(str(bucket.id).split("-"))]


@pytest.mark.parametrize("cases, x64", CHOSEN)
def test_bucket(cases, x64, monkeypatch):
    emulation = Emulation(launches=[]).install(monkeypatch)
    with jax.default_matmul_precision("highest"):
        check_bucket(cases, x64)
    assert emulation.launches
