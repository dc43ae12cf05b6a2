"""Replaces the operator `units` by the number of units, so that a program keeps its best code for it."""

from __future__ import annotations

from collections.abc import Callable

from jax_cocktail.analysis.parallel import scalar_constants
from jax_cocktail.analysis.trips import loop_with_unknown_trips
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram, is_a, operators_in, walk
from jax_cocktail.utask.rewrite import map_body, map_regions

KIND = "units"


def asks_units(program: UProgram) -> bool:
    """True if the program has different code for one unit and for several."""
    return any(operator.kind == KIND for operator in operators_in(program.entry))


def needs_measurement(program: UProgram) -> bool:
    """True if only a measurement shows the best number of units: the program asks for it, or has iterations
    for several units whose durations are known only at run time."""
    constants = scalar_constants(program.entry)
    loops = (s for s in walk(program.entry) if isinstance(s, LoopUTask))
    return asks_units(program) or any(loop_with_unknown_trips(loop, 2, constants) for loop in loops)


def fix_unit_count(program: UProgram, units: int) -> UProgram:
    """Returns its argument if the program does not ask for the number."""
    if not asks_units(program):
        return program
    constants = scalar_constants(program.entry)  # as placement sees them

    def region(units: int) -> Callable[[Region], Region]:
        return lambda region: map_body(region, lambda statement: known(statement, units))

    def known(statement: Statement, units: int) -> Statement:
        if is_a(statement, KIND):
            data = units.to_bytes(4, "little", signed=True)
            return UOperator("constant", (), statement.outputs, (("data", data),), statement.source)
        alone = isinstance(statement, LoopUTask) and loop_with_unknown_trips(statement, units, constants)
        return map_regions(statement, region(1 if alone else units))

    return map_regions(program, region(units))
