"""Copies into a loop's carried arrays become statements, so that a barrier can stand between copy and loop.

A loop starts by copying what it cannot take over in place. In a program of several units one of them copies a
shared array while the others go on, or all of them copy one that they overwrite later; the barrier that this
takes belongs before the loop, not into its body.

Small carries that become results are copied once, behind the loop: in the result's place, which all units
see, one unit would have to make them, and the others to wait for it, in every trip.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from jax_cocktail.schedule.memory.plan import plan_memory
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, UProgram
from jax_cocktail.utask.plan import REPLICATED_BYTES, MemoryPlan
from jax_cocktail.utask.substitute import FreshValues, replaced


def explicit_copies(program: UProgram, plan: MemoryPlan) -> UProgram:
    """Expects a stitched program and its plan. Returns its argument if no loop copies into shared memory, or
    from it, and none makes results that each unit may make for itself."""
    if plan.most_units <= 1:
        return program
    fresh = FreshValues(program)
    apart = _results_apart(program, fresh)
    if apart is not program:
        program, plan = apart, plan_memory(apart)
    entry = _region(program.entry, plan, fresh)
    return program if entry is program.entry else replace(program, entry=entry)


def _results_apart(program: UProgram, fresh: FreshValues) -> UProgram:
    """The program with copies of those results of loops that then lie in each unit's own memory."""
    entry = program.entry
    taken = {
        entry.parameters[k].type for k in program.donated
    }  # results may take the place of these operands
    made = [v for s in entry.body if isinstance(s, LoopUTask) and not s.parallel for v in s.outputs]
    small = [v for v in made if v in entry.results and v.type.size > 1 and v.type not in taken]
    small = [v for v in small if v.type.nbytes <= REPLICATED_BYTES]
    if not small:
        return program
    copies = {v: UOperator("copy", (v,), (fresh.make(v.type),)) for v in small}
    plan = plan_memory(_with_copies(program, copies.values()))
    own = [v for v in small if plan.slots[plan.layouts[v].root].space == "own"]
    return _with_copies(program, [copies[v] for v in own]) if own else program


def _with_copies(program: UProgram, copies: Iterable[UOperator]) -> UProgram:
    entry, copies = program.entry, tuple(copies)
    names = {c.inputs[0]: c.output for c in copies}
    return replace(
        program, entry=Region(entry.parameters, entry.body + copies, replaced(entry.results, names))
    )


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
