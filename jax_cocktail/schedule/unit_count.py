"""Tells a program how many units it is planned for, so that it keeps the way that is best for so many."""

from __future__ import annotations

from collections.abc import Callable

from jax_cocktail.analysis.parallel import scalar_constants
from jax_cocktail.analysis.trips import goes_by_trips
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram, is_a, operators_in, walk
from jax_cocktail.utask.rewrite import map_body, map_regions

KIND = "units"


def asks_units(program: UProgram) -> bool:
    """Whether the program has a way for one unit and another one for several."""
    return any(operator.kind == KIND for region in program.regions for operator in operators_in(region))


def no_price_tells(program: UProgram) -> bool:
    """Whether only a measurement can tell how many units are best: the program asks, or has trips for several
    units of which only the run tells how long they take."""
    constants = scalar_constants(operators_in(program.entry))
    loops = (s for s in walk(program.entry) if isinstance(s, LoopUTask))
    return asks_units(program) or any(goes_by_trips(loop, 2, constants) is not None for loop in loops)


def know_units(program: UProgram, units: int) -> UProgram:
    """Returns its argument if it does not ask."""
    if not asks_units(program):
        return program
    constants = scalar_constants(operators_in(program.entry))  # as placement sees them

    def region(units: int) -> Callable[[Region], Region]:
        return lambda region: map_body(region, lambda statement: known(statement, units))

    def known(statement: Statement, units: int) -> Statement:
        if is_a(statement, KIND):
            data = units.to_bytes(4, "little", signed=True)
            return UOperator("constant", (), statement.outputs, (("data", data),), statement.source)
        alone = isinstance(statement, LoopUTask) and goes_by_trips(statement, units, constants) is not None
        return map_regions(statement, region(1 if alone else units))

    return map_regions(program, region(units))
