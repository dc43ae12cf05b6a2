"""A jaxpr in our own plain words, the same for every supported jax version.

`lowering.adapter` makes these from jaxprs; the rules of this package read them. Calls (`jit`,
`custom_jvp_call`, `checkpoint` ...) are already inlined, typed PRNG keys keep their logical shape and have
`key_impl` set, literals are NumPy scalars.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jax_cocktail.utask.types import NOWHERE, Source


@dataclass(frozen=True, eq=False, slots=True)
class Variable:
    """A jaxpr variable; identity is object identity. `key_impl`: PRNG name ("fry", ...) of a key array."""

    dtype: str
    shape: tuple[int, ...]
    key_impl: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Literal:
    """A scalar or array that is part of the program text. dtype is already canonical."""

    value: np.ndarray

    @property
    def dtype(self) -> str:
        return str(self.value.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def key_impl(self) -> str:
        return ""


Atom = Variable | Literal


@dataclass(frozen=True, eq=False, slots=True)
class Equation:
    """One primitive application.

    `params` are JAX's own, except that control flow is normalised:
      while: cond_jaxpr, body_jaxpr (Program), cond_nconsts, body_nconsts
      scan: jaxpr (Program), num_consts, num_carry, length, reverse
      cond: branches (tuple of Program); inputs[0] is the index (int32) or predicate (bool)
    """

    primitive: str
    inputs: tuple[Atom, ...]
    outputs: tuple[Variable, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    source: Source = NOWHERE
    effects: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """A closed list of equations (array constants are extra inputs or literals)."""

    inputs: tuple[Variable, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]
