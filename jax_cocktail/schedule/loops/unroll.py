"""Loop unrolling: several iterations of an innermost loop become one (COCKTAILER, section 4.3).

Operators of successive iterations then share lane loops, and a carry stays in registers between them. What
that brings depends on registers and caches, so the factor is a choice for each loop. The usual one is what
the program asks for, by `scan(unroll=)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.schedule.loops.repeat import guarded, unrolled
from jax_cocktail.utask.choices import Choose, usual
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram, is_parallel, walk
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues

FACTORS = (1, 2, 4, 8)
WHOLE = "whole"


def unroll(program: UProgram, choose: Choose = usual) -> UProgram:
    """Returns its argument if no loop is to be unrolled."""
    return map_regions(program, _Unroller(choose, FreshValues(program)).region)


@dataclass(eq=False, slots=True)
class _Unroller:
    """`number`: of the loops so far that there was a choice for."""

    choose: Choose
    fresh: FreshValues
    number: int = 0

    def region(self, region: Region) -> Region:
        return map_body(region, self._statement)

    def _statement(self, statement: Statement) -> Statement | Sequence[Statement]:
        if is_parallel(statement):  # its trips run side by side
            return statement
        statement = map_regions(statement, self.region)
        return self._loop(statement) if isinstance(statement, LoopUTask) else statement

    def _loop(self, loop: LoopUTask) -> Sequence[Statement]:
        alternatives = ways(loop)
        if len(alternatives) < 2:
            return (loop,)
        self.number += 1
        taken = self.choose(f"unroll.{self.number}", alternatives, loop.source)
        if taken == "1":
            return (loop,)
        if loop.trip_count is None:
            return guarded(loop, self.fresh)
        return unrolled(loop, int(loop.trip_count if taken == WHOLE else taken), self.fresh)


def ways(loop: LoopUTask) -> tuple[str, ...]:
    """The factors for a loop, the usual one first; just one if it is none of the innermost loops, or long."""
    inside = [s for region in loop.regions for s in walk(region)]
    if any(isinstance(s, LoopUTask) for s in inside):
        return ("1",)
    operators = sum(isinstance(s, UOperator) for s in inside)
    most = PROGRAM.unrolled_operators // max(operators, 1)
    if loop.condition is not None:
        return ("1", "2") if most >= 2 and loop.stops_by is None else ("1",)
    assert loop.trip_count is not None
    found = [str(factor) for factor in FACTORS if factor <= most and factor < loop.trip_count]
    if 1 < loop.trip_count <= most:
        found.append(WHOLE)
    asked = (
        WHOLE if WHOLE in found and loop.unroll >= loop.trip_count else str(max(min(loop.unroll, most), 1))
    )
    return tuple(dict.fromkeys((asked, *found)))
