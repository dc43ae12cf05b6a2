"""Scopes: the lanes and units of a machine that a statement takes (COCKTAILER, OSDI'23, section 3).

The scopes are those of the machine: L0 a lane (a GPU thread), L1 a unit (a thread block; on the CPU a
thread), L2 the device (all units of a domain). A statement's scope is not chosen but follows from the
program, because placement has become structure: work divided over units is a parallel loop. Constraint 1 of
the paper: the scope of a control flow is never below that of its body, or some lanes or units would wait at a
barrier that the others never reach. The verifier checks it after every pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from jax_cocktail.utask.ir import (
    Region,
    Statement,
    UOperator,
    UProgram,
    UTaskRef,
    is_parallel,
    operators_of,
    regions_of,
    walk,
)
from jax_cocktail.utask.operators import BARRIERS
from jax_cocktail.utask.rewrite import Inside, fold
from jax_cocktail.utask.types import Value


class Scope(IntEnum):
    """The executors of a statement: one lane alone, the lanes of one unit, or the units of a domain."""

    LANE = 0
    UNIT = 1
    DEVICE = 2

    def __str__(self) -> str:
        return f"L{self.value}"


Scopes = Mapping[str, Scope]  # of functions, by name
_NONE: Scopes = {}


def scope_of(statement: Statement, functions: Scopes = _NONE, within: Scope = Scope.DEVICE) -> Scope:
    """The scope that a statement needs.

    Args:
      statement: any statement; a loop or branch has the highest scope in its body.
      functions: the scopes of the functions that references name.
      within: `Scope.UNIT` in the body of a parallel loop, where one unit runs a part alone and parallel
        loops are loops like others.
    """

    def each(s: Statement, inside: Inside[Scope]) -> Scope:
        if isinstance(s, UOperator):
            return _operator_scope(s)
        if isinstance(s, UTaskRef):
            return functions.get(s.function, Scope.LANE)
        if is_parallel(s) and within is Scope.DEVICE:
            return Scope.DEVICE
        joined = s.outputs if regions_of(s) else ()  # values that a join or a carry copies
        return max((_array_scope(joined), *map(_highest, inside)))

    return fold(statement, each)


def program_scope(program: UProgram) -> Scope:
    """The scope of a uProgram: `DEVICE` if its units share work, else one unit (or lane) runs it."""
    return _region_scope(program.entry, function_scopes(program), Scope.DEVICE)


def function_scopes(program: UProgram, within: Scope = Scope.DEVICE) -> dict[str, Scope]:
    """The scope of every function, by name: the least fixed point, since functions may call themselves."""
    scopes = {function.name: Scope.LANE for function in program.functions}
    changed = bool(scopes)
    while changed:
        changed = False
        for function in program.functions:
            scope = _region_scope(function.body, scopes, within)
            changed |= scope is not scopes[function.name]
            scopes[function.name] = scope
    return scopes


def scope_fault(program: UProgram) -> tuple[Statement | None, str]:
    """A statement that breaks constraint 1, and the message; (None, "") if there is none.

    Scopes of loops and branches follow from their bodies, so only one fault is possible: a statement that
    needs all units in a parallel loop, whose trips each run on one unit.
    """
    inside = function_scopes(program, Scope.UNIT)
    for region in program.regions:
        found = _device_scope_part(region, inside)
        if found is not None:
            what = f"{found.function}, which has a barrier," if isinstance(found, UTaskRef) else "a barrier"
            return found, (
                f"{what} in a parallel loop: one unit runs each of its trips, and units have unequal numbers"
                " of trips; constraint 1 wants a control flow at the scope of its body"
            )
    return None, ""


def _device_scope_part(region: Region, functions: Scopes) -> Statement | None:
    """The first statement in a parallel loop that needs the device."""
    loops = (s for s in walk(region) if is_parallel(s))
    inside = (s for loop in loops for s in walk(loop.body))
    return next((s for s in inside if _meets(s, functions)), None)


def _meets(statement: Statement, functions: Scopes) -> bool:
    """True if a statement without regions has a barrier among units."""
    if isinstance(statement, UTaskRef):
        return functions.get(statement.function) is Scope.DEVICE
    return any(operator.kind in BARRIERS for operator in operators_of(statement))


def _region_scope(region: Region, functions: Scopes, within: Scope) -> Scope:
    return _highest(scope_of(statement, functions, within) for statement in region.body)


def _highest(scopes: Iterable[Scope]) -> Scope:
    return max(scopes, default=Scope.LANE)


def _operator_scope(operator: UOperator) -> Scope:
    """One lane executes operators on registers, or on one element of an array."""
    if operator.kind in BARRIERS:
        return Scope.DEVICE
    touched = operator.outputs if operator.is_element else (*operator.inputs, *operator.outputs)
    return _array_scope(touched)


def _array_scope(values: Iterable[Value]) -> Scope:
    return Scope.UNIT if any(value.type.size > 1 for value in values) else Scope.LANE
