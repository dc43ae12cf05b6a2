"""Double buffering: unrolls by two the loops whose carries need a second buffer.

    loop: y = f(x); copy y to x     ->     loop: y = f(x); x = f(y)

No array is copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import TypeGuard

from jax_cocktail.analysis.parallel import scalar_constants
from jax_cocktail.cost.work import waits
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.schedule.loops.repeat import guarded, out_of_place, stays, unrolled
from jax_cocktail.schedule.sync.plan_tail import Trial
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    UProgram,
    definitions,
    is_parallel,
    regions_of,
    walk,
)
from jax_cocktail.utask.rewrite import rewrite
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value


def double_buffer(program: UProgram, *, trial: Trial) -> UProgram:
    """Unrolls by two the loops around parallel loops whose arrays need a second buffer.

    The next value of a carry must not overwrite the old one before all tiles have read that. Successive
    iterations alternate between two buffers, so no copy brings the new value back. Values that units exchange
    alternate too: no unit waits until others have read those of the last iteration. Loops of unknown trip
    count are planned both ways, and unrolled if that saves barriers.
    """
    fresh = FreshValues(program)
    program = rewrite(program, lambda s: unrolled(s, 2, fresh) if _alternates(s) else s)
    waiting = [loop.outputs for loop in _waiting(program.entry)]
    if not waiting:
        return program
    planned = _barriers(trial(program))
    for outputs in waiting:
        loop = next((s for s in _waiting(program.entry) if s.outputs == outputs), None)
        if loop is None:  # it is too long now that a loop inside has been doubled
            continue
        fewest, chosen = 2 * planned(loop), program
        apart = out_of_place(loop, scalar_constants(program.entry), fresh)
        for way in (loop, apart) if fewest and apart is not loop else (loop,) if fewest else ():
            twice = guarded(way, fresh)
            wide = _with(program, loop, twice)
            (inner,) = (s for s in twice if isinstance(s, LoopUTask))
            tried = _barriers(trial(wide))
            if tried(inner) < fewest:
                fewest, chosen, planned = tried(inner), wide, tried
        program = chosen
    return program


def _waiting(region: Region) -> Iterator[LoopUTask]:
    """Loops with a condition and parallel loops inside, unless too long; inner loops first."""
    for statement in region.body:
        for inner in regions_of(statement):
            yield from _waiting(inner)
        if isinstance(statement, LoopUTask) and statement.condition is not None:
            inside = [s for region in statement.regions for s in walk(region)]
            if len(inside) <= PROGRAM.doubled_statements and any(map(is_parallel, inside)):
                yield statement


def _with(program: UProgram, loop: LoopUTask, twice: tuple[Statement, ...]) -> UProgram:
    """The program with the statements `twice` in place of a loop."""
    return rewrite(program, lambda statement: twice if statement is loop else statement)


def _barriers(final: UProgram | None) -> Callable[[LoopUTask], float]:
    """The barriers per iteration of a loop in the planned program, where it has the same outputs."""
    found: dict[Value, float] = {}
    for statement in () if final is None else walk(final.entry):
        if isinstance(statement, LoopUTask):
            count = sum(waits(s) for region in statement.regions for s in region.body)
            found |= dict.fromkeys(statement.outputs, count)
    return lambda loop: next((found[v] for v in loop.outputs if v in found), inf)


def _alternates(loop: Statement) -> TypeGuard[LoopUTask]:
    if not isinstance(loop, LoopUTask) or loop.parallel or (loop.trip_count or 0) < PROGRAM.doubled_trips:
        return False
    if not any(map(is_parallel, loop.body.body)):
        return False
    made, pairs = definitions(loop.body), zip(loop.carried, loop.body.results, strict=True)
    return any(not c.type.is_scalar and not stays(r, c, made) for c, r in pairs)
