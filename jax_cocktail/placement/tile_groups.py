"""Tile groups: chooses the statements of a region that are tiled, their axis classes, and their order.

A statement whose results are in a chosen class is *claimed*: it becomes part of a parallel loop. All others
stay at device scope. Supersteps alternate: mesh statements of superstep 0, tile groups of superstep 0, mesh
statements of superstep 1 ... A statement that needs more than its own part of a claimed value is one
superstep later. So every boundary between two supersteps is one crossing, and a claimed statement runs as
early as possible, except that a core computes what it reads later when it reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import ceil

from jax_cocktail.analysis.access import reads_own_part
from jax_cocktail.analysis.axes import rule
from jax_cocktail.analysis.classes import AxisClass, Crossing, axis_classes
from jax_cocktail.analysis.graph import strong_components
from jax_cocktail.cost.work import Work, has_loop, total, trips, work
from jax_cocktail.placement.joined import joined
from jax_cocktail.placement.light import light_positions
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.parts import Tiling
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    defined_in,
    definitions,
    is_a,
    positions_of,
    readers,
    reads,
    regions_of,
    walk,
)
from jax_cocktail.utask.operators import STATIC_VIEWS, UPDATES
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class CutChoice:
    """A class and its number of parts. Choices with equal `number` have the same class. `line`: see
    `Tiling`."""

    number: int
    cut: AxisClass
    parts: int
    line: int = 0

    @property
    def axes(self) -> Mapping[Value, int]:
        return self.cut.axes


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Positions of statements that become one parallel loop."""

    positions: tuple[int, ...]
    axes: Mapping[Value, int]
    tiling: Tiling

    @property
    def parts(self) -> int:
        return self.tiling.parts


@dataclass(frozen=True, slots=True)
class Superstep:
    """Replicated statements, then tile groups that do not depend on each other."""

    mesh: tuple[int, ...]
    tile_groups: tuple[TileGroup, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """The supersteps of a region, and the classes that are not cut, most work first, with the reasons."""

    supersteps: tuple[Superstep, ...]
    refused: tuple[tuple[AxisClass, str], ...] = ()

    @property
    def tile_groups(self) -> tuple[TileGroup, ...]:
        return tuple(c for superstep in self.supersteps for c in superstep.tile_groups)

    @property
    def tile_group_of(self) -> dict[int, TileGroup]:
        """The tile group of every claimed position."""
        return {n: tile_group for tile_group in self.tile_groups for n in tile_group.positions}

    @property
    def barrier_count(self) -> int:
        """Supersteps with a barrier at their end: barriers of one run of the region, without inner loops."""
        return sum(bool(superstep.tile_groups) for superstep in self.supersteps)

    def moved(self, home: Region, region: Region) -> Division:
        """This division of `home` for a region of the same shape."""
        now = dict(zip(defined_in(home), defined_in(region), strict=True))
        leaves = dict(zip(map(id, walk(home)), walk(region), strict=True))

        def axes(old: Mapping[Value, int]) -> dict[Value, int]:
            return {now[value]: axis for value, axis in old.items()}

        def cut(old: AxisClass) -> AxisClass:
            met = (replace(c, leaf=leaves[id(c.leaf)], value=now[c.value]) for c in old.crossings)
            return replace(old, axes=axes(old.axes), crossings=tuple(met))

        def superstep(old: Superstep) -> Superstep:
            return replace(old, tile_groups=tuple(replace(c, axes=axes(c.axes)) for c in old.tile_groups))

        return Division(
            tuple(map(superstep, self.supersteps)), tuple((cut(c), why) for c, why in self.refused)
        )


def divide(region: Region, units: int, limits: Limits, kept: Collection[int] = ()) -> Division:
    """Chooses classes, most work first, and assigns statements to supersteps. `kept`: positions that stay at
    device scope. Results may overwrite parameters of the region."""
    divider = _Divider(region, units, limits, kept)
    found = divider.divide()
    if not divider.avoids_pieces or not (bytes_ := _handed_bytes(found, region, limits)):
        return found
    others = _Divider(region, units, replace(limits, piece_bytes=0), kept).divide()
    return found if bytes_ <= _handed_bytes(others, region, limits) else others


def _handed_bytes(division: Division, region: Region, limits: Limits) -> int:
    """The bytes that leave the caches from one superstep to a later one: rows that are cut whole take less
    time than short pieces of them, but not if arrays must then be stored in between."""
    made: set[Value] = set()
    handed: set[Value] = set()
    for superstep in division.supersteps:
        groups = (group.positions for group in superstep.tile_groups)
        statements = [region.body[n] for n in chain(superstep.mesh, *groups)]
        handed |= made.intersection(v for s in statements for v in reads(s))
        stored = (s for s in statements if not is_a(s, *STATIC_VIEWS))
        made |= {v for s in stored for v in s.outputs if v.type.nbytes > limits.cache.near}
    return sum(value.type.nbytes for value in handed)


def barrier_free(region: Region, limits: Limits) -> Iterator[AxisClass]:
    """The classes along which all statements of a region can be cut without a barrier between them."""
    divider = _Divider(region, 1, limits)
    heavy = [n for n in range(len(region.body)) if n not in divider.light]
    for cut in axis_classes([region.body[n] for n in heavy]):
        divider.claims = dict.fromkeys(heavy, CutChoice(0, cut, 2))
        crossings = _crossings_at(cut, heavy)
        fits = not cut.clash and all(divider._fits(cut, n, crossings.get(n, ())) for n in heavy)
        if fits and not any(divider._supersteps().values()):
            yield cut


class _Divider:
    def __init__(self, region: Region, units: int, limits: Limits, kept: Collection[int] = ()) -> None:
        self.kept = frozenset(kept)
        self.region = region
        self.statements = region.body
        self.units = units
        self.limits = limits
        self.light = light_positions(region.body, limits.light)
        self.made = positions_of(region)
        self.reads = [reads(s) for s in region.body]
        self.needs = [[(self.made[v], v) for v in values if v in self.made] for values in self.reads]
        self.readers = readers(region)
        self.results = frozenset(region.results)
        self.claims: dict[int, CutChoice] = {}
        self.divided: dict[tuple[int, ...], float] = {}  # positions of loops -> seconds with divided bodies
        self.counts: dict[tuple[int, tuple[int, ...]], int | None] = {}  # class, positions -> parts
        self.refused: list[tuple[AxisClass, str]] = []
        self.avoids_pieces = False  # other classes went before one that has short pieces of rows
        self.uncrossed: list[tuple[AxisClass, list[int]]] = []  # and the positions that they fit

    def divide(self) -> Division:
        self._claim()
        while True:
            superstep = self._supersteps()
            tile_groups = self._tile_groups(superstep)
            weak = [(k, c) for k, c in tile_groups if not self._pays(c.positions, c.axes, c.parts)]
            if not weak:
                return self._result(superstep, tile_groups)
            _, worst = min(weak, key=lambda pair: self._work(pair[1].positions).weight)
            for position in worst.positions:
                del self.claims[position]

    def _work(self, positions: Sequence[int]) -> Work:
        return total(self.statements[n] for n in positions)

    def _pays(self, positions: Sequence[int], axes: Mapping[Value, int], parts: int) -> bool:
        return self.limits.pays([self.statements[n] for n in positions], axes, parts)

    # -- claims ------------------------------------------------------------------------------------------
    def _claim(self) -> None:
        others = self.light | self.kept
        heavy = [n for n in range(len(self.statements)) if n not in others]
        candidates = set(heavy)
        statements = [self.statements[n] for n in heavy]
        classes = joined(axis_classes(statements), statements, self.statements, self.limits.reread)
        found = []
        for cut in classes:
            crossings = _crossings_at(cut, heavy)
            members = {self.made[v] for v in cut.axes if v in self.made} & candidates
            fitting = [n for n in sorted(members) if self._fits(cut, n, crossings.get(n, ()))]
            found.append((cut, fitting, set(crossings)))
        self.uncrossed = [(cut, fitting) for cut, fitting, places in found if not cut.clash and not places]
        offers = [
            (self._rank(cut, fitting), -len(cut.axes), len(places), cut, fitting)
            for cut, fitting, places in found
        ]
        offers.sort(key=lambda offer: offer[:3])
        for number, (*_, cut, fitting) in enumerate(offers):
            loops, free = self._loops_inside(cut, [n for n in fitting if n not in self.claims])
            parts = self._independent(cut, loops)[1] if loops else self._communicating(cut, free)
            if parts is None and loops:  # a loop over the remainder would take too long
                free = [n for n in free if n not in loops]
                parts = self._communicating(cut, free)
            chosen = [self.statements[n] for n in free]
            if parts is not None and not self.limits.fills_lanes(cut, parts, chosen):
                parts = None
            why = self._refusal(cut, parts, free)
            if why or parts is None:
                self.refused.append((cut, why))
                continue
            choice = CutChoice(number, cut, parts, self.limits.line_of(cut, parts))
            self.claims.update(dict.fromkeys(free, choice))

    def _loops_inside(self, cut: AxisClass, free: list[int]) -> tuple[list[int], list[int]]:
        """The loops that move into tiles of the class, all or some, and the statements without the others."""
        loops = [n for n in free if has_loop(self.statements[n])]
        if len(loops) > 1 and self._independent(cut, loops)[1] is None:
            inside = [n for n in loops if self._independent(cut, (n,))[1] is not None] or loops
            return inside, [n for n in free if n in inside or n not in loops]
        return loops, free

    def _rank(self, cut: AxisClass, positions: Sequence[int]) -> tuple[float, float]:
        """The class with the lowest rank gets the statements that several classes want."""
        loops = [n for n in positions if has_loop(self.statements[n])]
        others = partial(self._communicating, cut, [n for n in positions if n not in loops])
        found = [self.statements[n] for n in positions]
        self.avoids_pieces |= self.limits.has_short_pieces(cut, self.units, found)
        return self.limits.rank(cut, self.units, found, self._independent(cut, loops), others)

    def _independent(self, cut: AxisClass, loops: Sequence[int]) -> tuple[float, int | None]:
        """Seconds of the loops in tiles of the class, and the fastest number of tiles; None if there is no
        number, or if dividing the bodies of the loops is faster."""
        found, key = [self.statements[n] for n in loops], tuple(loops)

        def divided() -> float:
            if key not in self.divided:
                self.divided[key] = self._inside(found)
            return self.divided[key]

        others = [c for c, fitting in self.uncrossed if c is not cut and set(fitting).issuperset(loops)]
        return self.limits.independent(cut, self.units, found, divided, others) if found else (0.0, None)

    def _inside(self, statements: Sequence[Statement]) -> float:
        """Seconds of statements that stay at device scope while their regions are divided."""
        total = 0.0
        for statement in statements:
            regions = regions_of(statement)
            each = sum(self._divided(region) for region in regions)
            if isinstance(statement, LoopUTask):
                total += each * trips(statement)
            elif isinstance(statement, BranchUTask):
                total += each / len(regions)
            else:
                total += self.limits.seconds((statement,))
        return total

    def _divided(self, region: Region) -> float:
        division = divide(region, self.units, self.limits)
        found = 0.0
        for superstep in division.supersteps:
            found += self._inside([region.body[n] for n in superstep.mesh])
            shared = (
                ceil(c.parts / self.units)
                * self.limits.seconds([region.body[n] for n in c.positions], c.axes, c.parts)
                for c in superstep.tile_groups
            )
            found += sum(shared) + (self.limits.crossing if superstep.tile_groups else 0.0)
        return found

    def _communicating(self, cut: AxisClass, positions: Sequence[int]) -> int | None:
        key = id(cut), tuple(positions)
        if key not in self.counts:
            found = [self.statements[n] for n in positions]
            self.counts[key] = self.limits.communicating(cut, self.units, found)
        return self.counts[key]

    def _refusal(self, cut: AxisClass, parts: int | None, free: Sequence[int]) -> str:
        if cut.clash:
            return "two axes of one value are in the class"
        if parts is None:
            return f"no even number of parts: {cut.parts} over {self.units} units"
        if not free:
            return "other axes are cut already" if not cut.crossings else "every statement needs it whole"
        if not self._pays(free, cut.axes, parts):
            return "too little work for a barrier"
        return ""

    def _fits(self, cut: AxisClass, position: int, crossings: Sequence[Crossing]) -> bool:
        """True if the statement can be cut along the class. `crossings`: of the class, in the statement."""
        statement = self.statements[position]
        if isinstance(statement, UOperator):
            axes = [cut.axes.get(v) for v in statement.outputs]
            tie = rule(statement).along(axes)
            makes = any(c.makes for c in crossings)
            return tie is not None and not makes and self._stays_in_place(statement, tie.outputs[0], cut)
        if not isinstance(statement, (LoopUTask, BranchUTask)):
            return False
        if isinstance(statement, LoopUTask) and (statement.parallel or _has_groups(statement)):
            return False
        if any(c.makes or c.value not in self.made for c in crossings):
            return False
        if not any(v in cut.axes for v in statement.outputs):
            return False
        whole = work(statement)
        own = work_inside(statement, cut.axes)
        copied = [array for array, axis in _updated(statement, cut) if not self._is_own(array, axis, cut)]
        if sum(_copy(array).weight for array in copied) > whole.weight:
            return False
        return whole.weight - own.weight <= self.limits.again * whole.weight

    def _stays_in_place(self, operator: UOperator, axis: int, cut: AxisClass) -> bool:
        """False for a small update of a large array that cutting would turn into a copy. Of a light array,
        each part makes its own part."""
        if not _is_small_update(operator) or self.made.get(operator.inputs[0]) in self.light:
            return True
        return operator.kind == "dynamic_update_slice" and self._is_own(operator.inputs[0], axis, cut)

    def _is_own(self, array: Value, axis: int, cut: AxisClass) -> bool:
        """True if every part reads only its own part of the array, and results may overwrite the array: it
        is defined in the region or a parameter of it."""
        known = array in self.made or array in self.region.parameters
        if array in self.region.results or not known:
            return False
        readers = (self.statements[n] for n in self.readers.get(array, ()))
        return all(reads_own_part(s, array, axis, cut.axes) for s in readers)

    # -- supersteps ------------------------------------------------------------------------------------------
    def _supersteps(self) -> dict[int, int]:
        superstep: dict[int, int] = {}
        for position, needs in enumerate(self.needs):
            superstep[position] = max((self._ready(superstep, position, m, v) for m, v in needs), default=0)
        for position in reversed(range(len(self.statements)) if self.limits.delays else ()):
            superstep[position] = self._latest(superstep, position)
        return superstep

    def _latest(self, superstep: Mapping[int, int], position: int) -> int:
        """The superstep of the first readers for an element operator that nothing needs before, if computing
        it there saves more than it reads again: its own superstep would store what this one loads."""
        statement, now = self.statements[position], superstep[position]
        if position not in self.claims or not isinstance(statement, UOperator) or not statement.is_element:
            return now
        readers = self.readers.get(statement.outputs[0], ())
        then = min((superstep[n] for n in readers), default=now)
        first = [n for n in readers if superstep[n] == then]
        kept = not self.results.isdisjoint(statement.outputs)
        if then == now or kept or not all(self._is_local(n, position, statement.outputs[0]) for n in first):
            return now
        arrays = {v for v in statement.inputs if not v.type.is_scalar}
        again = [v for v in arrays if any(superstep[n] == now for n in self._touching(v) if n != position)]
        return now if len(again) > 1 else then

    def _touching(self, value: Value) -> list[int]:
        """The positions that make or read a value."""
        return [*self.readers.get(value, ()), *([self.made[value]] if value in self.made else ())]

    def _ready(self, superstep: Mapping[int, int], position: int, maker: int, value: Value) -> int:
        """The first superstep in which the statement can use the value."""
        crosses = maker in self.claims and not self._is_local(position, maker, value)
        return superstep[maker] + crosses

    def _is_local(self, position: int, maker: int, value: Value) -> bool:
        """True if the statement needs only its own part of a claimed value."""
        mine, other = self.claims.get(position), self.claims[maker]
        if mine is None or (mine.parts, mine.line) != (other.parts, other.line):
            return False
        statement = self.statements[position]
        if isinstance(statement, UOperator):
            tie = rule(statement).along([mine.axes[v] for v in statement.outputs])
            assert tie is not None
            axes = {axis for v, axis in zip(statement.inputs, tie.inputs, strict=True) if v == value}
            return axes == {other.axes.get(value, -1)}
        inside = {id(s) for s in walk(statement) if not regions_of(s)}
        eaten = any(c.value == value and id(c.leaf) in inside for c in mine.cut.crossings)
        return mine.number == other.number and value in other.axes and not eaten

    def _tile_groups(self, superstep: Mapping[int, int]) -> list[tuple[int, TileGroup]]:
        """(superstep, tile group), in order."""
        groups: dict[tuple[int, int, int], list[int]] = {}
        for position, choice in sorted(self.claims.items()):
            groups.setdefault((superstep[position], choice.parts, choice.line), []).append(position)
        found = []
        for (k, parts, line), together in sorted(groups.items()):
            for positions in self._apart(together):
                axes: dict[Value, int] = {}
                for n in positions:
                    axes.update(axes_inside(self.statements[n], self.claims[n].axes))
                tiling = Tiling(parts, rest_unit=(parts - bool(line)) % self.units, line=line)
                found.append((k, TileGroup(tuple(positions), axes, tiling)))
        return found

    def _apart(self, positions: Sequence[int]) -> Sequence[Sequence[int]]:
        """The positions, split into components that hold products and share no value. Each component can then
        be cut along its own second axis."""
        if not self.limits.has_grids:
            return (positions,)
        found = [list(positions)]
        if sum(self._multiplies((n,)) for n in positions) > 1:
            number = {n: k for k, n in enumerate(positions)}
            near: list[list[int]] = [[] for _ in positions]
            for k, n in enumerate(positions):
                for maker in {number[m] for v in self.reads[n] if (m := self.made.get(v)) in number}:
                    near[k].append(maker)
                    near[maker].append(k)
            found = [[positions[k] for k in c] for c in strong_components(near)]
        return sorted(found) if sum(map(self._multiplies, found)) > 1 else (positions,)

    def _multiplies(self, positions: Sequence[int]) -> bool:
        return any(is_a(self.statements[n], "dot") for n in positions)

    def _result(self, superstep: Mapping[int, int], tile_groups: Sequence[tuple[int, TileGroup]]) -> Division:
        count = 1 + max(superstep.values(), default=0)
        mesh: list[list[int]] = [[] for _ in range(count)]
        for position in range(len(self.statements)):
            if position not in self.claims:
                mesh[superstep[position]].append(position)
        supersteps = tuple(
            Superstep(tuple(mesh[k]), tuple(c for at, c in tile_groups if at == k)) for k in range(count)
        )
        return Division(supersteps, tuple(self.refused))


def _is_small_update(operator: UOperator) -> bool:
    if operator.kind not in UPDATES:
        return False
    array, update = operator.inputs[0], operator.inputs[operator.facts.updates]
    return update.type.size * 4 < array.type.size


def _updated(statement: Statement, cut: AxisClass) -> list[tuple[Value, int]]:
    """Outside arrays that a loop or a branch updates in small parts, with the axes of their new values."""
    found = [(root, v) for v in statement.outputs if v in cut.axes for root in _roots(v, (statement,)) - {v}]
    return [(root, cut.axes[v]) for root, v in found]


def _crossings_at(cut: AxisClass, heavy: Sequence[int]) -> dict[int, list[Crossing]]:
    """The crossings of a class by position. `heavy`: the positions of the statements that it knows."""
    found: dict[int, list[Crossing]] = {}
    for crossing in cut.crossings:
        found.setdefault(heavy[crossing.position], []).append(crossing)
    return found


def _roots(value: Value, body: Sequence[Statement]) -> frozenset[Value]:
    """The outside arrays that small updates turn into the value; the value itself if there are none."""
    maker = next((s for s in body if value in s.outputs), None)
    if isinstance(maker, UOperator) and _is_small_update(maker):
        return _roots(maker.inputs[0], body)
    if isinstance(maker, LoopUTask):
        place = maker.outputs.index(value)
        if maker.carried[place] in _roots(maker.body.results[place], maker.body.body):
            return _roots(maker.initial[place], body)
    if isinstance(maker, BranchUTask):
        place = maker.outputs.index(value)
        sides = (_roots(r.results[place], r.body).difference(definitions(r)) for r in maker.branches)
        outside = frozenset().union(*sides)
        if outside:
            return frozenset().union(*(_roots(v, body) for v in outside))
    return frozenset((value,))


def _copy(array: Value) -> Work:
    return Work(0.0, 2.0 * array.type.nbytes)


def _has_groups(statement: Statement) -> bool:
    return any(isinstance(s, BranchUTask) and s.stage is not None for s in walk(statement))


def axes_inside(statement: Statement, axes: Mapping[Value, int]) -> dict[Value, int]:
    """The axes of the values that the statement defines, nested regions included."""
    return {v: axes[v] for v in defined_in(statement) if v in axes}


def work_inside(statement: Statement, axes: Mapping[Value, int]) -> Work:
    """The work of a statement on values that are cut."""
    if isinstance(statement, UOperator):
        return work(statement) if any(v in axes for v in statement.outputs) else Work()
    inside = sum((work_inside(s, axes) for r in regions_of(statement) for s in r.body), Work())
    everything = total(s for r in regions_of(statement) for s in r.body)
    share = inside.weight / everything.weight if everything.weight else 1.0
    return work(statement) * share
