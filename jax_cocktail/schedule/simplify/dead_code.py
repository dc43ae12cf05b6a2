"""Removes operators, loop carries and branch outputs that no result of the program needs.

uTasks have no side effects, so a statement without a live output is removed. So is one that may fail: a
reader of the failure reads its output. A carry is live if its final value is, or if the loop's condition or
the next value of a live carry reads it. Liveness visits each value once, through all regions, so its time is
linear in the program, however deep the loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, StitchedUTask, UProgram, walk
from jax_cocktail.utask.rewrite import map_regions, with_body
from jax_cocktail.utask.types import Value


def remove_dead_code(program: UProgram) -> UProgram:
    """`program` without dead statements, carries and branch outputs; itself if there are none."""
    return map_regions(program, lambda region: _region(region, _live(region)))


def _live(region: Region) -> Set[Value]:
    """The values that the results of the region need, nested regions included."""
    needs = _needs(region)
    live = set(region.results)
    waiting = list(live)
    while waiting:
        for value in needs.get(waiting.pop(), ()):
            if value not in live:
                live.add(value)
                waiting.append(value)
    return live


def _needs(region: Region) -> Mapping[Value, tuple[Value, ...]]:
    """For every value its operands; for a carry, under each name, its initial and next value and
    condition."""
    found: dict[Value, tuple[Value, ...]] = {}
    for statement in walk(region):
        if isinstance(statement, LoopUTask):
            asked = statement.condition.results if statement.condition is not None else ()
            for i, names in enumerate(_names(statement)):
                needed = (statement.initial[i], statement.body.results[i], *asked)
                found.update(dict.fromkeys(names, needed))
        elif isinstance(statement, BranchUTask):
            for i, output in enumerate(statement.outputs):
                found[output] = (statement.selector, *(r.results[i] for r in statement.branches))
        else:
            found.update(dict.fromkeys(statement.outputs, statement.inputs))
    return found


def _names(loop: LoopUTask) -> list[tuple[Value, ...]]:
    """For each carry its output, its parameter in the body and that in the condition."""
    return list(zip(loop.outputs, loop.carried, loop.tested, strict=True))


def _region(region: Region, live: Set[Value]) -> Region:
    """The live part of `region`."""
    return with_body(region, [_cut(s, live) for s in region.body if not live.isdisjoint(s.outputs)])


def _cut(statement: Statement, live: Set[Value]) -> Statement:
    if isinstance(statement, LoopUTask):
        statement = statement.keep([i for i, v in enumerate(_names(statement)) if not live.isdisjoint(v)])
    elif isinstance(statement, BranchUTask):
        statement = statement.keep([i for i, output in enumerate(statement.outputs) if output in live])
    elif isinstance(statement, StitchedUTask) and not live >= set(statement.outputs):
        return replace(statement, outputs=tuple(value for value in statement.outputs if value in live))
    return map_regions(statement, lambda inner: _region(inner, live))
