"""Moves what belongs to a branch into it, so that a branch makes its results where they stay.

    y = a @ b                              x' = branch s { case 0: write x, nan, at
    z = branch s { nan } { y }      ->                     case 1: y = a @ b
    x' = write x, z, at                                            write x, y, at }

An array that one case alone gives on is made in that case, and an update by what a branch gives is done in
every case. `stitch` then lets what makes the array write straight into its place: a product made beside it
and moved costs as much again as the product of a few rows. Where a case fills a part of an array of which
nothing is known (`empty`), that part is all it writes.

A statement that moves down must not find its operands overwritten: they would have to be copied, and an array
that a parallel loop carries cannot be. So what reads an array stays before what may write over it.

Barriers depend on which statements stand where all units pass, so programs of several units are changed only
inside the parts that units do by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from jax_cocktail.utask.copies import copied
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    is_a,
    operators_in,
    reads,
    regions_of,
    walk,
)
from jax_cocktail.utask.operators import VIEWS
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value


def sink(program: UProgram) -> UProgram:
    """Expects no stitched groups. Returns its argument if nothing moves."""
    divided = any(_is_parallel(s) for s in walk(program.entry))
    sinker = _Sinker(program)
    entry = sinker.inside(program.entry, alone=not divided)
    return replace(program, entry=entry) if sinker.moved else program


def _is_parallel(statement: Statement) -> bool:
    return isinstance(statement, LoopUTask) and statement.parallel


class _Sinker:
    def __init__(self, program: UProgram) -> None:
        operators = list(operators_in(program.entry))
        self.fresh = FreshValues(program)
        self.views = {o.output: o.inputs[0] for o in operators if o.kind in VIEWS}
        self.empty = {o.output for o in operators if o.kind == "empty"}
        self.moved = False

    def inside(self, region: Region, alone: bool) -> Region:
        """The region with everything in it sunk; `alone`: whoever gets here does it alone."""
        if alone and any(isinstance(s, BranchUTask) for s in region.body):
            region = self._updates(self._makers(region))
        return map_body(region, lambda s: map_regions(s, lambda r: self.inside(r, alone or _is_parallel(s))))

    def _makers(self, region: Region) -> Region:
        """Moves what makes an array into the only case that gives it on."""
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
        """Moves updates by what a branch gives, as it is or reshaped, into its cases."""
        uses = _uses(region)
        body = sorted(region.body, key=lambda s: not is_a(s, "constant"))  # starts are there before a branch
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
        """Whether the arrays that `maker` reads are as they were behind the statements from `start` to `end`,
        without a copy that nobody else needs."""
        between, late = region.body[start:end], region.body[end:]
        made = {v for s in region.body for v in s.outputs}
        homes = {v.type for s in between for v in s.outputs if v in region.results}
        for root in {self._root(v) for v in reads(maker) if not v.type.is_scalar}:
            is_read = self._reader(root)
            if any(map(is_read, late)) or root in map(self._root, region.results):
                continue
            if root not in made and root.type in homes:  # of a carry, whose next value may be there by then
                return False
            if any(is_read(s) and not _only_multiplies(s) for s in between):
                return False
        return True

    def _shown(self, value: Value) -> Iterator[Value]:
        """A value, and what it is a view of."""
        yield value
        while value in self.views:
            value = self.views[value]
            yield value

    def _root(self, value: Value) -> Value:
        """The array that a value shows, if it is only another view of it."""
        return list(self._shown(value))[-1]

    def _reader(self, array: Value) -> Callable[[Statement], bool]:
        """What tells whether a statement reads an array, or shows it."""
        root = self._root(array)
        return lambda statement: any(self._root(v) == root for v in _named(statement))

    def _with_update(self, branch: BranchUTask, made: Value, moves: Sequence[UOperator]) -> BranchUTask:
        """The branch, whose cases do by themselves what is done with an array that it has `made`."""
        place, result = branch.outputs.index(made), moves[-1].output

        def case(region: Region) -> Region:
            names = {made: region.results[place]}
            own = tuple(copied(move, names, self.fresh) for move in moves)
            results = (*region.results[:place], names[result], *region.results[place + 1 :])
            return self._short(replace(region, body=region.body + own, results=results), place)

        outputs = (*branch.outputs[:place], result, *branch.outputs[place + 1 :])
        return replace(branch, branches=tuple(map(case, branch.branches)), outputs=outputs)

    def _pays(self, made: Value, branch: BranchUTask) -> bool:
        """Whether a case makes what the branch gives by a product or another branch, or fills only a part."""
        place = branch.outputs.index(made)

        def case(region: Region) -> bool:
            given = region.results[place]
            maker = next((s for s in region.body if given in s.outputs), None)
            return (
                given in self.empty or self._is_filled(maker) or (maker is not None and _makes_arrays(maker))
            )

        return any(map(case, branch.branches))

    def _is_filled(self, statement: Statement | None) -> TypeGuard[UOperator]:
        """Whether it writes a part of an array of which nothing is known."""
        return is_a(statement, "dynamic_update_slice") and statement.inputs[0] in self.empty

    def _short(self, case: Region, place: int) -> Region:
        """The case, whose last update writes what has been made, and not what is unknown beside it."""
        makers = {v: s for s in case.body for v in s.outputs}
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
    """Where an update writes what another one has put into the array that it writes, if a start says it."""
    found = []
    whole, middle, part = update.output.type.shape, filled.output.type.shape, filled.inputs[1].type.shape
    for axis, (outer, inner) in enumerate(zip(update.inputs[2:], filled.inputs[2:], strict=True)):
        if middle[axis] not in (whole[axis], part[axis]):
            return None
        found.append(outer if middle[axis] == part[axis] else inner)
    return tuple(found)


def _uses(region: Region) -> Counter[Value]:
    """How often the statements of a region, nested ones included, and its results name a value."""
    found = Counter(region.results)
    for statement in region.body:
        found.update(_named(statement))
    return found


def _named(statement: Statement) -> Iterable[Value]:
    yield from statement.inputs
    for region in regions_of(statement):
        yield from region.results
        for inner in region.body:
            yield from _named(inner)


def _makes_arrays(statement: Statement) -> bool:
    """Whether it makes arrays that it could as well make elsewhere: what stitching lets write into a part."""
    if isinstance(statement, UOperator):
        return statement.kind == "dot" and not statement.output.type.is_scalar
    if not isinstance(statement, BranchUTask) or any(v.type.is_scalar for v in statement.outputs):
        return False
    found = (o for region in statement.branches for o in operators_in(region))
    return all(o.facts.total for o in found)  # that fails whatever others choose


def _only_multiplies(statement: Statement) -> bool:
    """Whether it writes over nothing that it reads: a product, or a view."""
    return isinstance(statement, UOperator) and statement.kind in (VIEWS | {"dot"})


def _only_case(maker: Statement, cases: list[Region], uses: Counter[Value]) -> int | None:
    """The case that gives on all that `maker` makes, if nobody else reads any of it."""
    for number, region in enumerate(cases):
        if all(uses[v] == 1 and v in region.results for v in maker.outputs):
            return number
    return None


def _at(body: Sequence[Statement], statement: Statement) -> int:
    """The position of that very statement: to compare programs with each other takes time."""
    return next(position for position, other in enumerate(body) if other is statement)
