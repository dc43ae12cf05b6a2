"""When cutting pays, and into how many parts: the numbers behind `clusters`, for a CPU and for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, inf
from typing import cast

from jax_cocktail.analysis.axes import rule
from jax_cocktail.analysis.classes import AxisClass
from jax_cocktail.cost.reuse import streaming_seconds
from jax_cocktail.cost.unit_time import (
    Part,
    Unit,
    unit_of,
    unit_seconds,
)
from jax_cocktail.cost.work import Work, has_loop, total
from jax_cocktail.device.host import SERVER, Cache
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import Statement, UOperator
from jax_cocktail.utask.types import Value

Divided = Callable[[], float]


@dataclass(frozen=True, slots=True)
class GridOffer:
    """One of `parts` equal parts, by its statements, and a class that they can be cut along again.

    `far`: values among them that come from other units every time.
    """

    statements: Sequence[Statement]
    far: frozenset[Value]
    parts: int
    cut: AxisClass | None = None


MOST_LENGTHS = 12
LONGER = 1.02
MOST_TURNS = 8  # blocks that a unit takes one after the other
MOST_LEFT = 0.9  # a grid takes less than this share of the time that parts along one axis take
CLOSE = 1.05  # fewer parts win against more that are hardly faster


@dataclass(frozen=True, slots=True)
class Limits:
    """When cutting pays on a CPU.

    `flops`, `bytes`: one execution of a cluster needs one of them (its barrier costs about 0.25 us on two
    cores); `again`: share of a nested uTask's work that may be computed again in every part; `balance`:
    least share of the units that are busy; `most`: parts per unit; `least_part`: length of parts from which
    they need not divide the axis; `light`: flops up to which a value is computed again rather than stored;
    `pack_trips`: trips of a loop from which packing its weights pays; `lanes`: output features of a
    convolution that one part needs at least; `cache`: what decides how many domains an axis becomes;
    `crossing`: seconds of a barrier and of the first bytes after it; `takes_operands`: a result may take the
    place of an operand of the program, which one unit copies if the caller keeps it; `dense_bytes`:
    parts up to this size are packed even if they are dense, since packed parts stay with their units;
    `packs_rows`: a packed right operand has its columns side by side, so that one product makes all of them;
    `has_grids`: parts may be cut along a second axis.
    """

    flops: float = 20000
    bytes: float = 64 << 10
    again: float = 0.1
    balance: float = 0.7
    most: int = 4
    least_part: int = 16
    light: float = 4096
    pack_trips: int = 32
    lanes: int = SERVER.vector_lanes
    cache: Cache = SERVER.shared
    crossing: float = SERVER.barrier_seconds
    takes_operands: bool = True
    dense_bytes: float = 0.0
    packs_rows: bool = False
    has_grids: bool = False

    def suffices(self, amount: Work) -> bool:
        return amount.flops >= self.flops or amount.bytes >= self.bytes

    def pays(
        self, statements: Sequence[Statement], axes: Mapping[Value, int] | None = None, parts: int = 0
    ) -> bool:
        """Whether one execution of the statements is enough work for parts that meet afterwards.

        `axes`, `parts`: how they are cut; without, whether any way to cut them could pay.
        """
        return self.suffices(total(statements))

    def split(self, cut: AxisClass, units: int, statements: Sequence[Statement]) -> int | None:
        """The number of parts of an axis whose parts meet after every execution of the statements."""
        return self.parts(cut, units)

    def rank(
        self, cut: AxisClass, units: int, statements: Sequence[Statement], domains: tuple[float, int | None]
    ) -> tuple[float, float]:
        """Orders classes that want the same statements, the best first: most work that parts share, then
        least lost. Of a product, every part reads the operand that is not cut.

        `domains`: what `domains` says of the loops among the statements.
        """
        again = Work(0.0, sum(v.type.nbytes for s in statements for v in _whole_operands(s, cut)))
        return again.weight - total(statements).weight, domains[0]

    def domains(
        self,
        cut: AxisClass,
        units: int,
        loops: Sequence[Statement],
        divided: Divided,
        others: Sequence[AxisClass] = (),
    ) -> tuple[float, int | None]:
        """The number of parts, with whole loops inside, that keep the most in cache, and the seconds that
        those loops lose then. `divided`: what the loops take if their bodies are divided instead; `others`:
        classes that the parts may be cut along again."""
        if not self.even_parts(cut, units, self.most * units):
            return 0.0, None
        offers = [
            (streaming_seconds(loops, cut.axes, n, units, self.cache), n)
            for n in self.even_parts(cut, units, cut.parts)
        ]
        return min(offers, default=(inf, None))

    def grid(self, offers: Sequence[GridOffer], units: int) -> tuple[int, int] | None:
        """The number of an offer, and of blocks for each of its parts; None to keep to parts as they are, the
        offer without a class."""
        return None

    def seconds(
        self, statements: Sequence[Statement], axes: Mapping[Value, int] | None = None, parts: int = 1
    ) -> float:
        """Of the longest part, or of all of it; only where a device's rates are known."""
        return 0.0

    def parts(self, cut: AxisClass, units: int, whole: bool = False) -> int | None:
        """The fewest parts that keep the units busy; None if there is no such number.

        They divide the axis, or, unless `whole`, leave a little over: then all axes must be equally long.
        """
        even = next(iter(self.even_parts(cut, units, self.most * units)), None)
        if even is not None and (whole or even % units == 0):
            return even
        long = cut.is_uniform and cut.parts >= self.least_part * units
        return units if long and not whole else even

    def fills_lanes(self, cut: AxisClass, parts: int, statements: Sequence[Statement]) -> bool:
        """False if a convolution would be left with less than a vector of output features in a part."""
        convolutions = (s for s in statements if isinstance(s, UOperator) and s.kind == "conv")
        return all(
            cut.axes.get(s.output) != cast(tuple[int, ...], s["out_spec"])[1]
            or s.output.type.shape[cut.axes[s.output]] >= parts * self.lanes
            for s in convolutions
        )

    def even_parts(self, cut: AxisClass, units: int, most: int) -> list[int]:
        """Numbers of equal parts that keep the units busy, up to `most`."""
        return [n for n in range(units, most + 1) if self._is_even(cut, n, units)]

    def _is_even(self, cut: AxisClass, parts: int, units: int) -> bool:
        return cut.parts % parts == 0 and parts / (units * ceil(parts / units)) >= self.balance


def _whole_operands(statement: Statement, cut: AxisClass) -> list[Value]:
    """Operands of a product that every part reads whole."""
    if not isinstance(statement, UOperator) or statement.kind != "dot":
        return []
    tie = rule(statement).along([cut.axes.get(statement.output)])
    return [v for v, d in zip(statement.inputs, tie.inputs, strict=True) if d is None] if tie else []


@dataclass(frozen=True, slots=True)
class DeviceLimits(Limits):
    """When cutting pays on a GPU, in seconds of a unit that is a thread block.

    A unit that idles costs nothing by itself and every unit must have one part at most for its weights to
    stay in shared memory. So the number of parts is what makes the longest part short, never above the
    number of units except for domains, which may take turns. `unit`: one of the device's; `start`: seconds
    that a second unit has to save where nothing meets.
    """

    unit: Unit | None = None
    start: float = 0.5e-6

    def pays(
        self, statements: Sequence[Statement], axes: Mapping[Value, int] | None = None, parts: int = 0
    ) -> bool:
        least = self.start if any(map(has_loop, statements)) else self.crossing
        return self.seconds(statements) - self.seconds(statements, axes or {}, parts) > least

    def split(self, cut: AxisClass, units: int, statements: Sequence[Statement]) -> int | None:
        offers = [(self.seconds(statements, cut.axes, n), n) for n in _counts(cut, units)]
        return _fewest(offers)

    def rank(
        self, cut: AxisClass, units: int, statements: Sequence[Statement], domains: tuple[float, int | None]
    ) -> tuple[float, float]:
        """By the share of their time that statements still take: one that several classes want goes to the
        class that makes it fastest, not to the class that wants most."""
        parts = domains[1]
        if parts is None:
            statements = [s for s in statements if not has_loop(s)]
            parts = self.split(cut, units, statements)
        before = self.seconds(statements)
        if parts is None or not before:
            return inf, 0.0
        met = len({c.position for c in cut.crossings}) * self.crossing
        return (self.seconds(statements, cut.axes, parts) + met) / before, -before

    def domains(
        self,
        cut: AxisClass,
        units: int,
        loops: Sequence[Statement],
        divided: Divided,
        others: Sequence[AxisClass] = (),
    ) -> tuple[float, int | None]:
        offers = [(ceil(n / units) * self.seconds(loops, cut.axes, n), n) for n in _divisors(cut)]
        found = _fewest(offers)
        seconds = min((s for s, n in offers if n == found), default=inf)
        best, parts = min(self._pairs(cut, others, units, loops), default=(inf, 0))
        if found is not None and best < MOST_LEFT * seconds:
            seconds, found = best, found if found % parts == 0 else parts
        return seconds, None if found is None or divided() < seconds else found

    def _pairs(
        self, cut: AxisClass, others: Sequence[AxisClass], units: int, loops: Sequence[Statement]
    ) -> Iterator[tuple[float, int]]:
        """Seconds, and the parts of the first class, of domains that two classes cut and that fill units."""
        assert self.unit is not None
        for other in others if self.has_grids else ():
            least = min(units, cut.parts * other.parts) / 2
            for parts, across in product(_divisors(cut), _divisors(other)):
                if least <= parts * across <= MOST_TURNS * units:
                    block = Part(other.axes, 1 / across, within=Part(cut.axes, 1 / parts))
                    once = unit_seconds(loops, self.unit, block)
                    yield ceil(parts * across / units) * once, parts

    def grid(self, offers: Sequence[GridOffer], units: int) -> tuple[int, int] | None:
        """What meets afterwards has a block for every unit at most; domains may take turns. The fewest blocks
        whose longest takes hardly more time than any other's, if that saves enough."""
        plain, found = inf, list[tuple[float, int, int, int]]()
        for number, offer in enumerate(offers):
            if offer.cut is None:
                plain = self._turns(offer, 1, units)
                continue
            most = units * (MOST_TURNS if any(map(has_loop, offer.statements)) else 1)
            for across in range(2, min(offer.cut.parts, most // offer.parts) + 1):
                if offer.cut.parts % across == 0:
                    blocks = offer.parts * across
                    found.append((self._turns(offer, across, units), blocks, across, number))
        best = min((seconds for seconds, *_ in found), default=inf)
        if plain - best < max(self.start, (1 - MOST_LEFT) * plain):
            return None
        _, _, across, number = min((f for f in found if f[0] <= CLOSE * best), key=lambda f: f[1:])
        return number, across

    def _turns(self, offer: GridOffer, across: int, units: int) -> float:
        """Seconds until a unit has done all of its blocks."""
        assert self.unit is not None
        part = Part(offer.cut.axes if offer.cut is not None else {}, 1 / across, offer.far)
        return ceil(offer.parts * across / units) * unit_seconds(offer.statements, self.unit, part)

    def seconds(
        self, statements: Sequence[Statement], axes: Mapping[Value, int] | None = None, parts: int = 1
    ) -> float:
        """Of the longest part; `parts` 0: of a part so small that it is nothing."""
        assert self.unit is not None
        if axes is None:
            return unit_seconds(statements, self.unit)
        if not parts:
            return 0.0
        extent = min((v.type.shape[d] for v, d in axes.items()), default=parts)
        runs = [extent // parts, extent % parts]  # one unit computes what is left over
        return sum(unit_seconds(statements, self.unit, Part(axes, n / extent)) for n in runs if n)


def limits_for(spec: DeviceSpec) -> DeviceLimits:
    """The limits of placement on a device."""
    return DeviceLimits(
        light=32 << 10,
        pack_trips=2,
        lanes=1,
        takes_operands=False,
        dense_bytes=unit_of(spec).near,
        packs_rows=True,
        has_grids=True,
        unit=unit_of(spec),
        crossing=spec.barrier_seconds + 2 * BLOCK.far_seconds,
        start=spec.barrier_seconds / 2,
    )


def in_cluster(limits: Limits, spec: DeviceSpec) -> Limits:
    """The limits where the units are one cluster. Small values cross by a hop into each unit's own shared
    memory; whether too many wait for a barrier instead, the price of the whole plan knows."""
    return replace(limits, crossing=spec.cluster_hop_seconds + 2 * BLOCK.statement_seconds)


def _divisors(cut: AxisClass) -> list[int]:
    """Numbers of equal parts."""
    return [n for n in range(2, cut.parts + 1) if cut.parts % n == 0]


def _counts(cut: AxisClass, units: int) -> list[int]:
    """Numbers of parts up to `units`: those that divide the axes, and, of axes of one length, the fewest
    parts of some lengths, each a little longer than the one before."""
    even = [n for n in range(2, units + 1) if cut.parts % n == 0]
    if not cut.is_uniform or units in even:
        return even
    lengths = [ceil(cut.parts / units)]
    while lengths[-1] * 2 < cut.parts and len(lengths) < MOST_LENGTHS:
        lengths.append(max(lengths[-1] + 1, int(lengths[-1] * LONGER)))
    found = {cut.parts // length for length in lengths} | set(even)
    return sorted(n for n in found if 2 <= n <= units)


def _fewest(offers: Sequence[tuple[float, int]]) -> int | None:
    """The fewest parts whose longest takes hardly more time than any other's."""
    best = min((seconds for seconds, _ in offers), default=inf)
    return min((n for seconds, n in offers if seconds <= CLOSE * best), default=None)
