"""Copies into a loop's carried arrays become statements, so that a barrier can stand between copy and loop.

A loop starts by copying what it cannot take over in place. In a program of several units one of them copies a
shared array while the others go on, or all of them copy one that they overwrite later; the barrier that this
takes belongs before the loop, not into its body.
"""

from __future__ import annotations

from dataclasses import replace

from jax_cocktail.schedule.memory_plan import plan_memory
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, UProgram
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.substitute import FreshValues


def explicit_copies(program: UProgram) -> UProgram:
    """Expects a stitched program. Returns its argument if no loop copies into shared memory, or from it."""
    plan = plan_memory(program)
    if plan.most_units <= 1:
        return program
    entry = _region(program.entry, plan, FreshValues(program))
    return program if entry is program.entry else replace(program, entry=entry)


def _region(region: Region, plan: MemoryPlan, fresh: FreshValues) -> Region:
    body: list[Statement] = []
    for statement in region.body:
        if isinstance(statement, LoopUTask):
            body += _loop(statement, plan, fresh)
        elif isinstance(statement, BranchUTask):
            branches = tuple(_region(r, plan, fresh) for r in statement.branches)
            same = all(a is b for a, b in zip(branches, statement.branches, strict=True))
            body.append(statement if same else replace(statement, branches=branches))
        else:
            body.append(statement)
    same = len(body) == len(region.body) and all(a is b for a, b in zip(body, region.body, strict=True))
    return region if same else replace(region, body=tuple(body))


def _loop(loop: LoopUTask, plan: MemoryPlan, fresh: FreshValues) -> list[Statement]:
    copies: list[Statement] = []
    initial = list(loop.initial)
    for k, (source, target) in enumerate(zip(loop.initial, loop.carried, strict=True)):
        if target not in plan.layouts or not target.type.size or source not in plan.layouts:
            continue
        a, b = plan.layouts[source], plan.layouts[target]
        here, there = plan.slots[a.root], plan.slots[b.root]
        in_place = a.is_whole and here == there
        crosses = there.space != "own" or here.space != "own"
        if crosses and not in_place:
            initial[k] = fresh.make(source.type)
            copies.append(UOperator("copy", (source,), (initial[k],), (), loop.source))
    if copies:
        loop = replace(loop, initial=tuple(initial))
    if not loop.parallel:
        body = _region(loop.body, plan, fresh)
        loop = loop if body is loop.body else replace(loop, body=body)
    return [*copies, loop]
