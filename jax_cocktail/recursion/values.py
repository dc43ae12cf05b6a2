"""Lazily traced values of a call, where a value that is never read is never traced, and its paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Self, TypeVar

import jax.numpy as jnp
from jax import lax

from jax_cocktail.recursion.blocks import BasicBlock, Goto, Invoke, Leave, Switch
from jax_cocktail.recursion.structure import Atom, Const, Op, Var


class CallValues:
    """The values of a call. `values`: those known so far; `makers`: variable -> step that computes it."""

    def __init__(self, values: dict[Var, Any], makers: Mapping[Var, Op]) -> None:
        self.values, self.makers = values, makers

    def after(self, steps: Sequence[Any] = ()) -> Self:
        """This call after further steps. New values are not visible to the earlier object."""
        later = copy(self)
        later.values = dict(self.values)
        later.makers = {**self.makers, **{v: s for s in steps if isinstance(s, Op) for v in s.outputs}}
        return later

    def read(self, atom: Atom) -> Any:
        if isinstance(atom, Const):
            return atom.array
        if atom not in self.values:
            self._make(atom)
        return self.values[atom]

    def outside(self, v: Var) -> Any | None:
        """The value of a variable that is defined outside the call; None for others."""
        raise AssertionError("each kind of call knows where its operands are")

    def run(self, step: Op) -> Sequence[Any]:
        """Computes the results of a step."""
        return step.run(*map(self.read, step.inputs))

    def _make(self, v: Var) -> None:
        found = self.outside(v)
        if found is not None:
            self.values[v] = found
        elif v in self.makers:
            step = self.makers[v]
            self.values |= zip(step.outputs, self.run(step), strict=True)
        else:  # a token
            self.values[v] = jnp.zeros(v.aval.shape, v.aval.dtype)


Values = TypeVar("Values", bound=CallValues)


def follow(
    blocks: Sequence[BasicBlock],
    at: int,
    values: Values,
    call: Callable[[Invoke, Values], Any],
    leave: Callable[..., Any],
    *state: Any,
    choices: tuple[int, ...] = (),
    calls: tuple[Any, ...] = (),
) -> Any:
    """Traces a call along all of its paths from a block on: a branch becomes a switch.

    `call(end, values)`: what to know about a call that is made; `leave(end, choices, values, calls, *state)`:
    the result at the end of a path, from the sides taken and what is known about its calls. `state` goes
    through the switches.
    """
    block = blocks[at]
    values, end = values.after(block.steps), block.end
    if isinstance(end, Leave):
        return leave(end, choices, values, calls, *state)
    if isinstance(end, Goto | Invoke):
        calls = (*calls, call(end, values)) if isinstance(end, Invoke) else calls
        return follow(blocks, end.block, values, call, leave, *state, choices=choices, calls=calls)
    assert isinstance(end, Switch)

    def side(number: int, block: int, *state: Any) -> Any:
        taken = (*choices, number)
        return follow(blocks, block, values, call, leave, *state, choices=taken, calls=calls)

    index = values.read(end.index).astype(jnp.int32)
    return lax.switch(index, [partial(side, n, b) for n, b in enumerate(end.blocks)], *state)
