"""Placement: which work is divided over the units of a mesh (design, sections 1 and 1.1).

Regions are divided from the outside in. What a class of axes covers almost wholly, loops included, becomes
one parallel loop: the class is a *domain*, loops run inside its parts, and no barrier stands inside them. A
loop that no class covers stays at mesh level, and its body is divided: there the parts of a *split* axis meet
once per crossing. What stays at mesh level is done by every unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

from jax_cocktail.placement.access import reads_own_part
from jax_cocktail.placement.axes import rule
from jax_cocktail.placement.clusters import Cluster, divide, light_positions
from jax_cocktail.placement.cost import UNKNOWN_TRIPS
from jax_cocktail.placement.explain import cluster_notes, first_source, refusal_notes
from jax_cocktail.placement.groups import group_cluster, groups_of
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.parts import Packed
from jax_cocktail.placement.prune import prune
from jax_cocktail.placement.push_slices import push_slices
from jax_cocktail.placement.skeleton import skeleton
from jax_cocktail.placement.tile import Sources, pack, tile
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, UProgram, reads
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Source, Value

_FREE = frozenset({"constant", "broadcast", "reshape", "transpose", "slice", "iota"})


def place(
    program: UProgram,
    mesh: UnitMesh,
    notes: list[str] | None = None,
    limits: Limits = Limits(),  # noqa: B008 (a frozen value)
    remark: Listener = nobody,
) -> UProgram:
    """Returns its argument if no work is worth dividing. `notes` gets a sentence for every decision, and
    `remark` the same for the report."""
    if mesh.size < 2:
        return program
    notes = notes if notes is not None else []
    pushed = push_slices(program)
    placer = _Placer(pushed, mesh.size, limits, notes)
    entry = placer.region(pushed.entry, 1)
    for note in notes:
        remark(Remark("place", placer.placed > 0, note))
    return replace(program, entry=prune(entry)) if placer.placed else program


@dataclass(slots=True)
class _Frame:
    """A region on the way in: what it has emitted, what is visible in it, and how often it runs."""

    region: Region
    trips: int
    out: list[Statement] = field(default_factory=list)
    visible: set[Value] = field(default_factory=set)
    taken: int = 0  # units that stages of a wavefront have, counted on beyond the last one

    def emit(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            self.out.append(statement)
            self.visible.update(statement.outputs)


class _Placer:
    def __init__(self, program: UProgram, units: int, limits: Limits, notes: list[str]) -> None:
        self.fresh = FreshValues(program)
        self.units = units
        self.limits = limits
        self.notes = notes
        self.operands = frozenset(program.entry.parameters)
        self.placed = 0  # clusters
        self.frames: list[_Frame] = []
        self.recipes: dict[Value, UOperator] = {}
        self.packs: dict[tuple[Value, int, tuple[int, ...], int, int], Packed] = {}

    def region(self, region: Region, trips: int, loop: LoopUTask | None = None) -> Region:
        """`trips`: how often the region runs in one run of the region around it; `loop`: whose body it is."""
        body = region.body
        groups = groups_of(region)
        grouped = {n for positions in groups.values() for n in positions}
        division = divide(body, region.results, self.units, self.limits, grouped)
        outer, self.recipes = self.recipes, _recipes(self.recipes, body, self.limits)
        frame = _Frame(region, trips, visible=set(region.parameters))
        self.frames.append(frame)
        self.notes += cluster_notes(region, division, loop)
        inside: set[int] = set()
        for stage in division.stages:
            for position in stage.mesh:
                before = self.placed
                if position in groups and self._group(frame, groups[position]):
                    inside.update(groups[position])
                elif position not in inside:
                    frame.emit((self._mesh(body[position]),))
                    inside |= {position} if self.placed > before else set()
            for cluster in stage.clusters:
                self._cluster(frame, cluster)
        self.frames.pop()
        self.recipes = outer
        self.notes += refusal_notes(region, division, self.limits, frozenset(inside))
        return Region(region.parameters, tuple(frame.out), region.results)

    def _mesh(self, statement: Statement) -> Statement:
        """A statement that every unit executes; its regions are divided."""
        if isinstance(statement, LoopUTask) and not statement.parallel:
            trips = UNKNOWN_TRIPS if statement.trip_count is None else statement.trip_count
            return replace(statement, body=self.region(statement.body, trips, statement))
        if isinstance(statement, BranchUTask):
            return replace(statement, branches=tuple(self.region(r, 1) for r in statement.branches))
        return statement

    # -- clusters ----------------------------------------------------------------------------------------
    def _group(self, frame: _Frame, positions: Sequence[int]) -> bool:
        """Emits a stage of a wavefront on units of its own; False if its units would have to meet in it."""
        branch = frame.region.body[positions[0]]
        assert isinstance(branch, BranchUTask)
        number, count = branch.group
        cluster = group_cluster(frame.region, positions, self.units, self.limits)
        where = f"{branch.source}: " if str(branch.source) else ""
        if cluster is None:
            self.notes.append(
                f"{where}stage {number} of {count} is not divided as one: its units would meet in it"
            )
            return False
        first, frame.taken = frame.taken % self.units, frame.taken + cluster.parts
        self._cluster(frame, cluster, first)
        units = f"in {cluster.parts} parts from unit {first} on"
        self.notes.append(
            f"{where}stage {number} of {count} {units}, which meet all others once per diagonal"
        )
        return True

    def _cluster(self, frame: _Frame, cluster: Cluster, first: int = 0) -> None:
        body = frame.region.body
        statements = [body[n] for n in cluster.positions]
        others = [s for n, s in enumerate(body) if n not in cluster.positions]
        read = {v for s in others for v in reads(s)} | set(frame.region.results)
        for statement in statements:
            if any(v in read and v not in cluster.axes for v in statement.outputs):
                left = skeleton(statement, cluster.axes)
                frame.emit(() if left is None else (left,))
        results = tuple(v for s in statements for v in s.outputs if v in read and v in cluster.axes)
        if not results:
            return
        loop = tile(
            statements,
            results,
            cluster.axes,
            cluster.parts,
            self.fresh,
            first_source(statements),
            Sources(
                bases={
                    result: base
                    for result, base in _bases(
                        frame.region, statements, others, results, cluster.axes
                    ).items()
                    if self.limits.takes_operands or base not in self.operands
                },
                packed=self._packed(statements, cluster, first),
                recipes=self.recipes,
            ),
            first,
        )
        frame.emit(loop)
        self.placed += 1

    # -- packed operands ---------------------------------------------------------------------------------
    def _packed(
        self, statements: Sequence[Statement], cluster: Cluster, first: int
    ) -> Mapping[tuple[Value, int], Packed]:
        """Copies, by parts, of the matrices that a loop reads again and again by parts that are not dense."""
        found: dict[tuple[Value, int], Packed] = {}
        for statement in _dots(statements):
            if all(v not in cluster.axes for v in statement.outputs):
                continue
            tie = rule(statement).along([cluster.axes.get(v) for v in statement.outputs])
            assert tie is not None
            for side, value, axis in zip(("lhs", "rhs"), statement.inputs, tie.inputs, strict=True):
                dense = axis is not None and prod(value.type.shape[:axis]) == 1
                if axis is not None and (
                    not dense or value.type.nbytes / cluster.parts <= self.limits.dense_bytes
                ):
                    order = _reading_order(statement, side, value.type.rank, axis)
                    packed = self._pack(value, axis, order, (cluster.parts, first), statement.source)
                    if packed is not None:
                        found[value, axis] = packed
        return found

    def _pack(
        self, value: Value, axis: int, order: tuple[int, ...], where: tuple[int, int], source: Source
    ) -> Packed | None:
        """The packed copy, made in front of the outermost loop that does not change the value.

        `where`: the number of parts, and the unit that has the first.
        """
        home = next((k for k, frame in enumerate(self.frames) if value in frame.visible), None)
        if home is None or prod(f.trips for f in self.frames[home + 1 :]) < self.limits.pack_trips:
            return None
        parts, first = where
        key = (value, axis, order, parts, first)
        if key not in self.packs:
            copies, packed = pack(value, axis, parts, self.fresh, source, order, first)
            self.frames[home].emit(copies)
            self.packs[key] = packed
        return self.packs[key]


def _dots(statements: Sequence[Statement]) -> Iterator[UOperator]:
    """The products among statements and in branches; loops have had their turn where they were built."""
    for statement in statements:
        if isinstance(statement, UOperator) and statement.kind == "dot":
            yield statement
        elif isinstance(statement, BranchUTask):
            for region in statement.branches:
                yield from _dots(region.body)


def _reading_order(dot: UOperator, side: str, rank: int, axis: int) -> tuple[int, ...]:
    """The axes of a packed operand as a matrix product runs through them: one block of rows per column group.
    A product reads a block from end to end, so it stays in step with the prefetcher and touches few pages."""
    last = (*cast(tuple[int, ...], dot[f"{side}_contract"]), axis)
    if side == "lhs" or axis in cast(tuple[int, ...], dot[f"{side}_batch"]):
        return tuple(range(rank))
    return (*(d for d in range(rank) if d not in last), *last)


def _recipes(
    outer: Mapping[Value, UOperator], body: Sequence[Statement], limits: Limits
) -> dict[Value, UOperator]:
    """How to compute light values again; those from around a loop only if that costs nothing."""
    found = {v: o for v, o in outer.items() if o.kind in _FREE}
    for position in light_positions(body, limits.light):
        operator = body[position]
        assert isinstance(operator, UOperator)
        if not operator.output.type.is_scalar:
            found[operator.output] = operator
    return found


def _bases(
    region: Region,
    statements: Sequence[Statement],
    others: Sequence[Statement],
    results: Sequence[Value],
    axes: Mapping[Value, int],
) -> dict[Value, Value]:
    """For a result the array whose place it may take: one that only these statements read, at the own part.

    That is the carry that the result becomes, or what dynamic updates turn into the result.
    """
    elsewhere = {v for s in others for v in reads(s)} | set(region.results)
    defined = {v for s in others for v in s.outputs}
    makers = {s.output: s for s in statements if isinstance(s, UOperator) and len(s.outputs) == 1}
    carried = region.parameters[len(region.parameters) - len(region.results) :]
    found: dict[Value, Value] = {}
    for result in results:
        root = result
        while root in makers and makers[root].kind == "dynamic_update_slice":
            root = makers[root].inputs[0]
        candidates = [root] if root != result and root in defined | set(carried) else []
        if region.results.count(result) == 1 and len(carried) == len(region.results):
            candidates.append(carried[region.results.index(result)])
        for base in candidates:
            if base in elsewhere or base in found.values() or base.type != result.type:
                continue
            if all(reads_own_part(s, base, axes[result], axes) for s in statements):
                found[result] = base
                break
    return found
