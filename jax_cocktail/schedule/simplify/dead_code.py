"""Removes what no result of the program needs: operators, loop carries, branch outputs.

uTasks have no side effects, so a statement without a live output goes (also one that may fail: who wants to
know reads its output). A carry is live if its final value is, or if the loop's condition or the next value of
a live carry reads it.
"""

from __future__ import annotations

from dataclasses import replace

from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UProgram,
    picked,
)
from jax_cocktail.utask.rewrite import map_regions, with_body
from jax_cocktail.utask.types import Value


def remove_dead_code(program: UProgram) -> UProgram:
    """`program` without dead statements, carries and branch outputs."""
    return map_regions(program, lambda region: _region(region, set()))


def _region(region: Region, live: set[Value]) -> Region:
    """`region` cut down to what its results need; adds to `live` everything that it reads."""
    live.update(region.results)
    kept = [_statement(statement, live) for statement in reversed(region.body)]
    return with_body(region, [statement for statement in reversed(kept) if statement is not None])


def _statement(statement: Statement, live: set[Value]) -> Statement | None:
    if not any(value in live for value in statement.outputs):
        return None
    if isinstance(statement, LoopUTask):
        statement = _loop(statement, live)
    elif isinstance(statement, BranchUTask):
        statement = _branch(statement, live)
    elif isinstance(statement, StitchedUTask):
        outputs = tuple(value for value in statement.outputs if value in live)
        statement = statement if outputs == statement.outputs else replace(statement, outputs=outputs)
    live.update(statement.inputs)
    return statement


def _live_carries(loop: LoopUTask, live: set[Value]) -> list[int]:
    """Indices of the live carries, by a fixed point over what their next values read."""
    trial = set(live)
    if loop.condition is not None:
        _region(loop.condition, trial)
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
        _region(replace(loop.body, results=picked(loop.body.results, kept)), trial)


def _loop(loop: LoopUTask, live: set[Value]) -> LoopUTask:
    return map_regions(loop.keep(_live_carries(loop, live)), lambda region: _region(region, live))


def _branch(branch: BranchUTask, live: set[Value]) -> BranchUTask:
    kept = [i for i, output in enumerate(branch.outputs) if output in live]
    return map_regions(branch.keep(kept), lambda region: _region(region, live))
