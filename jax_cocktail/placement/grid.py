"""2-D tiling: a tile that is also independent along a second axis is divided into blocks.

A tile group is cut along one axis class. If its parts need no communication along another class either, one
parallel loop makes both cuts: trip t computes block ``t % across`` of part ``t // across``. So batch rows
times heads fill a GPU that neither fills alone, and a group of units reads a group of rows instead of all
rows. The barriers stay: a block depends on others along one axis or the other.

The second class is found in the tiled part, whose statements are cut like any others. A grid is given up if
the trips of its loop cannot be proven independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from jax_cocktail.analysis.access import Recipes, reads_own_part
from jax_cocktail.analysis.axes import Tie
from jax_cocktail.analysis.classes import AxisClass, axis_classes
from jax_cocktail.analysis.parallel import parallel_fault
from jax_cocktail.cost.work import Work, has_loop, total
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.placement.light import is_light
from jax_cocktail.placement.limits import GridOffer, Limits
from jax_cocktail.placement.parts import Tiling, blocks_of
from jax_cocktail.placement.tile import Sources, Tiler
from jax_cocktail.placement.tile_groups import work_inside
from jax_cocktail.utask.builder import INDEX
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, is_parallel
from jax_cocktail.utask.layout import divisors
from jax_cocktail.utask.operators import FREE
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value

Trial = Callable[[Tiling, FreshValues], Sequence[Statement]]  # tiles some statements
Steady = Callable[[Value], bool]


@dataclass(frozen=True, slots=True)
class Grid:
    """Parts along the class of a tile group, each in blocks across it along these `axes` of the results."""

    tiling: Tiling
    axes: tuple[int, ...]
    extent: int  # the most blocks of a part


def numbers_of_parts(parts: int, extent: int, units: int) -> list[int]:
    """Candidate numbers of parts along a first axis of length `extent`, for which 1-D tiling takes `parts`:
    the divisors of `parts`, and, if `parts` leaves a remainder, other numbers with a small remainder."""
    found = set(divisors(parts)[1:])
    if extent % parts:
        others = {units // groups for groups in range(2, BLOCK.most_groups + 1)}
        found |= {n for n in others if 1 < n < parts and extent % n * BLOCK.small_rest <= extent // n}
    return sorted(found, reverse=True)


def best_grid(
    tiled: Trial, numbers: Sequence[int], units: int, steady: Steady, limits: Limits
) -> Grid | None:
    """The grid for a tile group, or None if one axis with the first of `numbers` parts is best.

    `tiled`: tiles the tile group. `steady`: True if an outside value stays the same
    while the loop runs repeatedly.
    """
    if not limits.has_grids:
        return None
    offers: list[GridOffer] = []
    axes: dict[int, tuple[int, ...]] = {}
    for number in numbers:
        part = _Part.of(_loop_of(tiled(Tiling(number), _Scratch())), limits)
        ways, far = part.ways(limits), part.far(steady)
        if number == numbers[0]:
            offers.append(GridOffer(part.heavy, far, number))
        if not ways:
            break  # larger parts have no such classes either
        for cut in ways:
            axes[len(offers)] = part.cut_along(cut)
            offers.append(GridOffer(part.heavy, far, number, cut))
    found = limits.grid(offers, units)
    if found is None:
        return None
    number, across = found
    offer = offers[number]
    assert offer.cut is not None
    return Grid(Tiling(offer.parts, across=across), axes[number], offer.cut.parts)


def same_grid(tiled: Trial, grid: Grid, limits: Limits) -> Grid | None:
    """The grid of another tile group for this one; None if this one cannot be cut that way."""
    part = _Part.of(_loop_of(tiled(Tiling(grid.tiling.parts), _Scratch())), limits)
    cuts = (cut for cut in part.ways(limits) if cut.parts == grid.extent)
    return next((replace(grid, axes=part.cut_along(cut)) for cut in cuts), None)


def divided(
    statements: Sequence[Statement], grid: Grid, fresh: FreshValues, limits: Limits, recipes: Recipes
) -> tuple[Statement, ...] | None:
    """The statements with the work of each part divided among the trips across it; None if the blocks
    are not independent. `recipes`: operators of which each block recomputes the part that it reads."""
    loop = _loop_of(statements)
    part = _Part.of(loop, limits)
    cut = next((c for c in part.ways(limits) if part.cut_along(c) == grid.axes), None)
    across = grid.tiling.across
    if cut is None or not blocks_of(cut, across):
        return None
    before, shared = part.shared(cut, across, fresh, recipes)
    if parallel_fault(shared):
        return None
    return tuple(s for old in statements for s in ((*before, shared) if old is loop else (old,)))


class _Scratch(FreshValues):
    """Makes values for a trial that enters no program."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = count(1 << 48)


def _loop_of(statements: Sequence[Statement]) -> LoopUTask:
    return next(s for s in statements if is_parallel(s))


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a tile group. `light`: reads of values, and operators that each reader recomputes; they do
    not depend on values that the parts write. `heavy`: the other statements."""

    loop: LoopUTask
    light: Mapping[Value, UOperator]
    heavy: tuple[Statement, ...]

    @classmethod
    def of(cls, loop: LoopUTask, limits: Limits) -> _Part:
        light: dict[Value, UOperator] = {}
        heavy: list[Statement] = []
        own = set(loop.carried)
        for statement in loop.body.body:
            if _is_light(statement, limits) and own.isdisjoint(statement.inputs):
                assert isinstance(statement, UOperator)
                light[statement.output] = statement
            else:
                heavy.append(statement)
                own.update(statement.outputs)
        return cls(loop, light, tuple(heavy))

    def far(self, steady: Steady) -> frozenset[Value]:
        """Values fetched from other units or from further away every time; none if loops reread them."""
        if any(map(has_loop, self.heavy)):
            return frozenset()
        inside = {v for s in self.loop.body.body for v in s.outputs} | {*self.loop.body.parameters}
        far: set[Value] = set()
        for statement in self.loop.body.body:
            if isinstance(statement, UOperator):
                far.update(v for v in statement.inputs if v not in inside and not steady(v))
                if statement.kind in FREE and not far.isdisjoint(statement.inputs):
                    far.update(statement.outputs)
        return frozenset(far)

    def ways(self, limits: Limits) -> list[AxisClass]:
        """The classes along which a part can be cut into independent blocks."""
        free = [cut for cut in axis_classes(self.heavy) if not cut.clash and not cut.crossings]
        whole = [cut if self._has_results(cut) else _joined(cut, free) for cut in free]
        found = {self.cut_along(cut): cut for cut in reversed(whole) if self._has_results(cut)}
        return [cut for cut in reversed(found.values()) if self._falls_apart(cut, limits)]

    def _has_results(self, cut: AxisClass) -> bool:
        return all(v in cut.axes for v in self.loop.body.results)

    def _falls_apart(self, cut: AxisClass, limits: Limits) -> bool:
        arrays = zip(self.loop.carried, self.cut_along(cut), strict=True)
        if not all(reads_own_part(s, v, axis, cut.axes) for v, axis in arrays for s in self.heavy):
            return False
        whole, inside = total(self.heavy), sum((work_inside(s, cut.axes) for s in self.heavy), Work())
        return whole.weight - inside.weight <= limits.again * whole.weight

    def cut_along(self, cut: AxisClass) -> tuple[int, ...]:
        """The axis of every result."""
        return tuple(cut.axes[v] for v in self.loop.body.results)

    def shared(
        self, cut: AxisClass, across: int, fresh: FreshValues, recipes: Recipes
    ) -> tuple[list[Statement], LoopUTask]:
        """The statements before the loop, and the loop whose trips share each part."""
        loop, body = self.loop, self.loop.body
        assert loop.index is not None
        bases = dict(zip(body.results, loop.carried, strict=True))
        light = {v: o for v, o in self.light.items() if not v.type.is_scalar}
        sources = Sources(bases=bases, recipes={**recipes, **light})
        tilings = blocks_of(cut, across)
        tilers = [_Across(cut.axes, each, fresh, loop.source, sources) for each in tilings]
        counted: list[Statement] = []
        build = tilers[0].at(counted)
        block = build.emit("rem", (loop.index, build.constant(across)), INDEX)
        parameters = fresh.like(loop.carried)
        sides = [tiler.block(block, self.heavy, body.results, parameters) for tiler in tilers]
        inside, written = sides[0].body, sides[0].results
        if len(sides) > 1:
            last = build.convert(build.binary("div", block, build.constant(tilings[0].parts)), "int32")
            written = fresh.like(parameters)
            inside = (BranchUTask(last, tuple(sides), written, loop.source),)
        changed = Region((loop.index, *parameters), (*self.light.values(), *counted, *inside), written)
        return [s for tiler in tilers for s in tiler.before], replace(loop, body=changed)


def _joined(cut: AxisClass, others: Sequence[AxisClass]) -> AxisClass:
    """The class joined with other classes of as many parts, whose axes no rule ties to its own."""
    axes, extents, outside = dict(cut.axes), cut.extents, cut.outside
    for other in others:
        if other.parts == cut.parts and axes.keys().isdisjoint(other.axes):
            axes.update(other.axes)
            extents, outside = extents | other.extents, outside | other.outside
    return AxisClass(axes, cut.parts, extents=extents, outside=outside)


class _Across(Tiler):
    """Cuts a part into blocks. The last one may be shorter, and begins where an equal one would."""

    def block(
        self, number: Value, statements: Sequence[Statement], results: Sequence[Value], into: Sequence[Value]
    ) -> Region:
        """The work of the block with this number: it writes its part of the results into arrays."""
        self.index = number
        written = self.run(statements, results, into)
        return Region((), (*self.first, *self.out), written)

    def start(self, extent: int) -> Value:
        return self.counted(extent)

    def emit_parts(self, operator: UOperator, tie: Tie | None, where: list[Statement]) -> tuple[Value, ...]:
        """Reads the part of an array that this loop writes as one block, not as a slice of a slice."""
        if tie is not None and operator.kind == "dynamic_slice":
            array, axis = operator.inputs[0], tie.outputs[0]
            if array in self.own:
                return (self.slice_part(operator, self.own[array][0], axis, self.first),)
            if array in self.arrays:
                return (self.slice_part(operator, self.arrays[array], axis, where),)
        return super().emit_parts(operator, tie, where)


def _is_light(statement: Statement, limits: Limits) -> bool:
    if not isinstance(statement, UOperator) or len(statement.outputs) != 1:
        return False
    free = statement.kind in FREE or statement.output.type.is_scalar
    return free or is_light(statement, limits.light)
