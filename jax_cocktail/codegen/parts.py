"""Parts: the functions of a long program are shared out, and the host compiler takes several parts at once.

The text stays one: without CK_PART_NUMBER it is the whole program. The parts depend on the text alone, so
that every machine makes the same binary of it. Functions that call the same template are in one part, since
each part that calls a template compiles it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from jax_cocktail.codegen.text import table, table_type
from jax_cocktail.device.target import Target
from jax_cocktail.utask.ir import UOperator, UProgram, walk
from jax_cocktail.utask.plan import MemoryPlan

PART_BYTES = 36 << 10  # [M] of work: the compiler takes 0.3 s for it, and 0.04 s for the headers
MOST_PARTS = 32
# Work is measured in bytes of text that take the compiler as long.
TEMPLATE_BYTES = 16 << 10  # [M] of a template, once in a part
CALL_BYTES = 8 << 10  # [M] of a function that calls one: the template is compiled for its shape
LANE_LOOP, LANE_LOOP_BYTES = "CK_LANES", 2 << 10  # [M] of a loop over lanes


@dataclass(frozen=True, slots=True)
class Function:
    """The text of a function: its head with the brace, and its body. `template`: see `kernel.Compound`."""

    head: str
    body: str
    template: str = ""

    def __str__(self) -> str:
        return f"{self.head}\n{self.body}\n}}"


def arranged(
    exports: Sequence[str],
    tables: Sequence[str],
    functions: Sequence[Function],
    entry: Sequence[str],
    part_bytes: int,
) -> list[str]:
    """The lines of a program. `exports`: what the runtime reads; `part_bytes`: of a part's text, 0 for a
    program that stays whole."""
    text = sum(map(len, (*map(str, functions), *entry)))
    templates = {each.template for each in functions} - {""}
    work = TEMPLATE_BYTES * len(templates) + sum(map(_work, functions)) + sum(map(_work_of, entry))
    count = min(work // part_bytes, MOST_PARTS, 1 + len(functions)) if part_bytes else 1
    if count < 2 or sum(map(len, tables)) > text:  # each part has all tables
        return [*exports, *tables, *map(str, functions), *entry]
    shared = [replace(each, head=each.head.replace("CK_NOINLINE", "CK_FUNCTION")) for each in functions]
    loads, parts = [sum(map(_work_of, entry)), *[0] * (count - 1)], [list[str]() for _ in range(count)]
    homes = dict[str, int]()  # of templates
    for each in sorted(shared, key=lambda each: not each.template):  # the largest pieces of work come first
        home = homes.get(each.template, loads.index(min(loads)))
        if each.template and each.template not in homes:
            homes[each.template] = home
            loads[home] += TEMPLATE_BYTES
        loads[home] += _work(each)
        parts[home].append(str(each))
    first, *others = parts[0], *filter(None, parts[1:])
    prototypes = [each.head.removesuffix(" {") + ";" for each in shared]
    lines = [*(_guarded(0, exports) if exports else []), *tables, *prototypes]
    for number, part in enumerate(others, 1):
        lines += _guarded(number, part)
    return [*lines, *_guarded(0, [*first, *entry])]


def _work(function: Function) -> int:
    """The compiler's work for a function, apart from its template."""
    return _work_of(str(function)) + (CALL_BYTES if function.template else 0)


def _work_of(text: str) -> int:
    return len(text) + LANE_LOOP_BYTES * text.count(LANE_LOOP)


def tables(program: UProgram, plan: MemoryPlan, target: Target) -> list[str]:
    """The definitions of the constants that lie in memory."""
    lines = []
    for statement in walk(program.entry):
        if isinstance(statement, UOperator) and statement.kind == "constant":
            value = statement.output
            if value in plan.layouts and value.type.size:
                text = table(cast(bytes, statement["data"]), value.type.dtype)
                kind = table_type(value.type.dtype)
                lines.append(f"alignas(64) {target.table} {kind} c{value.id}[] = {{{text}}};")
    return lines


def _guarded(number: int, lines: Sequence[str]) -> list[str]:
    return [f"#if CK_IN_PART({number})", *lines, "#endif"]
