"""Control flow that carries further values beside its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jax_cocktail.primitives.equation import Atom, Equation, Program, Variable

# From a nested program and the position of the new operands to the program that takes them.
Nested = Callable[[Program, int], Program]


def carried(
    equation: Equation, state: Sequence[Atom], side: Nested, condition: Nested
) -> tuple[Equation, tuple[Variable, ...]]:
    """A loop or branch with the further operands `state`, and what is carried after it: its first results.

    Args:
      equation: the loop or branch.
      state: the values before it.
      side: of a branch, or the body of a loop: the values after it are the first results.
      condition: of a `while`, whose only result stays the predicate.
    """
    params, after = dict(equation.params), tuple(Variable(atom.dtype, atom.shape) for atom in state)
    if equation.primitive == "cond":
        at = 1
        params["branches"] = tuple(side(branch, 0) for branch in params["branches"])
    elif equation.primitive == "while":
        at = params["cond_nconsts"] + params["body_nconsts"]
        params["cond_jaxpr"] = condition(params["cond_jaxpr"], params["cond_nconsts"])
        params["body_jaxpr"] = side(params["body_jaxpr"], params["body_nconsts"])
        params["whole"] = params.get("whole", 0) + len(after)
    else:
        at = params["num_consts"]
        params["jaxpr"] = side(params["jaxpr"], at)
        params["num_carry"] += len(after)
    inputs = (*equation.inputs[:at], *state, *equation.inputs[at:])
    return replace(equation, inputs=inputs, outputs=(*after, *equation.outputs), params=params), after
