"""The host as prices see it: the table's figures for the width of its vectors and its caches, until this
machine is measured (`runtime.host_figures`).

Bytes, seconds, and bytes or flops per second of one core. A measurement of a whole call always wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace


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
      thin_product: speed of the flops of such a product relative to those of other light operators, at most.
      levels: (bytes of a level of cache, bytes per second that a core reads from it), the smallest first.
      memory_rate, memory_all: bytes per second that a core reads from memory, and that all cores do.
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
    memory_all: float
    shared: Cache
    stock: Rates
    ours: Rates

    def bandwidth(self, touched: float, cores: int = 1) -> float:
        """Bytes per second at which each of `cores` rereads so many bytes in a loop."""
        far = min(self.memory_rate, self.memory_all / cores)
        return next((rate for size, rate in self.levels if touched <= size), far)

    @property
    def thin_speed(self) -> float:
        """The speed of a thin product, relative to `light` rates: it is never that of one of many rows."""
        return min(self.thin_product, _THIN * self.ours.heavy / self.ours.light)

    def with_caches(self, sizes: Sequence[int]) -> HostSpec:
        """The host with caches of so many bytes, the nearest first; one of 0 keeps the table's size."""
        known = [size or table for size, (table, _) in zip(sizes, self.levels, strict=True)]
        rates = (rate for _, rate in self.levels)
        return replace(self, levels=tuple(zip(sorted(known), rates, strict=True)))

    def with_figures(self, found: Figures) -> HostSpec:
        """The host with the figures that were measured and are plausible."""
        pairs = zip(astuple(found), astuple(Figures.of(self)), strict=True)
        f = Figures(*(new if _plausible(new, old) else old for new, old in pairs))
        rates = f.near, f.middle, f.far
        return replace(
            self,
            barrier_seconds=f.barrier,
            levels=tuple((size, rate) for (size, _), rate in zip(self.levels, rates, strict=True)),
            memory_rate=f.memory,
            memory_all=max(f.memory, f.memory_all),
            stock=replace(self.stock, heavy=self.stock.heavy * f.heavy / self.ours.heavy, light=f.light),
            ours=replace(self.ours, heavy=f.heavy, light=f.light),
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a host that can be measured, 0 for what was not: see `HostSpec`. `near`, `middle`, `far`:
    bytes per second that a core reads from the three levels of cache; `heavy`, `light`: see `Rates`;
    `barrier`: seconds."""

    near: float
    middle: float
    far: float
    memory: float
    memory_all: float
    heavy: float
    light: float
    barrier: float

    @classmethod
    def of(cls, spec: HostSpec) -> Figures:
        near, middle, far = (rate for _, rate in spec.levels)
        memory, ours = (spec.memory_rate, spec.memory_all), spec.ours
        return cls(near, middle, far, *memory, ours.heavy, ours.light, spec.barrier_seconds)


_THIN = 0.9  # [M] of the rate of many rows: four rows, on a Zen 4
MOST_FROM_TABLE = 6.0  # times the figure of the table, or a fraction of it


def _plausible(found: float, table: float) -> bool:
    """False for what no processor of today reaches: the clock, or the machine, was disturbed."""
    return table / MOST_FROM_TABLE <= found <= table * MOST_FROM_TABLE


SERVER = HostSpec(
    vector_lanes=16,
    barrier_seconds=0.25e-6,
    launch_seconds=0.2e-6,
    wake_seconds=2e-6,
    few_rows=8,
    thin_product=1.5,
    levels=((48 << 10, 200e9), (1 << 20, 130e9), (32 << 20, 80e9)),
    memory_rate=20e9,
    memory_all=160e9,
    shared=Cache(near=768 << 10, far=12 << 20, far_rate=100e9, memory_rate=15e9),
    stock=Rates(heavy=160e9, light=60e9, dispatch=50e-9, spreads=True, views=False, loop_dispatches=3),
    ours=Rates(heavy=210e9, light=60e9, dispatch=5e-9, spreads=False, views=True, loop_dispatches=1),
)
# [M] A core with vectors of 32 bytes or less, of a Zen 3.
NARROW = replace(
    SERVER,
    vector_lanes=8,
    levels=((32 << 10, 150e9), (512 << 10, 90e9), (24 << 20, 55e9)),
    memory_all=100e9,
    stock=replace(SERVER.stock, heavy=60e9, light=30e9),
    ours=replace(SERVER.ours, heavy=75e9, light=30e9),
)


def from_table(lanes: int, caches: Sequence[int]) -> HostSpec:
    """The table's figures for vectors of so many float32 values and caches of so many bytes, the nearest
    first, of which the last is shared; 0: not known."""
    table = SERVER if lanes >= SERVER.vector_lanes else replace(NARROW, vector_lanes=max(lanes, 1))
    return table.with_caches(caches)
