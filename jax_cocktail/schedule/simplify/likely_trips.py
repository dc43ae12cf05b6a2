"""Likely trip counts: how long a while loop may be, as far as the program shows.

    while i < 50 and not done: ...       ->      50
    while i <= n: ... a[i] ...           ->      the length of a

The first is a limit, the second an assumption: a program does not ask for elements that an array does not
have. Prices take the number for the trip count. No result depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jax_cocktail.device.tuning import MODEL
from jax_cocktail.schedule.simplify.trip_counts import Definitions, counters_of, step_of, trips_of
from jax_cocktail.utask.ir import LoopUTask, Statement, UProgram, is_a, operators_in
from jax_cocktail.utask.rewrite import rewrite
from jax_cocktail.utask.types import INTEGERS, Value


def expect_trips(program: UProgram) -> UProgram:
    """Notes the likely trip counts of while loops."""
    definitions: dict[Value, Statement] = {}

    def change(statement: Statement) -> Statement:
        definitions.update((v, statement) for v in statement.outputs)
        return _expected(statement, definitions) if isinstance(statement, LoopUTask) else statement

    return rewrite(program, change)


def _expected(loop: LoopUTask, definitions: Definitions) -> LoopUTask:
    if loop.condition is None:
        return loop
    limits = [trips_of(loop, counter, definitions) for counter in counters_of(loop, definitions)]
    found = [n for n in (*limits, *_lengths(loop, definitions)) if n is not None]
    return replace(loop, likely_trips=min(found + [MODEL.likely_trips])) if found else loop


def _lengths(loop: LoopUTask, definitions: Definitions) -> Iterator[int]:
    """The steps over each axis of which the body takes the element at a counter."""
    for position, carry in enumerate(loop.carried):
        if carry.type.is_scalar and carry.type.dtype in INTEGERS:
            step = step_of(loop, position, definitions)
            if step:
                yield from (-(-length // abs(step)) for length in _indexed(loop, carry))


def _indexed(loop: LoopUTask, counter: Value) -> Iterator[int]:
    """The lengths of the axes of which the body takes the element at a counter. A negative index counts from
    the end: the element `i` is that at `i + length if i < 0 else i`."""
    names = {counter}
    for operator in operators_in(loop.body):
        if is_a(operator, "select") and operator.inputs[2] in names:
            names.add(operator.output)
        elif is_a(operator, "dynamic_slice"):
            array, *starts = operator.inputs
            axes = zip(starts, array.type.shape, operator.output.type.shape, strict=True)
            yield from (length for start, length, taken in axes if start in names and taken == 1)
