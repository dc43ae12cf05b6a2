"""A block of threads as the templates of `gpu_src` see it. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """The threads of one unit, and what its device gives them. `DeviceSpec.block` makes it.

    Attributes:
      threads: of the block.
      warp: threads that run in step, and that load together.
      cell_columns: columns of the sums that one matrix instruction makes for a warp; its rows are 16.
      registers: of a thread, at most, if the block has its multiprocessor for itself.
      sector: bytes of global memory that come together.
    """

    threads: int = 256
    warp: int = 32
    cell_columns: int = 8
    registers: int = 255
    sector: int = 32

    @property
    def warps(self) -> int:
        """Warps of the block."""
        return self.threads // self.warp


USUAL_BLOCK = Block()  # on NVIDIA's cards
