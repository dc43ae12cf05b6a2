"""Turns copies into a loop's carried arrays into statements, so that a barrier fits between copy and loop.

    loop from (x) { ... }   ->   y = copy x;  loop from (y) { ... }

A loop starts by copying the initial values that it cannot take over in place. With several units, one of them
copies a shared array while the others go on, or all copy an array that they overwrite later; the barrier for
this belongs before the loop, not in its body. A parallel loop cannot copy at all.

A copy lies where the plan has put the carried array. Nothing else is there when the loop begins, so the plan
stays valid. A new plan could put the copy elsewhere, and then the loop would have to copy again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram
from jax_cocktail.utask.layout import dense
from jax_cocktail.utask.plan import MemoryPlan, Slot
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value


def explicit_copies(program: UProgram, plan: MemoryPlan) -> tuple[UProgram, MemoryPlan]:
    """Expects a stitched program and its plan. Returns its arguments if no loop copies into or out of shared
    memory."""
    if plan.most_units <= 1:
        return program, plan
    fresh, slots = FreshValues(program), dict[Value, Slot]()

    def inside(region: Region) -> Region:
        return map_body(region, with_copies)

    def with_copies(statement: Statement) -> Sequence[Statement]:
        copies: dict[int, UOperator] = {}
        if isinstance(statement, LoopUTask):
            copies = _initial_copies(statement, plan, fresh)
            slots.update((copy.output, plan.slot(statement.carried[k])) for k, copy in copies.items())
            statement = _from_copies(statement, copies)
            if statement.parallel:
                return [*copies.values(), statement]
        return [*copies.values(), map_regions(statement, inside)]

    copied = map_regions(program, inside)
    if not slots:
        return program, plan
    layouts = {value: dense(value) for value in slots}
    return copied, replace(plan, layouts={**plan.layouts, **layouts}, slots={**plan.slots, **slots})


def copied_carries(loop: LoopUTask, plan: MemoryPlan) -> list[int]:
    """The positions of the carries that the loop starts by copying into or out of shared memory."""
    found = []
    for k, (source, target) in enumerate(zip(loop.initial, loop.carried, strict=True)):
        if target not in plan.layouts or not target.type.size or source not in plan.layouts:
            continue
        spaces = {plan.slot(source).space, plan.slot(target).space}
        crosses = not spaces <= {"own", "private"}  # memory of one unit
        if crosses and not plan.same_place(source, target):
            found.append(k)
    return found


def _initial_copies(loop: LoopUTask, plan: MemoryPlan, fresh: FreshValues) -> dict[int, UOperator]:
    """The copies that the loop starts with, by the positions of the carries."""
    sources = {k: loop.initial[k] for k in copied_carries(loop, plan)}
    return {k: UOperator("copy", (v,), (fresh.make(v.type),), (), loop.source) for k, v in sources.items()}


def _from_copies(loop: LoopUTask, copies: dict[int, UOperator]) -> LoopUTask:
    if not copies:
        return loop
    initial = tuple(copies[k].output if k in copies else v for k, v in enumerate(loop.initial))
    return replace(loop, initial=initial)
