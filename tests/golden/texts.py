"""The texts that the golden files pin, and a digest of each when this module is run."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from functools import cache

from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import Emitted, emit
from jax_cocktail.device.nvidia import H200
from jax_cocktail.utask.ir import operators_in
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.printer import print_program
from tests.golden.programs import DIVIDED, PROGRAMS


def _plan_text(plan: MemoryPlan) -> str:
    slots = sorted({(slot.space, slot.index) for slot in plan.slots.values()})
    text = "".join(f"  {space} {index}\n" for space, index in slots)
    return f"buffers:\n{text}aliases: {list(plan.aliases)}\nworkspace: {plan.workspace_bytes} bytes\n"


def _units_text(emitted: Emitted) -> str:
    """The units of a plan, what they keep to themselves, and how often the text makes them wait."""
    plan, kinds = emitted.plan, Counter(o.kind for o in operators_in(emitted.program.entry))
    counts = ", ".join(f"{kinds[kind]} {kind}" for kind in ("arrive", "wait", "block_barrier", "exchange"))
    return (
        f"units: {plan.most_units}{' in one cluster' if plan.cluster else ''}\n"
        f"own: {plan.own_bytes} bytes, resident: {plan.resident_bytes} bytes of each unit\n"
        f"barriers: {counts}\n"
    )


@cache
def divided(name: str) -> Emitted:
    """The emitted program of a case of `DIVIDED`."""
    case = DIVIDED[name]
    if case.on_gpu:
        return emit(case.program(), machine_of(H200, 128), candidate=case.candidate)
    return emit(case.program(), candidate=case.candidate)


def texts(name: str) -> dict[str, str]:
    """By the name of its file, every text of a program or of a divided case."""
    if name in DIVIDED:
        emitted = divided(name)
        ir = f"{print_program(emitted.program)}\n{_plan_text(emitted.plan)}{_units_text(emitted)}"
        return {f"{name}.txt": ir, f"{name}.{'cu' if DIVIDED[name].on_gpu else 'cc'}": emitted.source}
    program = PROGRAMS[name]()
    emitted = emit(program)
    ir = f"{print_program(emitted.program)}\n{_plan_text(emitted.plan)}"
    on_gpu = emit(program, machine_of(H200, 128)).source
    return {f"{name}.txt": ir, f"{name}.cc": emitted.source, f"{name}.cu": on_gpu}


def digests() -> dict[str, str]:
    """By the name of its file, the sha256 of every text."""
    found = [text for name in (*PROGRAMS, *DIVIDED) for text in texts(name).items()]
    return {file: hashlib.sha256(text.encode()).hexdigest() for file, text in found}


if __name__ == "__main__":
    print(json.dumps(digests()))
