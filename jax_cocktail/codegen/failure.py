"""Programs that can fail: the code that a unit leaves, and what it means.

The unit goes on after that: the others count on it at their barriers.
"""

from __future__ import annotations

from jax_cocktail.codegen.context import ALONE, Context
from jax_cocktail.codegen.kernel import Expression
from jax_cocktail.codegen.writer import code, joined
from jax_cocktail.device.target import Target
from jax_cocktail.utask.failure import lines_of, text_of
from jax_cocktail.utask.ir import UOperator, UProgram, operators_in


def emit_fail(context: Context, operator: UOperator) -> None:
    """Whoever keeps a code of its own tells; where there is one for all, one thread."""
    (status,) = operator.inputs
    name, first = context.register(status), context.first_codes[text_of(operator)]
    told = code(context.target.fail, code=code("{} + {}", first, name) if first else name)
    conditions: list[Expression] = [code("{} != 0", name)]
    if context.target.has_threads:  # in memory of all
        conditions += [ALONE] if context.has_units and not context.part_depth else []
        conditions.append("ck_lane() == 0")
    context.writer.line("if ({}) {}", joined(" && ", conditions), told)
    context.set(operator.output, name)


def error_text(program: UProgram, target: Target) -> list[str]:
    """Lines of the function that tells what a code means; none if there is nothing to tell."""
    lines = lines_of(operators_in(program.entry))
    if not lines or not target.fail_text:
        return []
    return [target.fail_text.format(count=len(lines), lines=", ".join(map(_quoted, lines)))]


def _quoted(text: str) -> str:
    """A string of C: what is not plain ASCII as octal numbers."""
    plain = {b for b in range(32, 127)} - set(b'"\\?')
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'
