"""Unit levels: how many of a machine's lanes and units a statement takes (COCKTAILER, OSDI'23, section 3).

The levels are those of the machine: L0 a lane (a GPU thread), L1 a unit (a thread block; here a CPU thread),
L2 the device (all units of a domain). The level of a statement is not chosen but read off the program, since
placement has become structure: what is divided over units is a parallel loop. Constraint 1 of the paper: the
level of a control flow is never below that of its body, or some lanes or units would wait at a barrier that
the others never reach. The verifier checks it after every pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    UTaskRef,
    regions_of,
    walk,
)
from jax_cocktail.utask.operators import BARRIERS
from jax_cocktail.utask.rewrite import Inside, fold
from jax_cocktail.utask.types import Value


class Level(IntEnum):
    """Who runs a statement together: a lane alone, the lanes of one unit, the units of a domain."""

    LANE = 0
    UNIT = 1
    DEVICE = 2

    def __str__(self) -> str:
        return f"L{self.value}"


Levels = Mapping[str, Level]  # of functions, by name
_NONE: Levels = {}


def unit_level(statement: Statement, functions: Levels = _NONE, within: Level = Level.DEVICE) -> Level:
    """The level that a statement needs.

    Args:
      statement: any; of a loop or branch, the highest level in its body is its own.
      functions: the levels of what references name.
      within: `Level.UNIT` for what stands in the body of a parallel loop, where one unit runs a part alone,
        and parallel loops are loops like others.
    """

    def each(s: Statement, inside: Inside[Level]) -> Level:
        if isinstance(s, UOperator):
            return _operator_level(s)
        if isinstance(s, UTaskRef):
            return functions.get(s.function, Level.LANE)
        if isinstance(s, LoopUTask) and s.parallel and within is Level.DEVICE:
            return Level.DEVICE
        joined = s.outputs if regions_of(s) else ()  # what a join or a carry copies
        return max((_array_level(joined), *map(_highest, inside)))

    return fold(statement, each)


def program_level(program: UProgram) -> Level:
    """The level of a uProgram: `DEVICE` if its units share work, else one unit (or lane) runs it."""
    return _region_level(program.entry, function_levels(program), Level.DEVICE)


def function_levels(program: UProgram, within: Level = Level.DEVICE) -> dict[str, Level]:
    """The level of every function, by name: the least fixed point, since functions may call themselves."""
    levels = {function.name: Level.LANE for function in program.functions}
    changed = bool(levels)
    while changed:
        changed = False
        for function in program.functions:
            level = _region_level(function.body, levels, within)
            changed |= level is not levels[function.name]
            levels[function.name] = level
    return levels


def level_fault(program: UProgram) -> tuple[Statement | None, str]:
    """A statement that breaks constraint 1, and how; (None, "") if none does.

    Levels of loops and branches follow from their bodies, so there is one way to break it: a statement that
    needs all units, in a parallel loop, each trip of which is run by one unit.
    """
    inside = function_levels(program, Level.UNIT)
    for region in program.regions:
        found = _device_level_part(region, inside)
        if found is not None:
            what = f"{found.function}, which has a barrier," if isinstance(found, UTaskRef) else "a barrier"
            return found, (
                f"{what} in a parallel loop: one unit runs each of its trips, and units have unequal numbers"
                " of trips; constraint 1 wants a control flow at the unit level of its body"
            )
    return None, ""


def _device_level_part(region: Region, functions: Levels) -> Statement | None:
    """The first statement in a parallel loop that needs the device."""
    loops = (s for s in walk(region) if isinstance(s, LoopUTask) and s.parallel)
    leaves = (s for loop in loops for s in walk(loop.body) if not regions_of(s))
    return next((s for s in leaves if unit_level(s, functions, Level.UNIT) is Level.DEVICE), None)


def _region_level(region: Region, functions: Levels, within: Level) -> Level:
    return _highest(unit_level(statement, functions, within) for statement in region.body)


def _highest(levels: Iterable[Level]) -> Level:
    return max(levels, default=Level.LANE)


def _operator_level(operator: UOperator) -> Level:
    """One lane does what reads and writes registers, or one element of an array."""
    if operator.kind in BARRIERS:
        return Level.DEVICE
    touched = operator.outputs if operator.is_element else (*operator.inputs, *operator.outputs)
    return _array_level(touched)


def _array_level(values: Iterable[Value]) -> Level:
    return Level.UNIT if any(value.type.size > 1 for value in values) else Level.LANE
