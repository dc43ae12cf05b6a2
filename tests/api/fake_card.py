"""A fake CUDA driver with one card, for code that calls the driver itself."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from jax_cocktail.runtime.cuda import micro as gpu_micro
from jax_cocktail.runtime.cuda import micro_kernels as gpu_kernels
from tests.cpu.emulation import emulator
from tests.cpu.fake_gpu.driver import compiled, copied


class FakeCard:
    """A fake driver with one card. `path`: for JAX_COCKTAIL_CUDA_DRIVER."""

    def __init__(self, folder: Path) -> None:
        source = Path(__file__).with_name("fake_card.cc")
        self.path = copied(compiled(source), folder)
        self._library = ctypes.CDLL(str(self.path))

    def set(self, **facts: int) -> None:
        for name, value in facts.items():
            self._library.fake_set(name.encode(), ctypes.c_int64(value))

    def fail(self, symbol: str, result: int) -> None:
        self._library.fake_fail(symbol.encode(), result, ctypes.c_int64(-1))

    def launches(self) -> int:
        """Of kernels, so far, those of graphs once each."""
        return int(self._library.fake_launches())

    def depth(self) -> int:
        """Contexts that were pushed by this thread and not popped."""
        return int(self._library.fake_depth())


def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """What measures a card is compiled for the emulation, with few threads."""

    binary = emulator.build(gpu_kernels.text(64)).path.read_bytes()
    monkeypatch.setattr(gpu_micro, "program", lambda arch: binary)
    monkeypatch.setattr(gpu_kernels, "THREADS", 64)
