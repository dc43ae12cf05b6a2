"""What the warps of a block ask of memory, in bytes: of every array of global memory, and of shared memory.

Global memory moves sectors of 32 bytes. A sector counts once for each instruction of a warp that asks for it,
whether a cache holds it or not. Shared memory moves 128 bytes in a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.gpu.sass.decode import Code
from benchmarks.gpu.sass.execute import WarpTrace, is_noted
from benchmarks.gpu.sass.memory import SECTOR_BITS, Access
from benchmarks.gpu.sass.state import array_at
from jax_cocktail.codegen.traffic import Moved

TURN_BYTES = 128


@dataclass(frozen=True, slots=True)
class BlockTraffic:
    """`arrays`: of the memory that a program gets, in its order; `shared`; `local`: spilled registers."""

    arrays: tuple[Moved, ...]
    shared: Moved
    local: Moved


def block_traffic(code: Code, warps: Sequence[WarpTrace], arrays: int) -> BlockTraffic:
    """The traffic of a trace. What is polled, and atomic operations, count nothing."""
    noted = [is_noted(i) for i in code]
    found, shared, local = [Moved()] * arrays, Moved(), Moved()
    for warp in warps:
        notes = iter(warp.notes)
        for at in (at for first, end in warp.runs for at in range(first, end) if noted[at]):
            note = next(notes)
            if not isinstance(note, Access):
                continue
            stores = code[at].kind.startswith("ST")
            shared += _moved(stores, note.wavefronts * TURN_BYTES)
            if code[at].kind == "LDGSTS":
                shared += Moved(stored=len(note.sectors) << SECTOR_BITS)
            for sector in note.sectors:
                number, moved = array_at(sector << SECTOR_BITS), _moved(stores, 1 << SECTOR_BITS)
                if 0 <= number < arrays:
                    found[number] += moved
                else:
                    local += moved
    return BlockTraffic(tuple(found), shared, local)


def _moved(stores: bool, size: int) -> Moved:
    return Moved(stored=size) if stores else Moved(loaded=size)
