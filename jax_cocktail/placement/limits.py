"""Decides if cutting pays, and into how many parts, on a CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, prod

from jax_cocktail.analysis.axes import rule
from jax_cocktail.analysis.classes import AxisClass
from jax_cocktail.cost.reuse import repeated_seconds, reused_bytes, streaming_seconds
from jax_cocktail.cost.unit_time import Part, Seconds, seconds_by_share, unit_seconds
from jax_cocktail.cost.work import Work, has_loop, total
from jax_cocktail.device.host import SERVER, Cache
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.tuning import BLOCK, PROGRAM, DivisionTuning
from jax_cocktail.device.unit import Unit, unit_of
from jax_cocktail.placement.parts import longest_of
from jax_cocktail.utask.ir import Region, Statement, UOperator, is_a
from jax_cocktail.utask.layout import divisors
from jax_cocktail.utask.operators import PRODUCTS
from jax_cocktail.utask.types import ITEM_SIZE, Value

Divided = Callable[[], float]
Communicating = Callable[[], int | None]


@dataclass(frozen=True, slots=True)
class GridOffer:
    """The statements of one of `parts` equal parts, and a class along which they can be cut again.

    `far`: values that they fetch from other units every time.
    """

    statements: Sequence[Statement]
    far: frozenset[Value]
    parts: int
    cut: AxisClass | None = None


# These bound the search of `_counts`, on every machine.
MOST_LENGTHS = 12  # that it offers
LONGER = 1.02  # each by at least this factor


@dataclass(frozen=True, slots=True)
class Limits(DivisionTuning):
    """The limits on a CPU: the numbers of `DivisionTuning`, and what follows from the machine.

    `lanes`: least output features of a convolution in one part; `cache`: decides the number of tiles of an
    independent axis; `crossing`: seconds of a barrier and of the first bytes after it; `takes_operands`: a
    result may overwrite an operand of the program, which one unit copies if the caller keeps it;
    `has_grids`: parts may be cut along a second axis; `meets`: all units meet between two supersteps, so what
    they have read before may be overwritten.
    """

    lanes: int = SERVER.vector_lanes
    cache: Cache = SERVER.shared
    crossing: float = SERVER.barrier_seconds
    takes_operands: bool = True
    has_grids: bool = False
    meets: bool = True
    delays: bool = True

    @property
    def reread(self) -> float:
        """Bytes from which on an array is worth reading once for several tile groups."""
        return self.cache.near

    def suffices(self, amount: Work) -> bool:
        return amount.flops >= self.flops or amount.bytes >= self.bytes

    def pays(
        self, statements: Sequence[Statement], axes: Mapping[Value, int] | None = None, parts: int = 0
    ) -> bool:
        """True if one execution of the statements is enough work for a barrier.

        `axes`, `parts`: their division; without one, True if any division could pay.
        """
        return self.suffices(total(statements))

    def leaves_cache(self, region: Region) -> bool:
        """True if the values of a region's operators need more than the cache of one unit."""
        made = (v.type.nbytes for s in region.body if isinstance(s, UOperator) for v in s.outputs)
        return sum(made) > self.cache.near

    def communicating(self, cut: AxisClass, units: int, statements: Sequence[Statement]) -> int | None:
        """The number of parts of a communicating axis: a barrier follows every execution. If what one unit
        computes and reads again leaves its cache, units take smaller parts in turn. If none is small
        enough, they take the smallest, unless these are short pieces of every row."""
        parts, size = self.parts(cut, units), reused_bytes(statements, cut.axes)
        if (parts is None and units > 1) or size <= (parts or 1) * self.cache.near:
            return parts
        least = int(size / (self.kept * self.cache.near)) + 1
        fitting = self.even_parts(cut, units, 2 * least, least)
        if fitting:
            return fitting[0]
        largest = max(cut.axes, key=lambda value: value.type.nbytes)
        in_rows = cut.axes[largest] == largest.type.rank - 1
        return parts if in_rows else max(self.even_parts(cut, units, least), default=parts)

    def rank(
        self,
        cut: AxisClass,
        units: int,
        statements: Sequence[Statement],
        independent: tuple[float, int | None],
        communicating: Communicating,
    ) -> tuple[float, float]:
        """A sort key for classes that compete for statements: most shared work first, then least time lost.
        Every part of a product reads the whole operand that is not cut. A class whose
        parts are short pieces of each row comes last.

        `independent`: the result of `independent` for the loops among the statements; `communicating`:
        returns the result of `communicating` for the other statements.
        """
        again = Work(0.0, sum(v.type.nbytes for s in statements for v in _whole_operands(s, cut)))
        gain = 0.0 if self.has_short_pieces(cut, units, statements) else total(statements).weight
        return again.weight - gain, independent[0]

    def has_short_pieces(self, cut: AxisClass, units: int, statements: Sequence[Statement]) -> bool:
        """True if a part of what streams through the caches is many short runs: a core fetches the lines
        behind a run, too, which are those of its neighbour."""
        if units == 1 or any(has_loop(s) or is_a(s, *PRODUCTS) for s in statements):
            return False
        largest = max(cut.axes, key=lambda value: value.type.nbytes)
        kind, axis = largest.type, cut.axes[largest]
        run = prod(kind.shape[axis:]) * ITEM_SIZE[kind.dtype] // units
        return kind.nbytes > self.cache.near and run <= self.piece_bytes

    def independent(
        self,
        cut: AxisClass,
        units: int,
        loops: Sequence[Statement],
        divided: Divided,
        others: Sequence[AxisClass] = (),
    ) -> tuple[float, int | None]:
        """Seconds that the loops lose to cache misses if each part runs whole loops, and the number of parts
        that loses least; None if they read so much again that products with divided loop bodies, of which
        each unit keeps its part, are faster with their barriers. `divided`: returns the seconds with divided
        loop bodies; `others`: classes along which the parts may be cut again."""
        even = bool(self.even_parts(cut, units, self.most * units))
        if units == 1 or not (even or self._balanced(cut, units)):
            return 0.0, None
        numbers = self.even_parts(cut, units, cut.parts) if even else [units]
        offers = [(streaming_seconds(loops, cut.axes, n, units, self.cache), n) for n in numbers]
        lost, parts = min(offers, default=(inf, None))
        if not parts or not lost:
            return lost, parts
        alone = ceil(parts / units) * self.seconds(loops, cut.axes, parts)
        return lost, None if divided() < self.together * alone else parts

    def grid(self, offers: Sequence[GridOffer], units: int) -> tuple[int, int] | None:
        """The position of the chosen offer, and the number of blocks per part; None if the offer without a
        class, with undivided parts, is best."""
        return None

    def seconds(
        self, statements: Sequence[Statement], axes: Mapping[Value, int] | None = None, parts: int = 1
    ) -> float:
        """Seconds of the longest part, or of everything without parts. Operands of products come from caches
        that all share."""
        rates = self.thin_rate, SERVER.ours.light
        return sum(repeated_seconds(s, axes or {}, parts, rates, self.cache) for s in statements)

    def parts(self, cut: AxisClass, units: int) -> int | None:
        """The fewest parts that keep the units busy; None if there is no such number. They are equal, or the
        last one has another length; then all axes must be equally long."""
        if units == 1:
            return None
        even = next(iter(self.even_parts(cut, units, self.most * units)), None)
        if even is not None and even % units == 0:
            return even
        long = cut.parts >= max(self.least_part, self._line(cut)) * units
        return units if long and self._balanced(cut, units) else even

    def _balanced(self, cut: AxisClass, units: int) -> bool:
        """True if so many parts, of which the last one has another length, are about as long."""
        longest = longest_of(cut.parts, units, self._line(cut)) if cut.is_uniform else inf
        return cut.parts >= self.balance * units * longest

    def line_of(self, cut: AxisClass, parts: int) -> int:
        """See `Tiling`: for so many parts, 0 if they are equal. Whole vectors, unless one part is then much
        longer than the others."""
        if cut.parts % parts == 0:
            return 0
        line = self._line(cut)
        wide = max(line, self.lanes if self._is_fastest(cut) else 1)
        return wide if longest_of(cut.parts, parts, wide) * parts <= self.longer * cut.parts else line

    def fills_lanes(self, cut: AxisClass, parts: int, statements: Sequence[Statement]) -> bool:
        """False if a part of a convolution would have less than a vector of output features."""
        return all(
            cut.axes.get(s.output) != s.ints("out_spec")[1]
            or s.output.type.shape[cut.axes[s.output]] >= parts * self.lanes
            for s in statements
            if is_a(s, "conv")
        )

    def even_parts(self, cut: AxisClass, units: int, most: int, least: int = 1) -> list[int]:
        """Numbers of equal parts that keep the units busy, from `least` to `most`."""
        line, parts = self._line(cut), int(cut.parts)
        found = (n for n in _divisors(cut) if max(least, units) <= n <= most and parts // n >= line)
        return [n for n in found if n / (units * ceil(n / units)) >= self.balance]

    def _line(self, cut: AxisClass) -> int:
        """The fewest elements of a part along the fastest axis of large values. Shorter parts would share
        cache lines, and a reduction along another axis would have few lanes."""
        most = max((v.type.nbytes for v in cut.axes), default=0)
        if most <= PROGRAM.replicated_bytes or not self._is_fastest(cut):
            return 1
        return max(1, self.lanes * 4 // max(ITEM_SIZE[v.type.dtype] for v, _ in _large(cut)))

    def _is_fastest(self, cut: AxisClass) -> bool:
        """True if neighbours along the axis of a large value are neighbours in memory."""
        return any(prod(value.type.shape[axis + 1 :]) == 1 for value, axis in _large(cut))


def _large(cut: AxisClass) -> list[tuple[Value, int]]:
    """The largest values of a class, and those of half of their size, each with its axis."""
    most = max((v.type.nbytes for v in cut.axes), default=0)
    return [(v, axis) for v, axis in cut.axes.items() if 2 * v.type.nbytes >= most]


def _whole_operands(statement: Statement, cut: AxisClass) -> list[Value]:
    """Operands of a product that every part reads whole."""
    if not is_a(statement, "dot"):
        return []
    tie = rule(statement).along([cut.axes.get(statement.output)])
    return [v for v, d in zip(statement.inputs, tie.inputs, strict=True) if d is None] if tie else []


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits(Limits):
    """The limits on a GPU, in seconds of a thread block.

    An idle unit costs nothing, and weights stay in shared memory only if every unit has at most one part. So
    the number of parts minimises the time of the longest part. It never exceeds the number of units, except
    for independent axes, whose tiles may take turns. `unit`: one unit of the device; `start`: least seconds
    that a second unit saves without barriers.
    """

    unit: Unit
    start: float

    @property
    def reread(self) -> float:
        """A block has no cache of its own, and its parts are cut for their time."""
        return inf

    def leaves_cache(self, region: Region) -> bool:
        """A block has no cache of its own, and its program is for small work."""
        return False

    def line_of(self, cut: AxisClass, parts: int) -> int:
        """A remainder is short: there are many parts."""
        return 0

    def pays(
        self, statements: Sequence[Statement], axes: Mapping[Value, int] | None = None, parts: int = 0
    ) -> bool:
        least = self.start if any(map(has_loop, statements)) else self.crossing
        return self.seconds(statements) - self.seconds(statements, axes or {}, parts) > least

    def communicating(self, cut: AxisClass, units: int, statements: Sequence[Statement]) -> int | None:
        longest = self._longest(statements, cut.axes)
        return _fewest([(longest(n), n) for n in _counts(cut, units)])

    def rank(
        self,
        cut: AxisClass,
        units: int,
        statements: Sequence[Statement],
        independent: tuple[float, int | None],
        communicating: Communicating,
    ) -> tuple[float, float]:
        """A sort key for classes: the share of the time that statements still take. The class that makes
        contested statements fastest gets them, not the largest class."""
        least, parts = independent
        if parts is None:
            statements = [s for s in statements if not has_loop(s)]
            least, parts = inf, communicating()
        before = self.seconds(statements)
        if parts is None or not before:
            return inf, 0.0
        met = len({c.position for c in cut.crossings}) * self.crossing
        return (min(self.seconds(statements, cut.axes, parts), least) + met) / before, -before

    def independent(
        self,
        cut: AxisClass,
        units: int,
        loops: Sequence[Statement],
        divided: Divided,
        others: Sequence[AxisClass] = (),
    ) -> tuple[float, int | None]:
        longest = self._longest(loops, cut.axes)
        offers = [(ceil(n / units) * longest(n), n) for n in _divisors(cut)]
        found = _fewest(offers)
        seconds = min((s for s, n in offers if n == found), default=inf)
        best, parts = min(self._pairs(cut, others, units, loops), default=(inf, 0))
        if found is not None and best < BLOCK.grid_share * seconds:
            seconds, found = best, found if found % parts == 0 else parts
        return seconds, None if found is None or divided() < seconds else found

    def _pairs(
        self, cut: AxisClass, others: Sequence[AxisClass], units: int, loops: Sequence[Statement]
    ) -> Iterator[tuple[float, int]]:
        """(seconds, number of parts along `cut`) of 2-D tilings with enough blocks for the units."""
        for other in others if self.has_grids else ():
            least = min(units, cut.parts * other.parts) / 2
            for parts in _divisors(cut):
                within = Part(cut.axes, 1 / parts)
                once = seconds_by_share(loops, self.unit, Part(other.axes, within=within))
                for across in range(2, other.parts + 1):
                    share = other.longest(across) / other.parts
                    if share and least <= parts * across <= BLOCK.most_turns * units:
                        yield ceil(parts * across / units) * once(share), parts

    def grid(self, offers: Sequence[GridOffer], units: int) -> tuple[int, int] | None:
        """The fewest blocks whose time is close to the best, if that saves enough. Before a barrier there is
        at most one block per unit; blocks of loops may take turns."""
        plain, found = inf, list[tuple[float, int, int, int]]()
        for number, offer in enumerate(offers):
            once = self._once(offer)
            if offer.cut is None:
                plain = ceil(offer.parts / units) * once(1.0)
                continue
            most = units * (BLOCK.most_turns if any(map(has_loop, offer.statements)) else 1)
            for across in range(2, min(offer.cut.parts, most // offer.parts) + 1):
                if share := offer.cut.longest(across) / offer.cut.parts:
                    blocks = offer.parts * across
                    found.append((ceil(blocks / units) * once(share), blocks, across, number))
        best = min((seconds for seconds, *_ in found), default=inf)
        if plain - best < max(self.start, (1 - BLOCK.grid_share) * plain):
            return None
        _, _, across, number = min((f for f in found if f[0] <= BLOCK.close * best), key=lambda f: f[1:])
        return number, across

    def _once(self, offer: GridOffer) -> Seconds:
        """Seconds of one block, by its share of the part."""
        part = Part(offer.cut.axes if offer.cut is not None else {}, far=offer.far)
        return seconds_by_share(offer.statements, self.unit, part)

    def seconds(
        self, statements: Sequence[Statement], axes: Mapping[Value, int] | None = None, parts: int = 1
    ) -> float:
        """Seconds of the longest part; with `parts` 0, the limit for infinitely many parts."""
        if axes is None:
            return unit_seconds(statements, self.unit)
        return self._longest(statements, axes)(parts) if parts else 0.0

    def _longest(self, statements: Sequence[Statement], axes: Mapping[Value, int]) -> Callable[[int], float]:
        """Seconds of the longest part, by the number of parts."""
        seconds = seconds_by_share(statements, self.unit, Part(axes))
        extent = min((v.type.shape[d] for v, d in axes.items()), default=1)

        def longest(parts: int) -> float:
            runs = [extent // parts, extent % parts]  # one unit computes the remainder
            return sum(seconds(n / extent) for n in runs if n)

        return longest


def limits_for(spec: DeviceSpec, threads: int = BLOCK.threads) -> DeviceLimits:
    """The limits of placement on a device, for blocks of so many threads."""
    unit = unit_of(spec, threads)
    return DeviceLimits(
        light=BLOCK.light,
        lanes=1,
        takes_operands=False,
        piece_bytes=0,  # a block fetches no lines that it does not ask for
        has_grids=True,
        meets=False,  # small values cross without a barrier
        delays=False,  # what runs before a barrier runs while others are on their way to it
        unit=unit,
        crossing=spec.barrier_seconds + 2 * BLOCK.far_seconds,
        start=spec.barrier_seconds / 2,
    )


def in_cluster(limits: Limits, spec: DeviceSpec) -> Limits:
    """The limits for the thread blocks of one cluster. Small values cross by one hop into each block's shared
    memory. The price of the whole plan includes barriers for values that are too large."""
    return replace(limits, crossing=spec.cluster_hop_seconds + 2 * BLOCK.statement_seconds)


def _divisors(cut: AxisClass) -> list[int]:
    """Numbers of equal parts, of which there are at least two."""
    return divisors(cut.parts)[1:]


def _counts(cut: AxisClass, units: int) -> list[int]:
    """Numbers of parts up to `units`: those that divide the axes, and, for axes of one length, the fewest
    parts for each of some increasing part lengths."""
    even = [n for n in range(2, units + 1) if cut.parts % n == 0]
    if not cut.is_uniform or units in even:
        return even
    lengths = [ceil(cut.parts / units)]
    while lengths[-1] * 2 < cut.parts and len(lengths) < MOST_LENGTHS:
        lengths.append(max(lengths[-1] + 1, int(lengths[-1] * LONGER)))
    found = {cut.parts // length for length in lengths} | set(even)
    return sorted(n for n in found if 2 <= n <= units)


def _fewest(offers: Sequence[tuple[float, int]]) -> int | None:
    """The fewest parts whose time is close to the best."""
    best = min((seconds for seconds, _ in offers), default=inf)
    return min((n for seconds, n in offers if seconds <= BLOCK.close * best), default=None)
