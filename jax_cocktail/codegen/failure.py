"""Programs that can fail: a unit stores an error code. The call has the messages.

The unit then goes on, because the others wait for it at their barriers.
"""

from __future__ import annotations

from jax_cocktail.codegen.context import ALONE, Context
from jax_cocktail.codegen.kernel import Expression
from jax_cocktail.codegen.writer import code, joined
from jax_cocktail.utask.failure import text_of
from jax_cocktail.utask.ir import UOperator


def emit_fail(context: Context, operator: UOperator) -> None:
    """Stores the error code: one thread does where all share one code, else each unit stores its own."""
    (status,) = operator.inputs
    name, first = context.register(status), context.first_codes[text_of(operator)]
    told = code(context.target.fail, code=code("{} + {}", first, name) if first else name)
    conditions: list[Expression] = [code("{} != 0", name)]
    if context.target.has_threads:  # in memory of all
        conditions += [ALONE] if context.has_units and not context.part_depth else []
        conditions += [] if context.by_thread else ["ck_lane() == 0"]
    context.writer.line("if ({}) {}", joined(" && ", conditions), told)
    context.set(operator.output, name)
