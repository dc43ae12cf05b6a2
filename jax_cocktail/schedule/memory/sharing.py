"""Which memory the units of a program share, and which every unit has for itself.

A program with parallel loops runs in several units at once. What a parallel loop writes, part by part, lies
in shared memory; what its body needs on the way lies in the unit's own. At mesh level, outside the parallel
loops, every unit computes small values for itself (replicated: no barrier); large ones are left to unit 0,
unless loops change little of them at a time: what has been computed so far, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jax_cocktail.analysis.levels import Level, program_level
from jax_cocktail.errors import PlacementError
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    defined_in,
    operators_of,
)
from jax_cocktail.utask.layout import Layout
from jax_cocktail.utask.operators import UPDATES
from jax_cocktail.utask.plan import REPLICATED_BYTES
from jax_cocktail.utask.types import Value

UPDATED_BYTES = 512 << 10  # the same of an array that loops update by pieces of `REPLICATED_BYTES`
OVERLAP_BYTES = 1 << 20  # smaller shared buffers never overlap: reusing memory costs a barrier

Find = Callable[[Value], Value]


@dataclass(frozen=True, slots=True)
class Sharing:
    """`shared`: leaders of the memory classes that all units see; `most_units`: units that find work."""

    find: Find
    shared: frozenset[Value]
    most_units: int
    overlap_bytes: int = OVERLAP_BYTES

    def is_shared(self, root: Value) -> bool:
        return self.find(root) in self.shared


def sharing_of(
    program: UProgram, layouts: Mapping[Value, Layout], find: Find, placed: set[Value]
) -> Sharing | None:
    """None if the program has no parallel loop. `placed`: leaders in operands, results and constants."""
    if program_level(program) is not Level.DEVICE:
        return None
    survey = _Survey(layouts, find)
    survey.region(program.entry)
    survey.shared |= placed
    inside = {find(layouts[v].root) for v in survey.inside if v in layouts}
    for leader in survey.mesh:
        by_pieces = leader in survey.updated - survey.rewritten
        if leader.type.nbytes > (UPDATED_BYTES if by_pieces else REPLICATED_BYTES):
            survey.shared.add(leader)
    survey.settle()
    return Sharing(find, frozenset(survey.shared - (inside - survey.mesh)), survey.most_units)


class _Survey:
    """Collects what is defined where, and which classes must be shared together."""

    def __init__(self, layouts: Mapping[Value, Layout], find: Find) -> None:
        self.layouts, self.find = layouts, find
        self.inside: list[Value] = []  # defined in the body of a parallel loop
        self.mesh: set[Value] = set()  # leaders with a member at mesh level
        self.shared: set[Value] = set()
        self.together: list[set[Value]] = []  # written by one statement: all shared or none
        self.copies: list[tuple[Value, Value]] = []  # (source, target) of copies that happen at once
        self.updated: set[Value] = set()  # of which loops write small pieces
        self.rewritten: set[Value] = set()  # of which they write more
        self.loops = 0  # around where we are
        self.most_units = 1

    def leaders(self, values: tuple[Value, ...]) -> list[Value]:
        return [self.find(self.layouts[v].root) for v in values if v in self.layouts]

    def region(self, region: Region) -> None:
        self.mesh.update(self.leaders(region.parameters))
        for statement in region.body:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        outputs = self.leaders(statement.outputs)
        self.mesh.update(outputs)
        if isinstance(statement, LoopUTask) and statement.parallel:
            self.shared.update(outputs)
            self.inside += (v for s in statement.body.body for v in defined_in(s))
            self._check(statement)
            self.most_units = max(self.most_units, statement.first + (statement.trip_count or 0))
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

    def _written(self, statement: Statement) -> None:
        """Notes how much of its results a statement without regions writes in a loop."""
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
                small = pieces.get(value, value.type.nbytes) <= REPLICATED_BYTES
                (self.updated if small else self.rewritten).update(self.leaders((value,)))

    def _transfer(self, sources: tuple[Value, ...], targets: tuple[Value, ...]) -> None:
        """What is overwritten by unit 0 must not be read by the other units' copies of the same transfer."""
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
        """True if both are one buffer, each of them all of it, so that nothing moves."""
        whole = self.layouts[source].is_whole and self.layouts[target].is_whole
        return whole and self.leaders((source,)) == self.leaders((target,))

    def _check(self, loop: LoopUTask) -> None:
        """The parts of a carried array are written in place, or units would overwrite each other."""
        for result, carried in zip(loop.body.results, loop.carried, strict=True):
            if result.type.size and self.leaders((result,)) != self.leaders((carried,)):
                raise PlacementError(
                    f"a parallel loop at {loop.source} does not write {carried} in place; read only the slice"
                    " that the same trip writes, before it is written"
                )

    def settle(self) -> None:
        """Spreads *shared* until nothing changes."""
        before = -1
        while before != len(self.shared):
            before = len(self.shared)
            for group in self.together:
                if group & self.shared:
                    self.shared |= group
            for source, target in self.copies:
                if source in self.shared:
                    self.shared.add(target)
