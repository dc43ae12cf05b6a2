"""The host as the planner sees it: round figures of a server core [E], until somebody measures a machine.

Bytes, seconds, and bytes or flops per second of one core. A measurement of a whole call always wins.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cache:
    """Bytes that a unit keeps close (`near`) and that all units share (`far`), and bytes per second that a
    unit reads from the shared cache and from memory."""

    near: float
    far: float
    far_rate: float
    memory_rate: float

    def seconds(self, size: float, units: int) -> float:
        """Seconds to touch `size` bytes once more."""
        if size <= self.near:
            return 0.0
        return size / (self.far_rate if size * units <= self.far else self.memory_rate)


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of a runtime on one core. `heavy`, `light`: flops per second of large products and
    convolutions, and of the rest; `dispatch`: seconds per statement; `spreads`: heavy operators use all
    cores; `views`: a slice by itself moves nothing; `loop_dispatches`: statements that an iteration runs."""

    heavy: float
    light: float
    dispatch: float
    spreads: bool
    views: bool
    loop_dispatches: int


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The cores of a host and the two runtimes on them.

    Attributes:
      vector_lanes: float32 values of a vector.
      barrier_seconds: one barrier of a few cores: two cache lines cross.
      launch_seconds: a custom call in stock XLA's program.
      wake_seconds: until the other units of a call run.
      few_rows: rows of a product below which memory limits it.
      thin_product: speed of the flops of such a product relative to those of other light operators.
      levels: (bytes of a level of cache, bytes per second that a core reads from it), the smallest first.
      memory_rate: bytes per second that a core reads from memory.
      shared: the caches of units that divide an axis between them.
      stock, ours: the rates of stock XLA's runtime and of generated programs.
    """

    vector_lanes: int
    barrier_seconds: float
    launch_seconds: float
    wake_seconds: float
    few_rows: int
    thin_product: float
    levels: tuple[tuple[int, float], ...]
    memory_rate: float
    shared: Cache
    stock: Rates
    ours: Rates

    def bandwidth(self, touched: float) -> float:
        """Bytes per second at which one core rereads so many bytes in a loop."""
        return next((rate for size, rate in self.levels if touched <= size), self.memory_rate)


SERVER = HostSpec(
    vector_lanes=16,
    barrier_seconds=0.25e-6,
    launch_seconds=0.2e-6,
    wake_seconds=2e-6,
    few_rows=8,
    thin_product=1.5,
    levels=((48 << 10, 200e9), (1 << 20, 130e9), (32 << 20, 80e9)),
    memory_rate=20e9,
    shared=Cache(near=768 << 10, far=12 << 20, far_rate=100e9, memory_rate=15e9),
    stock=Rates(heavy=160e9, light=60e9, dispatch=50e-9, spreads=True, views=False, loop_dispatches=3),
    ours=Rates(heavy=210e9, light=60e9, dispatch=5e-9, spreads=False, views=True, loop_dispatches=1),
)
