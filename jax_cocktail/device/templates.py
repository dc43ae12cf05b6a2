"""The cost of generated text for the threads of a block, in clocks: the part of the GPU cost model
that changes when the templates change.

A block on the sizes of a loop body is no stream of bytes or flops but a chain of latencies. `cost.latency`
counts the links of the chain; a *generation* of templates says how long each of them is. A record of measured
times names the generation that it was made with, so later templates do not change what the record says. The
figures that belong to the hardware are in `device.spec`: `far_clocks` and `meet_clocks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

THREADS = 256  # of the blocks that the figures are for
LEAST_THREADS = 128  # a warp for each of the four schedulers
# The share of a link that grows with the number of warps [E], from emulated kernels of 64 to 1024 threads.
# Smaller blocks save something where all warps take part whatever the size of an array: ...
TOGETHER: Mapping[str, float] = {"stage": 0.1, "gemv": 0.3, "gemv_round": 0.3}
# ... not where warps without an element are idle, or where a value of every warp goes to all others.
BESIDE: Mapping[str, float] = {
    "reduction": 0.5,
    "argument": 0.5,
    "round": 0.25,
    "operation": 0.25,
    "division": 0.25,
    "compare": 0.25,
    "tile_step": 0.25,
    "tile_copy": 0.5,
    "mma": 0.5,
    "mma_word": 0.5,
    "fma": 0.5,
    "conv_step": 0.25,
    "conv_copy": 0.5,
    "box_clock": 0.25,
}
# Those of these links in which the warps of other blocks take part.
ISSUED = ("round", "operation", "division", "compare", "tile_step", "fma", "mma", "mma_word", "conv_step")
ONE_WARP = 0.4  # [E] of what warps exchange: the shuffles, without shared memory and barriers


@dataclass(frozen=True, slots=True)
class Templates:
    """One generation. In clocks of a block of 256 threads unless said otherwise.

    Statements:
      stage: entry of a statement: its pointers, index limits and guards.
      round: one element of every thread: its address, its load, its store.
      scalar: an operation on a register that every thread computes for itself.
      operation: a flop of `operators.KINDS` of one element, which waits for the one before.
      division: what an IEEE division adds: a call that no load and no other operation moves across.
      behind_division: share of a load from far memory, for each load that a division keeps from being made
        together with the first one.
      reduction, argument: shuffles and exchange between warps, for a value and for a position; `compare`: one
        element of every thread whose position may be the result.
      foreign: a parallel loop of which a unit owns no part.
      publish: fences and stores of a barrier or an exchange, beside the time of the hardware.
      words: sending and receiving the tagged words of an exchange.
    Products of few rows:
      gemv: set-up, sums over lanes and warps, and the first 128 lines of the matrix; `gemv_round`: the same
        for each further team of columns; `line`: 128 bytes of shared memory beyond.
      serial_load: share of a load from far memory, for each step through k, where the loads of a function of
        its own are not made together; `serial_word`: clocks of each word of such a load.
    Tiles:
      tile_step: one step through k; `tile_copy`: one copy of a thread in it; `tile_end`, `slice_end`: the end
        of a tile, without and with slices of k.
      mma: depth of one tensor core instruction; `mma_word`: a word of the operands, rounded; `mma_more`: each
        instruction after the first. `fma`: four multiply-adds of a thread, loads included.
      conv_step: one step through the depth of a convolution's tile; `conv_copy`: one copy of a thread in it,
        whose place in the image has to be found. `box_clock`: a clock of the header's estimate for boxes.
    """

    stage: float
    round: float
    scalar: float
    operation: float
    division: float
    behind_division: float
    reduction: float
    argument: float
    compare: float
    foreign: float
    publish: float
    words: float
    gemv: float
    gemv_round: float
    line: float
    serial_load: float
    serial_word: float
    tile_step: float
    tile_copy: float
    tile_end: float
    slice_end: float
    mma: float
    mma_word: float
    mma_more: float
    fma: float
    conv_step: float
    conv_copy: float
    box_clock: float

    def sized(self, threads: int, together: int = 1) -> Templates:
        """These costs for blocks of so many threads, whose warps take turns to issue, as those of all
        blocks `together` on a multiprocessor do."""
        more, beside = (max(n, LEAST_THREADS) / THREADS - 1 for n in (threads, threads * together))
        grown = {name: share * more for name, share in TOGETHER.items()}
        grown |= {name: share * max(more, 0.0) for name, share in BESIDE.items()}
        grown |= {name: BESIDE[name] * max(beside, 0.0) for name in ISSUED}
        return replace(self, **{name: getattr(self, name) * (1 + more) for name, more in grown.items()})

    def of_one_warp(self) -> Templates:
        """These costs where nothing goes from warp to warp."""
        return replace(self, reduction=ONE_WARP * self.reduction, argument=ONE_WARP * self.argument)


# [E] from an emulation of the machine code that nvcc 13.0 makes for sm_90, not fitted row by row.
FIRST = Templates(
    stage=90,
    round=15,
    scalar=5,
    operation=5,
    division=50,
    behind_division=1.0,
    reduction=350,
    argument=630,
    compare=150,
    foreign=290,
    publish=200,
    words=150,
    gemv=390,
    gemv_round=200,
    line=1,
    serial_load=1.0,
    serial_word=40,
    tile_step=100,
    tile_copy=50,
    tile_end=60,
    slice_end=260,
    mma=46,
    mma_word=14,
    mma_more=10,
    fma=50,
    conv_step=600,
    conv_copy=110,
    box_clock=1,
)

# [E] Division has no slow path, units call only their own parts, matrices of few rows stay in registers, left
# operands are loaded together. Copied operands of tiles are rounded once, in scratch; packed ones not at all.
SECOND = replace(
    FIRST,
    operation=2.5,
    division=10,
    compare=15,
    behind_division=0.0,
    foreign=30,
    gemv=320,
    serial_load=0.2,
    serial_word=10,
    tile_copy=64,
    mma=20,
    mma_word=10,
    mma_more=0,
)

GENERATIONS: Mapping[str, Templates] = {"first": FIRST, "second": SECOND}
TEMPLATES = SECOND  # those of today's headers
