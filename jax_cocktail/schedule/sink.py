"""Code sinking: moves statements into a branch, so that its cases compute their results in place.

    y = a @ b                              x' = branch s { case 0: write x, nan, at
    z = branch s { nan } { y }      ->                     case 1: y = a @ b
    x' = write x, z, at                                            write x, y, at }

An array that only one case returns is computed in that case. An update by a result of a branch moves into
every case. `stitch` then lets the producer of the array write directly to its place: copying a product of few
rows costs as much again as the product. A case that fills a part of an `empty` array writes only that part.

A statement that moves down must not find its operands overwritten: they would have to be copied, and an array
that a parallel loop carries cannot be. So a reader of an array stays before statements that may overwrite it.

Barriers depend on the statements that all units run together, so a program for several units changes only
inside tiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from jax_cocktail.utask.copies import copied
from jax_cocktail.utask.ir import (
    BranchUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    definitions,
    is_a,
    is_parallel,
    operators_in,
    reads,
    regions_in,
    walk,
)
from jax_cocktail.utask.operators import VIEWS
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value


def sink(program: UProgram) -> UProgram:
    """Expects no stitched groups. Returns its argument if nothing moves."""
    divided = any(map(is_parallel, walk(program.entry)))
    sinker = _Sinker(program)
    entry = sinker.inside(program.entry, alone=not divided)
    return replace(program, entry=entry) if sinker.moved else program


class _Sinker:
    def __init__(self, program: UProgram) -> None:
        operators = list(operators_in(program.entry))
        self.fresh = FreshValues(program)
        self.views = {o.output: o.inputs[0] for o in operators if o.kind in VIEWS}
        self.empty = {o.output for o in operators if o.kind == "empty"}
        self.moved = False

    def inside(self, region: Region, alone: bool) -> Region:
        """The region after sinking at any depth. `alone`: a single unit runs the region."""
        if alone and any(isinstance(s, BranchUTask) for s in region.body):
            region = self._updates(self._makers(region))
        return map_body(region, lambda s: map_regions(s, lambda r: self.inside(r, alone or is_parallel(s))))

    def _makers(self, region: Region) -> Region:
        """Moves the producer of an array into the only case that returns it."""
        uses = _uses(region)
        body = list(region.body)
        for branch in [s for s in body if isinstance(s, BranchUTask)]:
            cases = list(branch.branches)
            for maker in [s for s in body[: _at(body, branch)][::-1] if _makes_arrays(s)]:
                case = _only_case(maker, cases, uses)
                if case is None:
                    continue
                span = _at(body, maker) + 1, _at(body, branch)
                if self._finds(maker, replace(region, body=tuple(body)), *span):
                    cases[case] = replace(cases[case], body=(maker, *cases[case].body))
                    del body[_at(body, maker)]
            if any(a is not b for a, b in zip(cases, branch.branches, strict=True)):
                body[_at(body, branch)] = replace(branch, branches=tuple(cases))
                self.moved = True
        return replace(region, body=tuple(body))

    def _updates(self, region: Region) -> Region:
        """Moves updates by a result of a branch, possibly reshaped, into its cases."""
        uses = _uses(region)
        body = sorted(region.body, key=lambda s: not is_a(s, "constant"))  # so that starts precede branches
        for first in [s for s in body if isinstance(s, BranchUTask)]:
            branch, at = first, _at(body, first)
            late = {v for s in body[at:] for v in s.outputs}
            for update in [s for s in body[at + 1 :] if is_a(s, "dynamic_update_slice")]:
                array, new, *starts = update.inputs
                moves = [s for s in body[at + 1 :] if is_a(s, "reshape") and new in s.outputs] + [update]
                made = moves[0].inputs[0] if moves[1:] else new
                once = all(uses[v] <= 1 for v in (new, made, *self._shown(array)))
                if (
                    once
                    and late.isdisjoint((array, *starts))
                    and made in branch.outputs
                    and self._pays(made, branch)
                ):
                    branch = self._with_update(branch, made, moves)
                    body = [s for s in body if not any(s is m for m in moves)]
            if branch is not first:
                body[at] = branch
                self.moved = True
        return replace(region, body=tuple(body))

    def _finds(self, maker: Statement, region: Region, start: int, end: int) -> bool:
        """True if the arrays that `maker` reads are unchanged after the statements from `start` to `end`,
        without an additional copy."""
        between, late = region.body[start:end], region.body[end:]
        homes = {v.type for s in between for v in s.outputs if v in region.results}
        for root in {self._root(v) for v in reads(maker) if not v.type.is_scalar}:
            is_read = self._reader(root)
            if any(map(is_read, late)) or root in map(self._root, region.results):
                continue
            if root not in definitions(region) and root.type in homes:  # a carry: its next one may be there
                return False
            if any(is_read(s) and not _only_multiplies(s) for s in between):
                return False
        return True

    def _shown(self, value: Value) -> Iterator[Value]:
        """A value, and the values that it is a view of."""
        yield value
        while value in self.views:
            value = self.views[value]
            yield value

    def _root(self, value: Value) -> Value:
        """The array that a value is a view of, or the value itself."""
        return list(self._shown(value))[-1]

    def _reader(self, array: Value) -> Callable[[Statement], bool]:
        """A test for statements that read an array or a view of it."""
        root = self._root(array)
        return lambda statement: any(self._root(v) == root for v in reads(statement))

    def _with_update(self, branch: BranchUTask, made: Value, moves: Sequence[UOperator]) -> BranchUTask:
        """The branch with the `moves`, which reshape and write its result `made`, in each of its cases."""
        place, result = branch.outputs.index(made), moves[-1].output

        def case(region: Region) -> Region:
            names = {made: region.results[place]}
            own = tuple(copied(move, names, self.fresh) for move in moves)
            results = (*region.results[:place], names[result], *region.results[place + 1 :])
            return self._short(replace(region, body=region.body + own, results=results), place)

        outputs = (*branch.outputs[:place], result, *branch.outputs[place + 1 :])
        return replace(branch, branches=tuple(map(case, branch.branches)), outputs=outputs)

    def _pays(self, made: Value, branch: BranchUTask) -> bool:
        """True if a case computes the result by a product or another branch, or fills only a part of it."""
        place = branch.outputs.index(made)

        def case(region: Region) -> bool:
            given = region.results[place]
            maker = definitions(region).get(given)
            return (
                given in self.empty or self._is_filled(maker) or (maker is not None and _makes_arrays(maker))
            )

        return any(map(case, branch.branches))

    def _is_filled(self, statement: Statement | None) -> TypeGuard[UOperator]:
        """True if a statement writes a part of an `empty` array."""
        return is_a(statement, "dynamic_update_slice") and statement.inputs[0] in self.empty

    def _short(self, case: Region, place: int) -> Region:
        """The case with a last update that writes only the filled part, not the undefined rest."""
        makers = definitions(case)
        update = makers[case.results[place]]
        assert isinstance(update, UOperator)
        array, new, *starts = update.inputs
        filled, rest = makers.get(new), case.body[:-1]
        if _uses(case)[new] != 1:
            return case
        if new in self.empty:
            results = (*case.results[:place], array, *case.results[place + 1 :])
            return replace(case, body=rest, results=results)
        at = _starts(update, filled) if self._is_filled(filled) else None
        if filled is None or at is None:
            return case
        own = replace(update, inputs=(array, filled.inputs[1], *at))
        return replace(case, body=(*(s for s in rest if s is not filled), own))


def _starts(update: UOperator, filled: UOperator) -> tuple[Value, ...] | None:
    """The starts at which an update writes the part that `filled` has filled, if single starts express it."""
    found = []
    whole, middle, part = update.output.type.shape, filled.output.type.shape, filled.inputs[1].type.shape
    for axis, (outer, inner) in enumerate(zip(update.inputs[2:], filled.inputs[2:], strict=True)):
        if middle[axis] not in (whole[axis], part[axis]):
            return None
        found.append(outer if middle[axis] == part[axis] else inner)
    return tuple(found)


def _uses(region: Region) -> Counter[Value]:
    """The number of uses of each value in a region, nested statements and results included."""
    inside = list(regions_in(region))
    operands = (v for inner in inside for statement in inner.body for v in statement.inputs)
    return Counter([*operands, *(v for inner in inside for v in inner.results)])


def _makes_arrays(statement: Statement) -> bool:
    """True if a statement computes arrays that stitching lets it write directly into a part of another."""
    if isinstance(statement, UOperator):
        return statement.kind == "dot" and not statement.output.type.is_scalar
    if not isinstance(statement, BranchUTask) or any(v.type.is_scalar for v in statement.outputs):
        return False
    found = (o for region in statement.branches for o in operators_in(region))
    return all(o.facts.total for o in found)  # an operator that may fail must not move


def _only_multiplies(statement: Statement) -> bool:
    """True if a statement overwrites none of its operands: a product, or a view."""
    return isinstance(statement, UOperator) and statement.kind in (VIEWS | {"dot"})


def _only_case(maker: Statement, cases: list[Region], uses: Counter[Value]) -> int | None:
    """The case that returns all results of `maker`, if they have no other reader."""
    for number, region in enumerate(cases):
        if all(uses[v] == 1 and v in region.results for v in maker.outputs):
            return number
    return None


def _at(body: Sequence[Statement], statement: Statement) -> int:
    """The position of a statement, by identity, since comparing statements takes time."""
    return next(position for position, other in enumerate(body) if other is statement)
