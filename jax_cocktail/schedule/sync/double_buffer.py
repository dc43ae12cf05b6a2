"""Double buffering: unrolls by two the loops whose carries need a second buffer.

    loop: y = f(x); copy y to x     ->     loop: y = f(x); x = f(y)

No array is copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

from jax_cocktail.analysis.parallel import scalar_constants
from jax_cocktail.cost.work import waits
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.errors import PlacementError
from jax_cocktail.schedule.loops.unroll import guarded, out_of_place, stays, unroll
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.sync.plan_tail import finish
from jax_cocktail.stitch.fuse import stitch
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UProgram,
    operators_in,
    regions_of,
    walk,
)
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value

FEWEST_TRIPS = 4  # the least trip count that is worth two buffers


def unroll_pairs(program: UProgram) -> UProgram:
    """Unrolls by two the loops around parallel loops whose arrays need a second buffer.

    The next value of a carry must not overwrite the old one before all tiles have read that. Successive
    iterations alternate between two buffers, so no copy brings the new value back. Values that units exchange
    alternate too: no unit waits until others have read those of the last iteration. Loops of unknown trip
    count are planned both ways, and unrolled if that saves barriers.
    """
    fresh = FreshValues(program)
    entry = _pairs(program.entry, fresh)
    if entry is not program.entry:
        program = replace(program, entry=entry)
    waiting = [loop.outputs for loop in _waiting(program.entry)]
    if not waiting:
        return program
    planned = _barriers(program)
    for outputs in waiting:
        loop = next((s for s in _waiting(program.entry) if s.outputs == outputs), None)
        if loop is None:  # it is too long now that a loop inside has been doubled
            continue
        fewest, chosen = 2 * planned(loop), program
        apart = out_of_place(loop, scalar_constants(operators_in(program.entry)), fresh)
        for trial in (loop, apart) if fewest and apart is not loop else (loop,) if fewest else ():
            twice = guarded(trial, fresh)
            wide = replace(program, entry=_replaced(program.entry, loop, twice))
            (inner,) = (s for s in twice if isinstance(s, LoopUTask))
            trial_plan = _barriers(wide)
            if trial_plan(inner) < fewest:
                fewest, chosen, planned = trial_plan(inner), wide, trial_plan
        program = chosen
    return program


def _waiting(region: Region) -> Iterator[LoopUTask]:
    """Loops with a condition and parallel loops inside, unless too long; inner loops first."""
    for statement in region.body:
        for inner in regions_of(statement):
            yield from _waiting(inner)
        inside = (s for region in regions_of(statement) for s in walk(region) if isinstance(s, LoopUTask))
        short = sum(1 for region in regions_of(statement) for _ in walk(region)) <= PROGRAM.doubled_statements
        if (
            isinstance(statement, LoopUTask)
            and statement.condition
            and any(s.parallel for s in inside)
            and short
        ):
            yield statement


def _replaced(region: Region, loop: LoopUTask, twice: tuple[Statement, ...]) -> Region:
    """The region with the statements `twice` in place of a loop."""
    body: list[Statement] = []
    for statement in region.body:
        if statement is loop:
            body += twice
            continue
        if isinstance(statement, LoopUTask) and not statement.parallel:
            statement = replace(statement, body=_replaced(statement.body, loop, twice))
        elif isinstance(statement, BranchUTask):
            branches = tuple(_replaced(r, loop, twice) for r in statement.branches)
            statement = replace(statement, branches=branches)
        body.append(statement)
    return replace(region, body=tuple(body))


def _barriers(program: UProgram) -> Callable[[LoopUTask], float]:
    """The barriers per iteration of a loop in the planned program, where it has the same outputs."""
    found: dict[Value, float] = {}
    try:
        final = finish(stitch(simplify(program))).program
    except PlacementError:
        return lambda loop: inf
    for statement in walk(final.entry):
        if isinstance(statement, LoopUTask):
            count = sum(waits(s) for region in statement.regions for s in region.body)
            found |= dict.fromkeys(statement.outputs, count)
    return lambda loop: next((found[v] for v in loop.outputs if v in found), inf)


def _pairs(region: Region, fresh: FreshValues) -> Region:
    body: list[Statement] = []
    for statement in region.body:
        if isinstance(statement, LoopUTask):
            condition = statement.condition and _pairs(statement.condition, fresh)
            inner = _pairs(statement.body, fresh)
            if inner is not statement.body or condition is not statement.condition:
                statement = replace(statement, condition=condition, body=inner)
            body += unroll(statement, 2, fresh) if _alternates(statement) else (statement,)
        elif isinstance(statement, BranchUTask):
            branches = tuple(_pairs(r, fresh) for r in statement.branches)
            if any(a is not b for a, b in zip(branches, statement.branches, strict=True)):
                statement = replace(statement, branches=branches)
            body.append(statement)
        else:
            body.append(statement)
    same = len(body) == len(region.body) and all(a is b for a, b in zip(body, region.body, strict=True))
    return region if same else Region(region.parameters, tuple(body), region.results)


def _alternates(loop: LoopUTask) -> bool:
    if loop.trip_count is None or loop.trip_count < FEWEST_TRIPS or loop.parallel:
        return False
    if not any(isinstance(s, LoopUTask) and s.parallel for s in loop.body.body):
        return False
    definitions = {v: s for s in loop.body.body for v in s.outputs}
    pairs = zip(loop.carried, loop.body.results, strict=True)
    return any(not c.type.is_scalar and not stays(r, c, definitions) for c, r in pairs)
