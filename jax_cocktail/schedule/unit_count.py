"""Tells a program how many units it is planned for, so that it keeps the way that is best for so many."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jax_cocktail.analysis.parallel import Constants, scalar_constants
from jax_cocktail.analysis.trips import goes_by_trips
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    operators_in,
    walk,
)

KIND = "units"


def asks_units(program: UProgram) -> bool:
    """Whether the program has a way for one unit and another one for several."""
    return any(operator.kind == KIND for operator in operators_in(program.entry))


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
    knower = _Knower(scalar_constants(operators_in(program.entry)))
    return replace(program, entry=knower.region(program.entry, units))


@dataclass(frozen=True, slots=True)
class _Knower:
    """`constants`: of the whole program, as placement sees them, so that both find the same loops."""

    constants: Constants

    def region(self, region: Region, units: int) -> Region:
        return replace(region, body=tuple(self._statement(s, units) for s in region.body))

    def _statement(self, statement: Statement, units: int) -> Statement:
        if isinstance(statement, UOperator) and statement.kind == KIND:
            data = units.to_bytes(4, "little", signed=True)
            return UOperator("constant", (), statement.outputs, (("data", data),), statement.source)
        if isinstance(statement, LoopUTask):
            units = 1 if goes_by_trips(statement, units, self.constants) else units
            condition = statement.condition and self.region(statement.condition, units)
            return replace(statement, condition=condition, body=self.region(statement.body, units))
        if isinstance(statement, BranchUTask):
            branches = tuple(self.region(r, units) for r in statement.branches)
            return replace(statement, branches=branches)
        return statement
