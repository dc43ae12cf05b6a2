"""Trip-count analysis: finds the counter of a while loop, and its trip count if that is known.

    i = 0; while i < 10: body; i = i + 2      ->      5 iterations of body

`fori_loop` with traced bounds, and most hand-written loops, compare one carry that moves by a constant with a
loop-invariant bound. If start and bound are constants, the loop is counted; otherwise it can still run by
chunks (`chunks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from jax_cocktail.utask.guard import asked
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram, integer_of, is_a
from jax_cocktail.utask.rewrite import rewrite
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import INTEGERS, TensorType, Value

Definitions = Mapping[Value, Statement]

# Comparisons with their operands exchanged.
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


@dataclass(frozen=True, slots=True)
class Counter:
    """Carry `position` moves by `step` per iteration; the loop runs while `test` (lt, le, gt, ge) holds
    between it and `bound`. `prefix`: operators of the condition that compute the bound from outside values
    alone."""

    position: int
    step: int
    test: str
    bound: Value
    prefix: tuple[UOperator, ...]


def integer(value: Value, definitions: Definitions) -> int | None:
    """The number in a constant integer scalar."""
    made = definitions.get(value)
    return integer_of(made) if isinstance(made, UOperator) else None


def counter_of(loop: LoopUTask, definitions: Definitions) -> Counter | None:
    """The counter of a while loop whose condition is one comparison. `definitions`: of outer constants."""
    condition = loop.condition
    if condition is None:
        return None
    return _counter(loop, condition, condition.results[0], definitions)


def counters_of(loop: LoopUTask, definitions: Definitions) -> Iterator[Counter]:
    """The counters of a while loop: each ends it, whatever else its condition asks for."""
    condition = loop.condition
    if condition is not None:
        found = (_counter(loop, condition, value, definitions) for value in asked(condition))
        yield from (counter for counter in found if counter is not None)


def _counter(loop: LoopUTask, condition: Region, truth: Value, definitions: Definitions) -> Counter | None:
    """The counter whose comparison is a value of the condition."""
    inside = {v: s for s in condition.body for v in s.outputs}
    compare = inside.get(truth)
    if not isinstance(compare, UOperator) or compare.kind not in _MIRRORED:
        return None
    left, right = compare.inputs
    test = compare.kind
    if left not in condition.parameters:
        left, right, test = right, left, _MIRRORED[test]
    if left not in condition.parameters or left.type.dtype not in INTEGERS:
        return None
    prefix = _invariant_slice(right, condition, inside)
    position = condition.parameters.index(left)
    step = step_of(loop, position, definitions)
    if prefix is None or not step or (step > 0) != (test in ("lt", "le")):
        return None
    return Counter(position, step, test, right, prefix)


def _invariant_slice(
    value: Value, condition: Region, inside: Mapping[Value, Statement]
) -> tuple[UOperator, ...] | None:
    """The operators of the condition that compute a value, if it depends on no carry."""
    wanted, waiting = set(), [value]
    while waiting:
        here = waiting.pop()
        if here in condition.parameters:
            return None
        made = inside.get(here)
        if made is None:
            continue
        if not isinstance(made, UOperator) or not made.is_element:
            return None
        wanted.add(made.outputs[0])
        waiting += made.inputs
    return tuple(s for s in condition.body if isinstance(s, UOperator) and s.outputs[0] in wanted)


def step_of(loop: LoopUTask, position: int, definitions: Definitions) -> int | None:
    """By how much every iteration moves a carry, if that is a constant."""
    inside = {v: s for s in loop.body.body for v in s.outputs}
    made = inside.get(loop.body.results[position])
    carry = loop.carried[position]
    if not is_a(made, "add", "sub") or carry not in made.inputs:
        return None
    left, right = made.inputs
    moved_by = right if left == carry else left
    step = integer(moved_by, inside if moved_by in inside else definitions)
    if made.kind == "add" or step is None:
        return step
    return -step if left == carry else None


def trips_of(loop: LoopUTask, counter: Counter, definitions: Definitions) -> int | None:
    """The trip count, if start and bound are constants and the counter never wraps around."""
    inside = {v: s for s in counter.prefix for v in s.outputs}
    start = integer(loop.initial[counter.position], definitions)
    bound = integer(counter.bound, inside if counter.bound in inside else definitions)
    if start is None or bound is None:
        return None
    span = (bound - start) * (1 if counter.step > 0 else -1)
    step = abs(counter.step)
    trips = max(span // step + 1 if counter.test in ("le", "ge") else -(-span // step), 0)
    limits = np.iinfo(counter.bound.type.dtype)
    last = start + trips * counter.step
    return trips if limits.min <= last <= limits.max else None


def count_loops(program: UProgram) -> UProgram:
    """Turns while loops with known trip counts into counted loops."""
    fresh = FreshValues(program)
    definitions: dict[Value, Statement] = {}

    def change(statement: Statement) -> Statement:
        definitions.update((v, statement) for v in statement.outputs)
        return _counted(statement, definitions, fresh) if isinstance(statement, LoopUTask) else statement

    return rewrite(program, change)


def _counted(loop: LoopUTask, definitions: Definitions, fresh: FreshValues) -> LoopUTask:
    counter = counter_of(loop, definitions)
    trips = None if counter is None else trips_of(loop, counter, definitions)
    if trips is None:
        return loop
    body = replace(loop.body, parameters=(fresh.make(TensorType("int64")), *loop.body.parameters))
    return replace(loop, body=body, condition=None, trip_count=trips, likely_trips=None)
