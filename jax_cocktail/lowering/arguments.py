"""The arguments of the call that is being lowered, as its wrapper got them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jax_cocktail.lowering.state import STATE, Mark
from jax_cocktail.primitives.jaxprs import open_jaxpr


def concrete_arguments(closed: Any, mark: Mark) -> list[Any] | None:
    """The arguments of the wrapper's call, if they are concrete and `closed` is the jaxpr of this call."""
    if STATE.arguments is None:
        return None
    wrapper, positional, keyword = STATE.arguments
    leaves = wrapper.dynamic_leaves(positional, keyword)
    if leaves is None or wrapper.function_name != mark.function:
        return None
    leaves = _used(leaves, closed, wrapper)
    avals = closed.in_avals
    if len(leaves) != len(avals) or not all(map(_is_value, leaves)):
        return None
    for leaf, aval in zip(leaves, avals, strict=True):
        found = jax.typeof(leaf)
        same_kind = getattr(found, "weak_type", False) == getattr(aval, "weak_type", False)
        if found.shape != aval.shape or found.dtype != aval.dtype or not same_kind:
            return None
    return list(leaves)


def _used(leaves: list[Any], closed: Any, wrapper: Any) -> list[Any]:
    """Removes the arguments that JAX dropped as unused. JAX keeps the variables of the others."""
    kept = set(open_jaxpr(closed).invars)
    invars = next((wrapper.inputs_with(var) for var in kept), ())
    if len(leaves) != len(invars):
        return leaves
    return [leaf for leaf, var in zip(leaves, invars, strict=True) if var in kept]


def _is_value(leaf: Any) -> bool:
    kinds = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)
    return isinstance(leaf, kinds) and not isinstance(leaf, jax.core.Tracer)


def donated(closed: Any, mark: Mark) -> frozenset[int]:
    """The positions of the inputs of `closed` whose memory the caller gives away, as far as known."""
    if STATE.arguments is None:
        return frozenset()
    wrapper, positional, keyword = STATE.arguments
    flags = wrapper.donated_leaves(positional, keyword)
    if flags is None or wrapper.function_name != mark.function:
        return frozenset()
    flags = _used(flags, closed, wrapper)
    known = len(flags) == len(closed.in_avals)
    return frozenset(position for position, given in enumerate(flags) if given and known)
