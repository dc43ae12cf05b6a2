"""A unit of a GPU as the planner sees it: the rates of a thread block of generated programs.

They are those of the card (`device.spec`) and the shares of them that blocks reach (`device.tuning`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil

from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.tuning import BLOCK


@dataclass(frozen=True, slots=True)
class Unit:
    """The rates of one thread block, alone on its multiprocessor, per second.

    `near`: bytes that it keeps in shared memory; `near_rate`, `far_rate`: bytes per second from there and
    from L2; `products`, `convolutions`, `elements`: flops of each; `tensors`, `halves`: flops on tensor cores
    of products of float32 that may be rounded, and of 16 bits; `lanes`: its threads; `held`: bytes of
    matrices that their registers keep while a loop runs.
    """

    near: float
    near_rate: float
    far_rate: float
    products: float
    convolutions: float
    elements: float
    tensors: float
    halves: float
    lanes: int
    held: int

    def near_share(self, touched: float) -> float:
        """The share of so many repeatedly read bytes that fits into shared memory."""
        return min(1.0, self.near / touched) if touched else 1.0

    def rate(self, touched: float) -> float:
        """Bytes per second for repeated reads of so many bytes; those that do not fit come from L2."""
        share = self.near_share(touched)
        return 1.0 / (share / self.near_rate + (1 - share) / self.far_rate)

    def steps(self, size: float, cost: float = 1.0) -> float:
        """Seconds of `cost` operations on each of so many elements: at least one operation of all lanes."""
        return ceil(size / self.lanes) * self.lanes * cost / self.elements


@cache
def unit_of(spec: DeviceSpec, threads: int = BLOCK.threads, together: int = 1) -> Unit:
    """The unit of a device, a block of so many threads; its rates are those of the device over its
    multiprocessors, which so many blocks share. Fewer warps than usual hide less latency, so their arithmetic
    is slower."""
    busy = min(1.0, threads * together / BLOCK.threads)
    peak = busy * spec.flops / spec.units
    return Unit(
        near=BLOCK.near_share * spec.shared_bytes / together,
        near_rate=spec.shared_rate / spec.units,
        far_rate=spec.l2_rate / spec.units,
        products=BLOCK.product_share * peak,
        convolutions=BLOCK.convolution_share * peak,
        elements=BLOCK.element_share * peak / 2,
        tensors=busy * BLOCK.tensor_share * spec.tensor_flops / spec.units,
        halves=busy * BLOCK.tensor_share * spec.half_flops / spec.units,
        lanes=threads,
        held=BLOCK.held_bytes(spec.block(threads)),
    )
