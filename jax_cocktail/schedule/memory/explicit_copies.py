"""Turns copies into a loop's carried arrays into statements, so that a barrier fits between copy and loop.

    loop from (x) { ... }   ->   y = copy x;  loop from (y) { ... }

A loop starts by copying the initial values that it cannot take over in place. With several units, one of them
copies a shared array while the others go on, or all copy an array that they overwrite later; the barrier for
this belongs before the loop, not in its body.

Small carries that become results are copied once, after the loop. Otherwise they would live in the shared
memory of the result, where one unit would compute them and the others wait for it, in every iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.schedule.memory.plan import plan_memory
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.rewrite import map_body, map_regions, with_body
from jax_cocktail.utask.substitute import FreshValues, replaced


def explicit_copies(program: UProgram, plan: MemoryPlan) -> UProgram:
    """Expects a stitched program and its plan. Returns its argument if no loop copies into or out of shared
    memory, and no loop makes results that each unit may make for itself."""
    if plan.most_units <= 1:
        return program
    fresh = FreshValues(program)
    apart = _results_apart(program, fresh)
    if apart is not program:
        program, plan = apart, plan_memory(apart)

    def inside(region: Region) -> Region:
        return map_body(region, with_copies)

    def with_copies(statement: Statement) -> Sequence[Statement]:
        copies: list[Statement] = []
        if isinstance(statement, LoopUTask):
            copies, statement = _initial_copies(statement, plan, fresh)
            if statement.parallel:
                return [*copies, statement]
        return [*copies, map_regions(statement, inside)]

    return map_regions(program, inside)


def _results_apart(program: UProgram, fresh: FreshValues) -> UProgram:
    """The program with copies of those results of loops that then lie in each unit's own memory."""
    entry = program.entry
    taken = {entry.parameters[k].type for k in program.donated}  # results may replace these operands
    made = [v for s in entry.body if isinstance(s, LoopUTask) and not s.parallel for v in s.outputs]
    small = [v for v in made if v in entry.results and v.type.size > 1 and v.type not in taken]
    small = [v for v in small if v.type.nbytes <= PROGRAM.replicated_bytes]
    if not small:
        return program
    copies = {v: UOperator("copy", (v,), (fresh.make(v.type),)) for v in small}
    plan = plan_memory(_with_copies(program, copies.values()))
    return _with_copies(program, [copies[v] for v in small if plan.slot(v).space == "own"])


def _with_copies(program: UProgram, copies: Iterable[UOperator]) -> UProgram:
    entry, copies = program.entry, tuple(copies)
    names = {c.inputs[0]: c.output for c in copies}
    entry = with_body(entry, entry.body + copies, replaced(entry.results, names))
    return program if entry is program.entry else replace(program, entry=entry)


def _initial_copies(
    loop: LoopUTask, plan: MemoryPlan, fresh: FreshValues
) -> tuple[list[Statement], LoopUTask]:
    """The copies that the loop starts with, and the loop on their results."""
    copies: dict[int, UOperator] = {}
    for k, (source, target) in enumerate(zip(loop.initial, loop.carried, strict=True)):
        if target not in plan.layouts or not target.type.size or source not in plan.layouts:
            continue
        here, there = plan.slot(source), plan.slot(target)
        in_place = plan.layouts[source].is_whole and here == there
        crosses = not {here.space, there.space} <= {"own", "private"}  # memory of one unit
        if crosses and not in_place:
            copies[k] = UOperator("copy", (source,), (fresh.make(source.type),), (), loop.source)
    if not copies:
        return [], loop
    initial = tuple(copies[k].output if k in copies else v for k, v in enumerate(loop.initial))
    return [*copies.values()], replace(loop, initial=initial)
