"""Removes what no result of the program needs: operators, loop carries, branch outputs.

uTasks have no side effects, so a statement without a live output goes (also one that may fail: who wants to
know reads its output). A carry is live if its final value is, or if the loop's condition or the next value of
a live carry reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UProgram,
)
from jax_cocktail.utask.types import Value


def remove_dead_code(program: UProgram) -> UProgram:
    """`program` without dead statements, carries and branch outputs."""
    entry = _region(program.entry, program.entry.results, set())
    return replace(program, entry=entry)


def _region(region: Region, results: Sequence[Value], live: set[Value]) -> Region:
    """`region` cut down to `results`; adds to `live` everything that it reads."""
    live.update(results)
    kept = [_statement(statement, live) for statement in reversed(region.body)]
    body = tuple(statement for statement in reversed(kept) if statement is not None)
    return Region(region.parameters, body, tuple(results))


def _statement(statement: Statement, live: set[Value]) -> Statement | None:
    if not any(value in live for value in statement.outputs):
        return None
    if isinstance(statement, LoopUTask):
        statement = _loop(statement, live)
    elif isinstance(statement, BranchUTask):
        statement = _branch(statement, live)
    elif isinstance(statement, StitchedUTask):
        outputs = tuple(value for value in statement.outputs if value in live)
        statement = replace(statement, outputs=outputs)
    live.update(statement.inputs)
    return statement


def _picked(values: Sequence[Value], indices: Sequence[int]) -> tuple[Value, ...]:
    return tuple(values[i] for i in indices)


def _live_carries(loop: LoopUTask, live: set[Value]) -> list[int]:
    """Indices of the live carries, by a fixed point over what their next values read."""
    trial = set(live)
    if loop.condition is not None:
        _region(loop.condition, loop.condition.results, trial)
    tested = loop.condition.parameters if loop.condition is not None else loop.carried
    kept: list[int] = []
    while True:
        needed = [
            i
            for i, output in enumerate(loop.outputs)
            if output in live or tested[i] in trial or loop.carried[i] in trial
        ]
        if needed == kept:
            return kept
        kept = needed
        _region(loop.body, _picked(loop.body.results, kept), trial)


def _loop(loop: LoopUTask, live: set[Value]) -> LoopUTask:
    kept = _live_carries(loop, live)
    condition = loop.condition
    if condition is not None:
        tested = replace(condition, parameters=_picked(condition.parameters, kept))
        condition = _region(tested, condition.results, live)
    index = () if loop.index is None else (loop.index,)
    body = replace(loop.body, parameters=(*index, *_picked(loop.carried, kept)))
    return replace(
        loop,
        initial=_picked(loop.initial, kept),
        outputs=_picked(loop.outputs, kept),
        condition=condition,
        body=_region(body, _picked(loop.body.results, kept), live),
    )


def _branch(branch: BranchUTask, live: set[Value]) -> BranchUTask:
    kept = [i for i, output in enumerate(branch.outputs) if output in live]
    regions = tuple(_region(region, _picked(region.results, kept), live) for region in branch.branches)
    return replace(branch, branches=regions, outputs=_picked(branch.outputs, kept))
