"""Makes launch parameters numbers again, in programs for a GPU that would pay for them.

A kernel reads a launch parameter from the bank of constants, which takes no register. A function of its own
gets it in one: with the places of arrays that follow from a length they take so many that loops run slower
(emulated, a step of ten LSTM layers at batch 64 takes 6 % longer). Such a program is compiled for each
length. So is one whose long loops do not all have launch parameters for their numbers of trips: where passes
have divided a sequence into strips, or never knew how far loops go, its text hardly serves another length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax_cocktail.codegen.outline import wants_outlining
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.utask.ir import (
    Attribute,
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    defined_in,
    walk,
)
from jax_cocktail.utask.sizes import Size
from jax_cocktail.utask.types import Value


def known_lengths(program: UProgram, most_loops: int) -> UProgram:
    """Returns its argument if it has at most so many lane loops, and long loops of which each has a launch
    parameter for its number of trips; or if it has no launch parameter."""
    loops = (s for s in walk(program.entry) if isinstance(s, LoopUTask) and not s.parallel)
    long = [n for n in (loop.trip_count for loop in loops) if n and n >= PROGRAM.parameter_trips]
    lengths = (n for value in defined_in(program.entry) for n in value.type.shape)
    sized = bool(long) and all(isinstance(n, Size) for n in long)
    if sized and not wants_outlining(program, most_loops):
        return program
    if not any(isinstance(n, Size) for n in (*long, *lengths)):
        return program
    return replace(program, entry=_region(program.entry))


def _region(region: Region) -> Region:
    body = tuple(map(_statement, region.body))
    return Region(_values(region.parameters), body, _values(region.results))


def _statement(statement: Statement) -> Statement:
    outputs = _values(statement.outputs)
    if isinstance(statement, UOperator):
        return _operator(statement)
    if isinstance(statement, StitchedUTask):
        members = tuple(map(_operator, statement.members))
        return replace(statement, members=members, inputs=_values(statement.inputs), outputs=outputs)
    if isinstance(statement, BranchUTask):
        branches = tuple(map(_region, statement.branches))
        return replace(statement, branches=branches, outputs=outputs)
    return _loop(statement)


def _loop(loop: LoopUTask) -> LoopUTask:
    return replace(
        loop,
        initial=_values(loop.initial),
        outputs=_values(loop.outputs),
        condition=None if loop.condition is None else _region(loop.condition),
        body=_region(loop.body),
        trip_count=None if loop.trip_count is None else int(loop.trip_count),
    )


def _operator(operator: UOperator) -> UOperator:
    attributes = tuple((name, _number(value)) for name, value in operator.attributes)
    inputs, outputs = _values(operator.inputs), _values(operator.outputs)
    return replace(operator, inputs=inputs, outputs=outputs, attributes=attributes)


def _values(values: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(Value(v.id, replace(v.type, shape=tuple(map(int, v.type.shape)))) for v in values)


def _number(value: Attribute) -> Attribute:
    if isinstance(value, tuple):
        return tuple(map(_number, value))
    return int(value) if isinstance(value, Size) else value
