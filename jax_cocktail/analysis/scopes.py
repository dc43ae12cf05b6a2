"""Scopes: the lanes and units of a machine that a statement takes (COCKTAILER, OSDI'23, section 3).

The scopes are those of the machine: L0 a lane (a GPU thread), L1 a unit (a thread block; on the CPU a
thread), L2 the device (all units). A statement's scope is not chosen but follows from the
program, because placement has become structure: work divided over units is a parallel loop. Constraint 1 of
the paper: the scope of a control flow is never below that of its body, or some lanes or units would wait at a
barrier that the others never reach. Scopes of loops and branches follow from their bodies, so only a barrier
in a parallel loop could break it, whose trips each run on one unit: see `analysis.parallel`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from jax_cocktail.utask.ir import (
    Statement,
    UOperator,
    UProgram,
    is_parallel,
    regions_of,
)
from jax_cocktail.utask.operators import BARRIERS
from jax_cocktail.utask.rewrite import Inside, fold
from jax_cocktail.utask.types import Value


class Scope(IntEnum):
    """The executors of a statement: one lane alone, the lanes of one unit, or all units."""

    LANE = 0
    UNIT = 1
    DEVICE = 2

    def __str__(self) -> str:
        return f"L{self.value}"


def scope_of(statement: Statement) -> Scope:
    """The scope that a statement needs; a loop or branch has the highest scope in its body."""

    def each(s: Statement, inside: Inside[Scope]) -> Scope:
        if isinstance(s, UOperator):
            return _operator_scope(s)
        if is_parallel(s):
            return Scope.DEVICE
        joined = s.outputs if regions_of(s) else ()  # values that a join or a carry copies
        return max((_array_scope(joined), *map(_highest, inside)))

    return fold(statement, each)


def program_scope(program: UProgram) -> Scope:
    """The scope of a uProgram: `DEVICE` if its units share work, else one unit (or lane) runs it."""
    return _highest(map(scope_of, program.entry.body))


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
