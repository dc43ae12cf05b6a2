"""The state of one block: registers and predicates of all its threads, and the memories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Addresses = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

Content = npt.NDArray[Any] | int  # of an array, or its bytes if nobody wrote it

LANES = 32
ZERO = 255  # the register that is always zero, and never written
LOCAL_WORDS = 1024  # of a thread's stack
UNWRITTEN = 0x3F000000  # words that nobody wrote: 0.5 as a float32
SHARED_BASE = 0x7FFF_0000_0000  # where generic addresses mean shared memory
SHARED_SPAN = 1 << 24
_GLOBAL_BASE = 0x7F00_0000_0000
_SPAN_BITS = 30  # of the addresses of one array


@dataclass(frozen=True, slots=True)
class Grid:
    """Which block of which launch. `rank`: in its cluster."""

    threads: int
    blocks: int
    index: int = 0
    rank: int = 0


def array_at(address: int) -> int:
    """The number of the array of global memory that an address belongs to."""
    return (address - _GLOBAL_BASE) >> _SPAN_BITS


class Memory:
    """Global memory: arrays far from each other. What lies in none of them reads as UNWRITTEN."""

    def __init__(self, arrays: Sequence[Content]) -> None:
        self.arrays: list[Words] = [_words(array) for array in arrays]

    def address(self, number: int) -> int:
        """Where an array begins."""
        return _GLOBAL_BASE + (number << _SPAN_BITS)

    def add(self, content: Content) -> int:
        """Adds an array, and says where it begins."""
        self.arrays.append(_words(content))
        return self.address(len(self.arrays) - 1)

    def read(self, address: Addresses, mask: Mask) -> Words:
        """The words at these addresses; UNWRITTEN where the mask is False."""
        found = np.full(address.shape, UNWRITTEN, np.uint32)
        for array, here, index in self._parts(address, mask):
            found[here] = array[index]
        return found

    def write(self, address: Addresses, value: Words, mask: Mask) -> None:
        value = np.broadcast_to(value, address.shape)
        for array, here, index in self._parts(address, mask):
            array[index] = value[here]

    def _parts(self, address: Addresses, mask: Mask) -> list[tuple[Words, Mask, Addresses]]:
        number = (address - _GLOBAL_BASE) >> _SPAN_BITS
        found = []
        for n in np.unique(number[mask]).tolist():
            if 0 <= n < len(self.arrays):
                index = (address & ((1 << _SPAN_BITS) - 1)) >> 2
                here = mask & (number == n) & (index < len(self.arrays[n]))
                found.append((self.arrays[n], here, index[here]))
        return found


def _words(array: Content) -> Words:
    if isinstance(array, int):
        return np.full(-(-array // 4), UNWRITTEN, np.uint32)
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    padded = np.zeros(-(-raw.size // 4) * 4, np.uint8)
    padded[: raw.size] = raw
    return padded.view(np.uint32)


@dataclass
class State:
    """`registers[n]` and `predicates[n]` hold a value for each (warp, lane), the uniform ones for each warp.

    `local`: where the stacks of the threads are, word by word side by side. `tag`: of the tagged words that
    this block sent last; what it polls has come.
    """

    grid: Grid
    memory: Memory
    constants: dict[int, int]
    shared: Words
    registers: Words = field(init=False)
    uniform: Words = field(init=False)
    predicates: Mask = field(init=False)
    uniform_predicates: Mask = field(init=False)
    local: int = field(init=False)
    tag: int = 0

    def __post_init__(self) -> None:
        warps = self.grid.threads // LANES
        self.registers = np.zeros((ZERO + 1, warps, LANES), np.uint32)
        self.uniform = np.zeros((ZERO + 1, warps, 1), np.uint32)
        self.predicates = np.zeros((8, warps, LANES), np.bool_)
        self.uniform_predicates = np.zeros((8, warps, 1), np.bool_)
        self.local = self.memory.add(4 * LOCAL_WORDS * self.grid.threads)
        self.predicates[7] = self.uniform_predicates[7] = True

    @property
    def warps(self) -> int:
        return self.grid.threads // LANES

    def constant(self, bank: int, offset: int) -> int:
        """A word of a constant bank."""
        return self.constants.get(offset, 0) if bank == 0 else UNWRITTEN
