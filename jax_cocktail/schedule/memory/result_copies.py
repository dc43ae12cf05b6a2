"""Copies small carries that become results once, after the loop.

Otherwise they would live in the shared memory of the result, where one unit would compute them and the others
wait for it, in every iteration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from jax_cocktail.analysis.scopes import Scope, program_scope
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.schedule.memory.plan import plan_memory
from jax_cocktail.utask.ir import LoopUTask, UOperator, UProgram
from jax_cocktail.utask.rewrite import with_body
from jax_cocktail.utask.substitute import FreshValues, replaced


def result_copies(program: UProgram) -> UProgram:
    """The program with copies of those results of loops that then lie in each unit's own memory. Expects a
    stitched program; returns its argument if there are none, or if one unit does all the work."""
    if program_scope(program) is not Scope.DEVICE:
        return program
    entry, fresh = program.entry, FreshValues(program)
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
