"""Clusters: which statements of a region are cut into parts, along which class, and in which order.

A statement whose results are in a class that was chosen is *claimed*: it becomes part of a parallel loop. All
others stay at mesh level. Stages alternate: mesh statements of stage 0, clusters of stage 0, mesh statements
of stage 1 ... A statement that needs more than its own part of a claimed value is one stage later, so every
boundary between two stages is one crossing, and a claimed statement is as early as it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import cast

from jax_cocktail.placement.access import reads_own_part
from jax_cocktail.placement.axes import rule
from jax_cocktail.placement.classes import AxisClass, axis_classes
from jax_cocktail.placement.cost import Work, total, work
from jax_cocktail.placement.reuse import Cache, streaming_seconds
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Statement, UOperator, reads, regions_of
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class Limits:
    """When cutting pays.

    `flops`, `bytes`: one execution of a cluster needs one of them (its barrier costs about 0.25 us on two
    cores); `again`: share of a nested uTask's work that may be computed again in every part; `balance`:
    least share of the units that are busy; `most`: parts per unit; `least_part`: length of parts from which
    they need not divide the axis; `light`: flops up to which a value is computed again rather than stored;
    `pack_trips`: trips of a loop from which packing its weights pays; `lanes`: output features of a
    convolution that one part needs at least; `cache`: what decides how many domains an axis becomes.
    """

    flops: float = 20000
    bytes: float = 64 << 10
    again: float = 0.1
    balance: float = 0.7
    most: int = 4
    least_part: int = 16
    light: float = 4096
    pack_trips: int = 32
    lanes: int = 16
    cache: Cache = Cache()

    def suffices(self, amount: Work) -> bool:
        return amount.flops >= self.flops or amount.bytes >= self.bytes

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


@dataclass(frozen=True, slots=True)
class Choice:
    """A class and the number of parts that it is cut into. Equal `number`, same class."""

    number: int
    cut: AxisClass
    parts: int

    @property
    def axes(self) -> Mapping[Value, int]:
        return self.cut.axes


@dataclass(frozen=True, slots=True)
class Cluster:
    """Positions of statements that become one parallel loop."""

    positions: tuple[int, ...]
    axes: Mapping[Value, int]
    parts: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Mesh statements, then clusters; the clusters do not depend on each other."""

    mesh: tuple[int, ...]
    clusters: tuple[Cluster, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """The stages of a region, and the classes that are not cut, most work first, with the reasons."""

    stages: tuple[Stage, ...]
    refused: tuple[tuple[AxisClass, str], ...] = ()

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        return tuple(c for stage in self.stages for c in stage.clusters)

    @property
    def cluster_of(self) -> dict[int, Cluster]:
        """The cluster of every claimed position."""
        return {n: cluster for cluster in self.clusters for n in cluster.positions}

    @property
    def meetings(self) -> int:
        """Stages whose parts meet afterwards: barriers of one run of the region, inner loops aside."""
        return sum(bool(stage.clusters) for stage in self.stages)


def has_loop(statement: Statement) -> bool:
    inner = (s for region in regions_of(statement) for s in region.body)
    return isinstance(statement, LoopUTask) or any(map(has_loop, inner))


def is_light(statement: Statement, limit: float) -> bool:
    """True if a value is computed again wherever a part of it is needed."""
    return (
        isinstance(statement, UOperator)
        and statement.is_element
        and len(statement.outputs) == 1
        and work(statement).flops <= limit
    )


def light_positions(statements: Sequence[Statement], limit: float) -> frozenset[int]:
    """Light statements that depend on light statements and outside values alone."""
    heavy: set[Value] = set()
    found = set()
    for position, statement in enumerate(statements):
        if is_light(statement, limit) and heavy.isdisjoint(statement.inputs):
            found.add(position)
        else:
            heavy.update(statement.outputs)
    return frozenset(found)


def divide(statements: Sequence[Statement], results: Sequence[Value], units: int, limits: Limits) -> Division:
    """Chooses classes, most work first, and stages the region."""
    return _Divider(statements, results, units, limits).divide()


class _Divider:
    def __init__(
        self, statements: Sequence[Statement], results: Sequence[Value], units: int, limits: Limits
    ) -> None:
        self.statements = statements
        self.units = units
        self.limits = limits
        self.light = light_positions(statements, limits.light)
        self.made = {v: n for n, s in enumerate(statements) for v in s.outputs}
        self.results = frozenset(results)
        self.claims: dict[int, Choice] = {}
        self.refused: list[tuple[AxisClass, str]] = []

    def divide(self) -> Division:
        self._claim()
        while self.claims:
            stage = self._stages()
            clusters = self._clusters(stage)
            weak = [(k, c) for k, c in clusters if not self.limits.suffices(self._work(c.positions))]
            if not weak:
                break
            _, worst = min(weak, key=lambda pair: self._work(pair[1].positions).weight)
            for position in worst.positions:
                del self.claims[position]
        return self._result()

    def _work(self, positions: Sequence[int]) -> Work:
        return total(self.statements[n] for n in positions)

    # -- claims ------------------------------------------------------------------------------------------
    def _claim(self) -> None:
        heavy = [n for n in range(len(self.statements)) if n not in self.light]
        classes = axis_classes([self.statements[n] for n in heavy])
        offers = []
        for cut in classes:
            places = {heavy[c.position] for c in cut.crossings}
            members = {n for n in heavy if any(v in cut.axes for v in self.statements[n].outputs)}
            fitting = [n for n in sorted(members) if self._fits(cut, n, heavy)]
            offers.append((self._work(fitting), len(places), cut, fitting))
        offers.sort(key=lambda offer: (-offer[0].weight, self._streams(offer), -len(offer[2].axes), offer[1]))
        for number, (_, _, cut, fitting) in enumerate(offers):
            free = [n for n in fitting if n not in self.claims]
            loops = [n for n in free if has_loop(self.statements[n])]
            parts = self._domains(cut, loops)[1] if loops else self.limits.parts(cut, self.units)
            if parts is None and loops:  # a loop over what is left over would take too long
                parts = self.limits.parts(cut, self.units)
                free = [n for n in free if n not in loops]
            chosen = [self.statements[n] for n in free]
            if parts is not None and not self.limits.fills_lanes(cut, parts, chosen):
                parts = None
            why = self._refusal(cut, parts, free)
            if why or parts is None:
                self.refused.append((cut, why))
                continue
            choice = Choice(number, cut, parts)
            self.claims.update(dict.fromkeys(free, choice))

    def _streams(self, offer: tuple[Work, int, AxisClass, list[int]]) -> float:
        """Seconds that the loops of an offer lose on data that they cannot keep close."""
        return self._domains(offer[2], offer[3])[0]

    def _domains(self, cut: AxisClass, positions: Sequence[int]) -> tuple[float, int | None]:
        """The number of domains whose loops keep the most in cache, and what they lose then."""
        loops = [self.statements[n] for n in positions if has_loop(self.statements[n])]
        if not loops or not self.limits.even_parts(cut, self.units, self.limits.most * self.units):
            return 0.0, None
        offers = [
            (streaming_seconds(loops, cut.axes, n, self.units, self.limits.cache), n)
            for n in self.limits.even_parts(cut, self.units, cut.parts)
        ]
        return min(offers, default=(inf, None))

    def _refusal(self, cut: AxisClass, parts: int | None, free: Sequence[int]) -> str:
        if cut.clash:
            return "two axes of one value are in the class"
        if parts is None:
            return f"no even number of parts: {cut.parts} over {self.units} units"
        if not free:
            return "other axes are cut already" if not cut.crossings else "every statement needs it whole"
        if not self.limits.suffices(self._work(free)):
            return "too little work for a barrier"
        return ""

    def _fits(self, cut: AxisClass, position: int, heavy: Sequence[int]) -> bool:
        """True if the statement can be computed by parts of the class."""
        statement = self.statements[position]
        crossings = [c for c in cut.crossings if heavy[c.position] == position]
        if isinstance(statement, UOperator):
            axes = [cut.axes.get(v) for v in statement.outputs]
            tie = rule(statement).along(axes)
            makes = any(c.makes for c in crossings)
            return tie is not None and not makes and self._stays_in_place(statement, tie.outputs[0], cut)
        if not isinstance(statement, (LoopUTask, BranchUTask)):
            return False
        if isinstance(statement, LoopUTask) and statement.parallel:
            return False
        if any(c.makes or c.value not in self.made for c in crossings):
            return False
        if not any(v in cut.axes for v in statement.outputs):
            return False
        whole = work(statement)
        own = _work_inside(statement, cut.axes)
        return whole.weight - own.weight <= self.limits.again * whole.weight

    def _stays_in_place(self, operator: UOperator, axis: int, cut: AxisClass) -> bool:
        """False for a small update of a large array that would be copied, if it were made by parts."""
        if operator.kind not in ("scatter", "dynamic_update_slice"):
            return True
        array, update = operator.inputs[0], operator.inputs[-1 if operator.kind == "scatter" else 1]
        if update.type.size * 4 >= array.type.size:
            return True
        readers = [s for s in self.statements if array in reads(s)]
        alone = array not in self.results
        own = all(reads_own_part(s, array, axis, cut.axes) for s in readers)
        return operator.kind == "dynamic_update_slice" and alone and own

    # -- stages ------------------------------------------------------------------------------------------
    def _stages(self) -> dict[int, int]:
        stage: dict[int, int] = {}
        for position, statement in enumerate(self.statements):
            stage[position] = max((self._ready(stage, position, v) for v in reads(statement)), default=0)
        return stage

    def _ready(self, stage: Mapping[int, int], position: int, value: Value) -> int:
        """The stage from which the statement can use the value."""
        maker = self.made.get(value)
        if maker is None:
            return 0
        if maker not in self.claims:
            return stage[maker]
        return stage[maker] + (0 if self._is_local(position, maker, value) else 1)

    def _is_local(self, position: int, maker: int, value: Value) -> bool:
        """True if the statement needs only its own part of a claimed value."""
        mine, other = self.claims.get(position), self.claims[maker]
        if mine is None or mine.parts != other.parts:
            return False
        statement = self.statements[position]
        if isinstance(statement, UOperator):
            tie = rule(statement).along([mine.axes[v] for v in statement.outputs])
            assert tie is not None
            axes = {axis for v, axis in zip(statement.inputs, tie.inputs, strict=True) if v == value}
            return axes == {other.axes.get(value, -1)}
        inside = {id(s) for s in _leaves(statement)}
        eaten = any(c.value == value and id(c.leaf) in inside for c in mine.cut.crossings)
        return mine.number == other.number and value in other.axes and not eaten

    def _clusters(self, stage: Mapping[int, int]) -> list[tuple[int, Cluster]]:
        """(stage, cluster), in order."""
        groups: dict[tuple[int, int], list[int]] = {}
        for position, choice in sorted(self.claims.items()):
            groups.setdefault((stage[position], choice.parts), []).append(position)
        found = []
        for (k, parts), positions in sorted(groups.items()):
            axes: dict[Value, int] = {}
            for n in positions:
                axes.update(_axes_inside(self.statements[n], self.claims[n].axes))
            found.append((k, Cluster(tuple(positions), axes, parts)))
        return found

    def _result(self) -> Division:
        stage = self._stages()
        clusters = self._clusters(stage)
        count = 1 + max(stage.values(), default=0)
        mesh: list[list[int]] = [[] for _ in range(count)]
        for position in range(len(self.statements)):
            if position not in self.claims:
                mesh[stage[position]].append(position)
        stages = tuple(Stage(tuple(mesh[k]), tuple(c for at, c in clusters if at == k)) for k in range(count))
        return Division(stages, tuple(self.refused))


def _leaves(statement: Statement) -> list[Statement]:
    if not regions_of(statement):
        return [statement]
    return [leaf for region in regions_of(statement) for s in region.body for leaf in _leaves(s)]


def _walk_values(statement: Statement, visit: Callable[[Sequence[Value]], None]) -> None:
    visit(statement.outputs)
    for region in regions_of(statement):
        visit(region.parameters)
        for inner in region.body:
            _walk_values(inner, visit)


def _axes_inside(statement: Statement, axes: Mapping[Value, int]) -> dict[Value, int]:
    """The axes of the values that the statement makes, nested regions included."""
    found: dict[Value, int] = {}

    def visit(values: Sequence[Value]) -> None:
        found.update({v: axes[v] for v in values if v in axes})

    _walk_values(statement, visit)
    return found


def _work_inside(statement: Statement, axes: Mapping[Value, int]) -> Work:
    """The work of a statement on values that are cut."""
    if isinstance(statement, UOperator):
        return work(statement) if any(v in axes for v in statement.outputs) else Work()
    inside = sum((_work_inside(s, axes) for r in regions_of(statement) for s in r.body), Work())
    everything = total(s for r in regions_of(statement) for s in r.body)
    share = inside.weight / everything.weight if everything.weight else 1.0
    return work(statement) * share
