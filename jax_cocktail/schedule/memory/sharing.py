"""Divides memory into that which all units share and that which each unit has for itself.

A program with parallel loops runs on several units at once. The results of a parallel loop lie in shared
memory; temporaries of its body lie in the unit's own memory. At device scope, outside parallel loops, each
unit computes small values for itself (replicated: no barrier) and unit 0 computes large ones, unless loops
update only small pieces of them, such as one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jax_cocktail.analysis.scopes import Scope, program_scope
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.errors import PlacementError
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    by_threads,
    defined_in,
    is_parallel,
    operators_of,
)
from jax_cocktail.utask.layout import Layout
from jax_cocktail.utask.operators import UPDATES
from jax_cocktail.utask.sizes import is_general
from jax_cocktail.utask.types import Value

Find = Callable[[Value], Value]


@dataclass(frozen=True, slots=True)
class Sharing:
    """`shared`: leaders of the memory classes that all units see; `alone`: of those that each thread has for
    itself; `most_units`: units that have work; `work`: how many have in each loop, if some of these numbers
    follow from general sizes."""

    find: Find
    shared: frozenset[Value]
    alone: frozenset[Value]
    most_units: int
    work: tuple[int, ...] = ()
    overlap_bytes: int = PROGRAM.overlap_bytes

    def is_shared(self, root: Value) -> bool:
        return self.find(root) in self.shared


def sharing_of(
    program: UProgram,
    layouts: Mapping[Value, Layout],
    find: Find,
    placed: set[Value],
    units: int = 0,
    warp: int = 1,
) -> Sharing | None:
    """None if the program has no parallel loop. `placed`: leaders in operands, results and constants;
    `units`: the most that share the trips of loops by threads, 0 for any number; `warp`: trips of such loops
    that one unit takes together."""
    if program_scope(program) is not Scope.DEVICE:
        return None
    survey = _Survey(layouts, find, units, warp)
    survey.region(program.entry)
    survey.shared |= placed
    inside = {find(layouts[v].root) for v in survey.inside if v in layouts}
    for leader in survey.mesh:
        by_pieces = leader in survey.updated - survey.rewritten
        if leader.type.nbytes > (PROGRAM.updated_bytes if by_pieces else PROGRAM.replicated_bytes):
            survey.shared.add(leader)
    survey.settle()
    shared = frozenset(survey.shared - (inside - survey.mesh))
    alone = {find(layouts[v].root) for v in survey.alone if v in layouts}
    work = tuple(survey.work) if any(map(is_general, survey.work)) else ()
    return Sharing(find, shared, frozenset(alone - survey.mesh), survey.most_units, work)


class _Survey:
    """Collects where values are defined, and the classes that must be shared together."""

    def __init__(self, layouts: Mapping[Value, Layout], find: Find, units: int, warp: int) -> None:
        self.layouts, self.find, self.units, self.warp = layouts, find, units, warp
        self.inside: list[Value] = []  # defined in the body of a parallel loop
        self.alone: list[Value] = []  # the same of a loop by threads
        self.mesh: set[Value] = set()  # leaders with a member at device scope
        self.shared: set[Value] = set()
        self.together: list[set[Value]] = []  # written by one statement: all shared or none
        self.copies: list[tuple[Value, Value]] = []  # (source, target) of copies that happen at once
        self.updated: set[Value] = set()  # leaders of which loops write small pieces
        self.rewritten: set[Value] = set()  # leaders of which loops write more
        self.loops = 0  # enclosing sequential loops
        self.most_units = 1
        self.work = set[int]()  # parts of parallel loops

    def leaders(self, values: tuple[Value, ...]) -> list[Value]:
        return [self.find(self.layouts[v].root) for v in values if v in self.layouts]

    def region(self, region: Region) -> None:
        self.mesh.update(self.leaders(region.parameters))
        for statement in region.body:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        outputs = self.leaders(statement.outputs)
        self.mesh.update(outputs)
        if is_parallel(statement):
            self.shared.update(outputs)
            defined = [v for s in statement.body.body for v in defined_in(s)]
            self.inside += defined
            self.alone += defined if by_threads(statement) else []
            self._check(statement)
            self._parts(statement)
        elif isinstance(statement, LoopUTask):
            self._transfer(statement.initial, statement.carried)
            self.loops += 1
            self._transfer(statement.body.results, statement.carried)
            for region in statement.regions:
                self.region(region)
            self.loops -= 1
        elif isinstance(statement, BranchUTask):
            for region in statement.branches:
                self.region(region)
                self._transfer(region.results, statement.outputs)
        else:
            self.together.append(set(outputs))
            self._written(statement)

    def _parts(self, loop: LoopUTask) -> None:
        """Notes the units that find work in a parallel loop. Where its trips are general, a call may have any
        number of them."""
        trips = loop.trip_count or 0
        parts = -(-trips // self.warp) if by_threads(loop) else trips
        self.work.add(loop.first + parts)
        most = int(parts)
        if self.units and is_general(parts):
            most = self.units
        elif self.units and by_threads(loop):
            most = min(most, self.units)
        self.most_units = max(self.most_units, loop.first + most)

    def _written(self, statement: Statement) -> None:
        """Notes whether a statement in a loop writes small pieces of its results or more."""
        if not self.loops:
            return
        pieces = {
            m.outputs[0]: m.inputs[m.facts.updates].type.nbytes
            for m in operators_of(statement)
            if m.kind in UPDATES and self._in_place(m)
        }
        for value in statement.outputs:
            layout = self.layouts.get(value)
            if layout is not None and layout.root == value:
                small = pieces.get(value, value.type.nbytes) <= PROGRAM.replicated_bytes
                (self.updated if small else self.rewritten).update(self.leaders((value,)))

    def _transfer(self, sources: tuple[Value, ...], targets: tuple[Value, ...]) -> None:
        """Notes copies whose source the same transfer overwrites: unit 0 may not overwrite it too early."""
        pairs = zip(sources, targets, strict=True)
        moves = [(s, t) for s, t in pairs if t in self.layouts and s in self.layouts and not self._same(s, t)]
        written = {x for _, t in moves for x in self.leaders((t,))}
        self.rewritten |= written if self.loops else set()
        for source, target in moves:
            (a,), (b,) = self.leaders((source,)), self.leaders((target,))
            if a != b and a in written:
                self.copies.append((a, b))

    def _in_place(self, update: UOperator) -> bool:
        known = update.inputs[0] in self.layouts and update.outputs[0] in self.layouts
        return known and self._same(update.inputs[0], update.outputs[0])

    def _same(self, source: Value, target: Value) -> bool:
        """True if both are the whole of one buffer, so that nothing moves."""
        whole = self.layouts[source].is_whole and self.layouts[target].is_whole
        return whole and self.leaders((source,)) == self.leaders((target,))

    def _check(self, loop: LoopUTask) -> None:
        """Checks that the loop writes carried arrays in place; otherwise units would overwrite each other."""
        for result, carried in zip(loop.body.results, loop.carried, strict=True):
            if result.type.size and self.leaders((result,)) != self.leaders((carried,)):
                raise PlacementError(
                    f"a parallel loop at {loop.source} does not write {carried} in place; read only the slice"
                    " that the same trip writes, before it is written"
                )

    def settle(self) -> None:
        """Propagates *shared* to a fixed point."""
        before = -1
        while before != len(self.shared):
            before = len(self.shared)
            for group in self.together:
                if group & self.shared:
                    self.shared |= group
            for source, target in self.copies:
                if source in self.shared:
                    self.shared.add(target)
