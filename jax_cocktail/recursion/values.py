"""Lazily traced values of a call: a value that is never read is never traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self

import jax.numpy as jnp

from jax_cocktail.recursion.structure import Atom, Const, Op, Var


class CallValues:
    """The values of a call. `values`: those known so far; `makers`: variable -> step that computes it."""

    def __init__(self, values: dict[Var, Any], makers: Mapping[Var, Op]) -> None:
        self.values, self.makers = values, makers

    def after(self, steps: Sequence[Any] = ()) -> Self:
        """The same call after further steps. New values are not visible to the earlier object."""
        later = copy(self)
        later.values = dict(self.values)
        later.makers = {**self.makers, **{v: s for s in steps if isinstance(s, Op) for v in s.outputs}}
        return later

    def read(self, atom: Atom) -> Any:
        if isinstance(atom, Const):
            return jnp.asarray(atom.value, atom.aval.dtype)
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
