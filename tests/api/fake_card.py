"""A fake CUDA driver with one card, for code that calls the driver itself."""

from __future__ import annotations

import ctypes
from pathlib import Path

from tests.cpu.fake_cuda.driver import HERE, compiled, copied


class FakeCard:
    """A fake driver with one card. `path`: for JAX_COCKTAIL_CUDA_DRIVER."""

    def __init__(self, folder: Path) -> None:
        source = Path(__file__).with_name("fake_card.cc")
        self.path = copied(compiled(source, f"-I{HERE}"), folder)
        self._library = ctypes.CDLL(str(self.path))

    def set(self, **facts: int) -> None:
        for name, value in facts.items():
            self._library.fake_set(name.encode(), ctypes.c_int64(value))

    def fail(self, symbol: str, result: int) -> None:
        self._library.fake_fail(symbol.encode(), result, ctypes.c_int64(-1))
