"""A jaxpr in data types of our own, which are the same for all supported releases of jax.

`lowering.edge.adapter` makes these from jaxprs, and the rules of this package read them. Calls (`jit`,
`custom_jvp_call`, `checkpoint` ...) are already inlined. Typed PRNG keys keep their logical shape and have
`key_impl` set. Literals are NumPy scalars.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from jax_cocktail.utask.types import NOWHERE, Source


@dataclass(frozen=True, eq=False, slots=True)
class Variable:
    """A jaxpr variable, compared by identity. `key_impl`: the PRNG ("fry", ...) of a key array, else ""."""

    dtype: str
    shape: tuple[int, ...]
    key_impl: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Literal:
    """A scalar or array embedded in the program, with a canonical dtype."""

    value: np.ndarray

    @property
    def dtype(self) -> str:
        return dtype_name(self.value.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def key_impl(self) -> str:
        return ""


Atom = Variable | Literal


@lru_cache(maxsize=256)
def dtype_name(dtype: Any) -> str:
    """The name of a dtype, which NumPy spells anew each time."""
    return str(dtype)


@dataclass(frozen=True, eq=False, slots=True)
class Equation:
    """One application of a primitive.

    `params` are JAX's own, except for control flow, which is normalised:
      while: cond_jaxpr, body_jaxpr (Program), cond_nconsts, body_nconsts; whole (the number of first carries
        that have no batch elements, if the predicate has some)
      scan: jaxpr (Program), num_consts, num_carry, length, reverse, unroll
      cond: branches (tuple of Program); inputs[0] is the index (int32) or predicate (bool)
    and for:
      device_put: moves (a value is put into another memory)
      platform_index: index (None if no entry is for the platform)
      linear algebra with library code: platform
      debug_print, debug_callback: deliver (makes the message, given the operands as arrays), ordered,
        partitioned
    """

    primitive: str
    inputs: tuple[Atom, ...]
    outputs: tuple[Variable, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    source: Source = NOWHERE
    effects: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """A closed list of equations. Array constants are further inputs or literals."""

    inputs: tuple[Variable, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]


def primitives_in(equations: Sequence[Equation]) -> Iterator[str]:
    """The primitive of each equation, those of nested programs included."""
    for equation in equations:
        yield equation.primitive
        for value in equation.params.values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Program):
                    yield from primitives_in(item.equations)
