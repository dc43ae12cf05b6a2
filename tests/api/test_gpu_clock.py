"""The clock of multiprocessors and the launch that keeps them busy. The emulation has the host's clock."""

from __future__ import annotations

import time

import numpy as np
import pytest

from benchmarks.gpu import clock
from jax_cocktail.build.device import build_device_program
from jax_cocktail.runtime.cuda import card as gpu_card
from tests.api.fake_card import FakeCard
from tests.cpu import sass
from tests.cpu.cuda_compilers import nvcc
from tests.cpu.emulation import emulator

THREADS = 64  # of the emulated block


@pytest.fixture(scope="module")
def binary():
    return emulator.build(clock.text(THREADS)).path.read_bytes()


@pytest.fixture
def card(tmp_path, monkeypatch):
    fake = FakeCard(tmp_path)
    fake.set(sms=3, pointers=4)
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(fake.path))
    monkeypatch.setattr(clock, "THREADS", THREADS)
    with gpu_card.Card() as made:
        yield made


def test_all_multiprocessors_are_busy(card, binary):
    """A block that did not run would have taken no time."""
    begin = time.perf_counter()
    found = clock.spin(card, binary, 0.01)
    assert 0.01 <= found <= time.perf_counter() - begin


@pytest.mark.parametrize("seconds", [0, -1, 61, float("nan")])
def test_times_that_none_can_be(card, seconds):
    with pytest.raises(ValueError, match="at most 60"):
        clock.spin(card, b"", seconds)


def test_clock(card, binary):
    assert clock.sm_clock(card, binary) == pytest.approx(1e9, rel=0.01)


def test_a_clock_that_stands_still(card, binary, monkeypatch):
    monkeypatch.setattr(card, "download", lambda address, array: np.array([[0, 7]], np.uint64))
    with pytest.raises(gpu_card.CudaError, match="0 clocks in 7 nanoseconds"):
        clock.sm_clock(card, binary)


@pytest.mark.skipif(not sass.tools(), reason=sass.NO_TOOLS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_compilers(arch):
    """The multiply-adds of a turn stay, so a block is busy with them and not with the timer."""
    built = build_device_program(clock.text(), nvcc(), arch)
    assert set(built.kernels) == {"ck_resident", "ck_portable"} and not built.spills
    assert sass.opcodes(built.binary, "ck_portable")["FFMA"] >= 128
