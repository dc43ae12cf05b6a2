"""The registry of rules, physical types, and small builder idioms that rules share.

A rule turns one `Equation` into uTask operators (COCKTAILER, section 3.2: operators become uTasks). It takes
the operands as IR values and returns its result, or one value per output, in order. A rule for several
primitives reads from the equation which of them it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.equation import Atom, Equation
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.types import ITEM_SIZE, TensorType, Value

Rule = Callable[[Builder, Equation, tuple[Value, ...]], Value | Sequence[Value]]

RULES: dict[str, Rule] = {}
LIBRARY: set[str] = set()  # primitives for which stock XLA has library code, or kernels of their own

_KEY_WORDS = 2
ON_BOOL = {"max": "or", "min": "and"}  # what maxima and minima of bools are


def rule(*names: str, library: bool = False) -> Callable[[Rule], Rule]:
    """Registers the decorated function for the primitives with these names, and those in `LIBRARY`."""

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"primitive {name!r} has two rules")
            RULES[name] = function
        LIBRARY.update(names if library else ())
        return function

    return register


def physical_type(atom: Atom) -> TensorType:
    """The IR type of a jaxpr atom. A typed threefry key has a trailing axis of two uint32 words.

    Raises:
      UnsupportedError: the dtype or the PRNG is not supported.
    """
    return _physical_type(atom.dtype, tuple(map(int, atom.shape)), atom.key_impl)


@lru_cache(maxsize=1024)
def _physical_type(dtype: str, shape: tuple[int, ...], key_impl: str) -> TensorType:
    if key_impl:
        if key_impl != "fry":
            raise UnsupportedError(f"PRNG implementation {key_impl!r} (only threefry is supported)")
        return TensorType("uint32", (*shape, _KEY_WORDS))
    if dtype not in ITEM_SIZE:
        raise UnsupportedError(f"dtype {dtype} is not supported")
    return TensorType(dtype, shape)


def output_type(equation: Equation) -> TensorType:
    return physical_type(equation.outputs[0])


def ints(numbers: Any) -> tuple[int, ...]:
    """A tuple of Python integers from the integer-like values of a JAX parameter."""
    return tuple(int(n) for n in numbers)


def spread(builder: Builder, x: Value, shape: Sequence[int]) -> Value:
    """Broadcasts a scalar, size-1 axes, or leading axes (as of a predicate for keys) to `shape`."""
    return builder.broadcast(x, shape, tuple(range(x.type.rank)))


def constant_like(builder: Builder, x: Value, number: object) -> Value:
    return builder.full(np.asarray(number), x.type.dtype, x.type.shape)


def bitcast(builder: Builder, x: Value, dtype: str) -> Value:
    return x if x.type.dtype == dtype else builder.emit("bitcast", (x,), dtype, x.type.shape)


def without_bool(builder: Builder, x: Value) -> Value:
    """Converts bool to uint8, for operators that order or add; leaves anything else unchanged."""
    return builder.convert(x, "uint8") if x.type.dtype == "bool" else x
