"""Placement divides the work of a program over the units of a mesh (design, sections 1 and 1.1).

The pass goes from the outer regions to the inner ones. If one axis class covers nearly all work of some
statements, loops included, they become one parallel loop: the axis is independent, loops run inside its
tiles, and no barrier is needed there. A loop that no class covers stays at device scope, and its body is
divided: a communicating axis costs a barrier per crossing. Every unit executes the mesh statements.

    for t < T:                              parallel for p < 4:       (rows of h never need each other)
        h = tanh(x[t] + h @ w)      ->          for t < T:
                                                    h[p] = tanh(x[t, p] + h[p] @ w)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from jax_cocktail.analysis.access import reads_own_part
from jax_cocktail.analysis.parallel import scalar_constants
from jax_cocktail.analysis.trips import loop_with_unknown_trips, side_by_side
from jax_cocktail.cost.work import has_loop, sure_runs, total
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.placement.explain import (
    first_source,
    grid_note,
    refusal_notes,
    stage_note,
    tile_group_notes,
    trips_note,
)
from jax_cocktail.placement.grid import Grid, best_grid, divided, numbers_of_parts, same_grid
from jax_cocktail.placement.groups import NO_WAVE, Group, Wave, carried_by_parts, wave_of
from jax_cocktail.placement.light import is_light, light_positions
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.parts import Tiling
from jax_cocktail.placement.prune import prune, skeleton
from jax_cocktail.placement.push_slices import push_slices
from jax_cocktail.placement.tile import Sources, tile, updated, updated_arrays
from jax_cocktail.placement.tile_groups import Division, TileGroup, divide
from jax_cocktail.utask.builder import beginning
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    definitions,
    is_parallel,
    readers,
    regions_in,
)
from jax_cocktail.utask.operators import LEAVES, PRODUCTS, STATIC_VIEWS
from jax_cocktail.utask.printer import shape
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.rewrite import map_regions
from jax_cocktail.utask.substitute import FreshValues, replaced
from jax_cocktail.utask.types import NOWHERE, Value

# Recomputed wherever they are read. Reversed arrays cannot be loaded as vectors; each `empty` is a new array.
_FREE = STATIC_VIEWS - {"reverse"} | LEAVES - {"empty"}
_NOWHERE: Mapping[Value, Value] = {}


def place(
    program: UProgram,
    mesh: UnitMesh,
    notes: list[str] | None = None,
    limits: Limits = Limits(),  # noqa: B008 (a frozen value)
    remark: Listener = nobody,
) -> UProgram:
    """Returns its argument if no work is worth dividing, or if the cache of the only unit keeps what it reads
    again. `notes` and `remark` (for the report) receive a sentence for every decision."""
    if mesh.units == 1 and not any(limits.leaves_cache(region) for region in regions_in(program.entry)):
        return program
    notes = notes if notes is not None else []
    pushed = push_slices(program)
    placer = _Placer(pushed, mesh.units, limits, notes)
    entry = placer.region(pushed.entry, 1)
    for note in notes if placer.placed or mesh.units > 1 else ():
        remark(Remark("place", placer.placed > 0, note))
    return replace(program, entry=prune(entry)) if placer.placed else program


@dataclass(slots=True)
class _Frame:
    """A region that is being divided: its new statements, its visible values, and its number of runs."""

    region: Region
    trips: int
    out: list[Statement] = field(default_factory=list)
    visible: set[Value] = field(default_factory=set)
    places: Mapping[Value, Value] = field(default_factory=dict)
    kept: Collection[Value] = ()
    done: set[int] = field(default_factory=set)  # positions
    before: frozenset[int] = frozenset()  # positions in front of the superstep, hence of a barrier
    results: frozenset[Value] = frozenset()

    def __post_init__(self) -> None:
        self.results = frozenset(self.region.results)

    def is_read(self, value: Value, *but: Collection[int]) -> bool:
        """True if a statement at a position outside these collections reads the value."""
        return any(all(n not in each for each in but) for n in readers(self.region).get(value, ()))

    def is_needed(self, value: Value, positions: Collection[int]) -> bool:
        """True if the value is needed outside of the statements at these positions."""
        return value in self.results or self.is_read(value, positions)

    def emit(self, statements: Sequence[Statement]) -> None:
        self.out += statements
        self.visible.update(v for s in statements for v in s.outputs)


@dataclass(frozen=True, slots=True)
class _Work:
    """A tile group: `results` are its values that are cut and that outside statements need (`needed`)."""

    tile_group: TileGroup
    statements: Sequence[Statement]
    results: tuple[Value, ...]
    needed: frozenset[Value]
    sources: Sources

    def tiled(self, tiling: Tiling, fresh: FreshValues) -> tuple[Statement, ...]:
        """See `tile`."""
        axes, source = self.tile_group.axes, first_source(self.statements)
        return tile(self.statements, self.results, axes, tiling, fresh, source, self.sources)

    @property
    def extent(self) -> int:
        return min(v.type.shape[axis] for v, axis in self.tile_group.axes.items())

    @property
    def is_plain(self) -> bool:
        """True if a block takes the same time, whatever its shape."""
        return all(isinstance(s, UOperator) and s.kind not in PRODUCTS for s in self.statements)


class _Placer:
    def __init__(self, program: UProgram, units: int, limits: Limits, notes: list[str]) -> None:
        self.fresh = FreshValues(program)
        self.units = units
        self.limits = limits
        self.notes = notes
        self.operands = frozenset(program.entry.parameters)
        self.kept = _kept(program)
        self.constants = scalar_constants(program.entry)
        self.placed = 0  # number of tile groups
        self.frames: list[_Frame] = []
        self.divisions: dict[tuple[str, frozenset[int]], tuple[Region, Division]] = {}  # by shape and `kept`
        self.recipes: dict[Value, UOperator] = {}
        self.wide: dict[Value, Value] = {}  # results and carries of stages -> the padded arrays with them

    def region(
        self,
        region: Region,
        trips: int,
        loop: LoopUTask | None = None,
        wave: Wave = NO_WAVE,
        places: Mapping[Value, Value] = _NOWHERE,
    ) -> Region:
        """Divides a region. `trips`: runs of the region per run of the region around it; `loop`: the loop
        with this body; `wave`: its stages, in a loop over diagonals; `places`: arrays that results of a
        branch may overwrite."""
        body, groups = region.body, wave.groups
        grouped = {n for group in groups.values() for n in group.positions}
        division = self._division(region, frozenset(grouped))
        outer, self.recipes = self.recipes, _recipes(self.recipes, body, self.limits)
        frame = _Frame(region, trips, visible=set(region.parameters), places=places, kept=self.kept)
        self.frames.append(frame)
        for carry, wide in wave.parameters.items():
            frame.emit((beginning(wide, carry, NOWHERE),))
        self.wide |= wave.arrays
        self.notes += tile_group_notes(region, division, loop)
        grids = self._grids(frame, division)
        inside: set[int] = set()
        for stage in division.supersteps:
            frame.before = frozenset(frame.done if self.limits.meets else ())
            for position in stage.mesh:
                before = self.placed
                if position in groups and self._group(frame, groups[position]):
                    inside.update(groups[position].positions)
                elif position not in inside:
                    frame.emit(self._mesh(body[position]))
                    inside |= {position} if self.placed > before else set()
                frame.done.add(position)
            for tile_group in stage.tile_groups:
                self._tile_group(frame, tile_group, grids.get(tile_group.positions))
                frame.done.update(tile_group.positions)
        self.frames.pop()
        self.recipes = outer
        self.notes += refusal_notes(region, division, self.limits, frozenset(inside))
        parameters = replaced(region.parameters, wave.parameters)
        return Region(parameters, tuple(frame.out), wave.results(region.results))

    def _division(self, region: Region, kept: frozenset[int]) -> Division:
        """Divides nested regions of one shape once: those of repeated layers differ in their values alone."""
        if not self.frames:
            return divide(region, self.units, self.limits, kept)
        key = shape(region), kept
        if key not in self.divisions:
            self.divisions[key] = region, divide(region, self.units, self.limits, kept)
        home, division = self.divisions[key]
        return division if home is region else division.moved(home, region)

    def _mesh(self, statement: Statement) -> tuple[Statement, ...]:
        """A statement that every unit executes, with divided regions and the statements that they need."""
        if isinstance(statement, LoopUTask) and not statement.parallel:
            if (parallel := loop_with_unknown_trips(statement, self.units, self.constants)) is not None:
                return self._trips(parallel)
            wave, before = wave_of(statement, self.units, self.limits, self.fresh), self.placed
            body = self.region(statement.body, sure_runs(statement), statement, wave)
            if self.placed == before and self.limits.pays((statement,)):
                parallel = side_by_side(statement, self.constants)
                if parallel is not None:
                    return self._trips(parallel)
            return carried_by_parts(statement, body, wave, self.fresh, self.recipes)
        if isinstance(statement, BranchUTask):
            return (map_regions(statement, lambda r: self.region(r, 1, places=_replaced(statement, r))),)
        return (statement,)

    def _trips(self, loop: LoopUTask) -> tuple[Statement, ...]:
        self.placed += 1
        self.notes.append(trips_note(loop))
        return (loop,)

    # -- tile groups ----------------------------------------------------------------------------------------
    def _group(self, frame: _Frame, group: Group) -> bool:
        """Emits a stage of a wavefront on units of its own; False if it would need a barrier inside."""
        self.notes.append(stage_note(frame.region.body[group.positions[0]], group))
        if group.tile_group is None:
            return False
        self._tile_group(frame, group.tile_group)
        return True

    def _tile_group(self, frame: _Frame, tile_group: TileGroup, grid: Grid | None = None) -> None:
        """Emits a tile group, in blocks of two axes if there is a grid and blocks are independent."""
        work = self._work(frame, tile_group)
        for statement in work.statements:
            if any(v in work.needed and v not in tile_group.axes for v in statement.outputs):
                frame.emit(skeleton(statement, tile_group.axes))
        if not work.results:
            return
        blocks = None
        if grid is not None:
            recipes = self._recomputed(frame, work, grid.tiling.across)
            blocks = divided(work.tiled(grid.tiling, self.fresh), grid, self.fresh, self.limits, recipes)
        if grid is not None and blocks is not None:
            self.notes.append(grid_note(work.statements, work.results, grid))
            frame.emit(blocks)
        else:
            frame.emit(work.tiled(tile_group.tiling, self.fresh))
        self.placed += 1

    def _recomputed(self, frame: _Frame, work: _Work, blocks: int) -> dict[Value, UOperator]:
        """The operators at device scope whose results one unit would write for all others, but of which the
        part of one block is light. It reads no more than that part of the result would take to fetch."""
        claimed = {v for s in frame.out if is_parallel(s) for v in s.outputs}
        claimed |= set(work.sources.bases.values())
        whole = {id(s) for s in frame.out}  # not those of another tile group
        return {
            s.output: s
            for s in frame.region.body
            if id(s) in whole
            and is_light(s, blocks * self.limits.light)
            and isinstance(s, UOperator)
            and s.output.type.nbytes > PROGRAM.replicated_bytes
            and claimed.isdisjoint((s.output, *s.inputs))
        }

    def _work(self, frame: _Frame, tile_group: TileGroup) -> _Work:
        body, length = frame.region.body, tile_group.tiling.length
        statements = [body[n] for n in tile_group.positions]
        own = frozenset(tile_group.positions)
        needed = frozenset(v for s in statements for v in s.outputs if frame.is_needed(v, own))
        results = tuple(v for s in statements for v in s.outputs if v in needed and v in tile_group.axes)
        if length:
            self.wide = {r: self._wide(r, tile_group) for r in results} | self.wide
        bases = _bases(frame, tile_group, results, self.recipes)
        kept = {r: base for r, base in bases.items() if self._takes(base, length)}
        sources = Sources(kept, recipes=self.recipes, wide=self.wide)
        return _Work(tile_group, statements, results, needed, sources)

    def _grids(self, frame: _Frame, division: Division) -> dict[tuple[int, ...], Grid]:
        """The grids of tile groups, by their positions. Tile groups without products take the grid of the
        largest tile group with as many parts: different blocks would need a barrier in between."""
        found: dict[tuple[int, ...], Grid] = {}
        if not self.limits.has_grids:
            return found
        works = [work for c in division.tile_groups if (work := self._work(frame, c)).results]
        for work in sorted(works, key=lambda w: -total(w.statements).weight):
            parts = work.tile_group.parts
            numbers = numbers_of_parts(parts, work.extent, self.units)
            grid = best_grid(work.tiled, numbers, self.units, self._is_steady, self.limits)
            if grid is None:
                continue
            found[work.tile_group.positions] = grid
            for other in (w for w in works if w.tile_group.parts == parts and w.is_plain):
                follows = same_grid(other.tiled, grid, self.limits)
                if follows is not None:
                    found.setdefault(other.tile_group.positions, follows)
        return found

    def _is_steady(self, value: Value) -> bool:
        """True if the region runs repeatedly on the same value."""
        home = next((k for k, frame in enumerate(self.frames) if value in frame.visible), None)
        return home is not None and prod(f.trips for f in self.frames[home + 1 :]) > 1

    def _wide(self, result: Value, tile_group: TileGroup) -> Value:
        """The padded array that holds a result of wide parts."""
        return self.fresh.make(result.type.resized(tile_group.axes[result], tile_group.tiling.reach))

    def _takes(self, base: Value, length: int) -> bool:
        """True if a result may overwrite this array."""
        if length and base not in self.wide:
            return False
        return self.limits.takes_operands or base not in self.operands


def _kept(program: UProgram) -> frozenset[Value]:
    """The operands that their caller may need again: all but those that are donated. Of a program with loops,
    which carry copies of their operands anyway, nobody says which these are."""
    parameters = program.entry.parameters
    loops = any(map(has_loop, program.entry.body))
    return frozenset(parameters) - (set() if loops else {parameters[n] for n in program.donated})


def _recipes(
    outer: Mapping[Value, UOperator], body: Sequence[Statement], limits: Limits
) -> dict[Value, UOperator]:
    """The operators that recompute light values; for values from outside a loop, only free operators."""
    found = {v: o for v, o in outer.items() if o.kind in _FREE}
    for position in light_positions(body, limits.light):
        operator = body[position]
        assert isinstance(operator, UOperator)
        if not operator.output.type.is_scalar:
            found[operator.output] = operator
    return found


def _replaced(branch: BranchUTask, region: Region) -> dict[Value, Value]:
    """Results of a region of a branch -> values that another region returns unchanged. A result may overwrite
    such a value if nothing reads it later; then neither region copies."""
    made, times = definitions(region), Counter(region.results)
    found: dict[Value, Value] = {}
    for other in branch.branches:
        inside = definitions(other)
        for result, value in zip(region.results, other.results, strict=True):
            if result in made and value not in inside and times[result] == 1:
                found.setdefault(result, value)
    return found


def _bases(
    frame: _Frame, tile_group: TileGroup, results: Sequence[Value], recipes: Mapping[Value, UOperator]
) -> dict[Value, Value]:
    """For each result, the array that it may overwrite: from this superstep on only these statements read it,
    each part its own. After reads in the same superstep it would take one more barrier.

    Candidates are the array that dynamic updates turn into the result, the carry that the result becomes, and
    the value that the other region of a branch returns. The last may have been read before, and parts may
    read it again to recompute light operands (`recipes`). An operand that the caller may keep is no carry:
    overwriting it would take a copy.
    """
    region = frame.region
    own, axes = frozenset(tile_group.positions), tile_group.axes
    statements = [region.body[n] for n in tile_group.positions]
    inside = {v for s in statements for v in s.outputs}
    carried = region.parameters[len(region.parameters) - len(region.results) :]
    are_carries, parameters = len(carried) == len(region.results), frozenset(carried)
    becomes, times = dict(zip(region.results, carried, strict=False)), Counter(region.results)
    arrays = updated_arrays(statements)
    found, taken = dict[Value, Value](), set[Value]()
    for result in results:
        root = updated(result, arrays)[-1]
        known = root in parameters or (root in definitions(frame.region) and root not in inside)
        candidates = [root] if root != result and known else []
        if times[result] == 1 and are_carries:
            carry = becomes[result]
            candidates += [carry] if carry not in frame.kept else []
        place = frame.places.get(result)
        candidates += [place] if place is not None and not frame.is_read(place, own, frame.done) else []
        for base in candidates:
            needed = base in frame.results or frame.is_read(base, own, frame.before)
            if (needed and base != place) or base in taken or base.type != result.type:
                continue
            if all(reads_own_part(s, base, axes[result], axes, recipes) for s in statements):
                found[result] = base
                taken.add(base)
                break
    return found
