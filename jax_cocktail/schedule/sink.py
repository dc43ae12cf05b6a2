"""Moves what belongs to a branch into it, so that a branch makes its results where they stay.

    y = a @ b                              x' = branch s { case 0: write x, nan, at
    z = branch s { nan } { y }      ->                     case 1: y = a @ b
    x' = write x, z, at                                            write x, y, at }

An array that one case alone gives on is made in that case, and an update by what a branch gives is done in
every case. `stitch` then lets what makes the array write straight into its place: a product made beside it
and moved costs as much again as the product of a few rows.

Barriers depend on which statements stand where all units pass, so programs of several units are changed only
inside the parts that units do by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeGuard

from jax_cocktail.schedule.unroll import copied
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    regions_of,
    walk,
)
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value


def sink(program: UProgram) -> UProgram:
    """Expects no stitched groups. Returns its argument if nothing moves."""
    divided = any(_is_parallel(s) for s in walk(program.entry))
    sinker = _Sinker(FreshValues(program))
    entry = sinker.inside(program.entry, alone=not divided)
    return replace(program, entry=entry) if sinker.moved else program


def _is_parallel(statement: Statement) -> bool:
    return isinstance(statement, LoopUTask) and statement.parallel


class _Sinker:
    def __init__(self, fresh: FreshValues) -> None:
        self.fresh = fresh
        self.moved = False

    def inside(self, region: Region, alone: bool) -> Region:
        """The region with everything in it sunk; `alone`: whoever gets here does it alone."""
        if alone and any(isinstance(s, BranchUTask) for s in region.body):
            region = self._updates(self._makers(region))
        return _mapped(region, lambda s, r: self.inside(r, alone or _is_parallel(s)))

    def _makers(self, region: Region) -> Region:
        """Moves what makes an array into the only case that gives it on."""
        uses = _uses(region)
        body = list(region.body)
        for branch in [s for s in body if isinstance(s, BranchUTask)]:
            cases = list(branch.branches)
            for maker in [s for s in body[: body.index(branch)][::-1] if _makes_arrays(s)]:
                case = _only_case(maker, cases, uses)
                if case is not None:
                    cases[case] = replace(cases[case], body=(maker, *cases[case].body))
                    body.remove(maker)
            if any(a is not b for a, b in zip(cases, branch.branches, strict=True)):
                body[body.index(branch)] = replace(branch, branches=tuple(cases))
                self.moved = True
        return replace(region, body=tuple(body))

    def _updates(self, region: Region) -> Region:
        """Moves updates by what a branch gives, as it is or reshaped, into its cases."""
        uses = _uses(region)
        body = sorted(region.body, key=lambda s: not _is(s, "constant"))  # starts are there before a branch
        for first in [s for s in body if isinstance(s, BranchUTask)]:
            branch, at = first, body.index(first)
            late = {v for s in body[at:] for v in s.outputs}
            for update in [s for s in body[at + 1 :] if _is(s, "dynamic_update_slice")]:
                array, new, *starts = update.inputs
                moves = [s for s in body[at + 1 :] if _is(s, "reshape") and new in s.outputs] + [update]
                made = moves[0].inputs[0] if moves[1:] else new
                once = uses[array] == uses[new] == uses[made] == 1
                if (
                    once
                    and late.isdisjoint((array, *starts))
                    and made in branch.outputs
                    and _is_made(made, branch)
                ):
                    branch = self._with_update(branch, made, moves)
                    body = [s for s in body if s not in moves]
            if branch is not first:
                body[at] = branch
                self.moved = True
        return replace(region, body=tuple(body))

    def _with_update(self, branch: BranchUTask, made: Value, moves: Sequence[UOperator]) -> BranchUTask:
        """The branch, whose cases do by themselves what is done with an array that it has `made`."""
        place, result = branch.outputs.index(made), moves[-1].output

        def case(region: Region) -> Region:
            names = {made: region.results[place]}
            own = tuple(copied(move, names, self.fresh) for move in moves)
            results = (*region.results[:place], names[result], *region.results[place + 1 :])
            return replace(region, body=region.body + own, results=results)

        outputs = (*branch.outputs[:place], result, *branch.outputs[place + 1 :])
        return replace(branch, branches=tuple(map(case, branch.branches)), outputs=outputs)


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
    return isinstance(statement, BranchUTask) and not any(v.type.is_scalar for v in statement.outputs)


def _only_case(maker: Statement, cases: list[Region], uses: Counter[Value]) -> int | None:
    """The case that gives on all that `maker` makes, if nobody else reads any of it."""
    for number, region in enumerate(cases):
        if all(uses[v] == 1 and v in region.results for v in maker.outputs):
            return number
    return None


def _is(statement: Statement, kind: str) -> TypeGuard[UOperator]:
    return isinstance(statement, UOperator) and statement.kind == kind


def _is_made(value: Value, branch: BranchUTask) -> bool:
    """Whether a case makes what the branch gives as `value` by a product, or by another branch."""
    place = branch.outputs.index(value)
    return any(
        region.results[place] in statement.outputs
        for region in branch.branches
        for statement in region.body
        if _makes_arrays(statement)
    )


def _mapped(region: Region, change: Callable[[Statement, Region], Region]) -> Region:
    """The region with all regions of its statements changed."""

    def changed(statement: Statement) -> Statement:
        if isinstance(statement, BranchUTask):
            return replace(statement, branches=tuple(change(statement, r) for r in statement.branches))
        if isinstance(statement, LoopUTask):
            condition = statement.condition and change(statement, statement.condition)
            return replace(statement, condition=condition, body=change(statement, statement.body))
        return statement

    return replace(region, body=tuple(map(changed, region.body)))
