"""The arguments of the call that is being lowered, as its wrapper got them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jax_cocktail.lowering.state import Mark, call
from jax_cocktail.primitives.jaxprs import open_jaxpr


def concrete_arguments(closed: Any, mark: Mark) -> list[Any] | None:
    """The arguments of the wrapper's call, if they are concrete and `closed` is the jaxpr of this call."""
    leaves = _leaves(closed, mark, "dynamic_leaves")
    if leaves is None:
        return None
    avals = closed.in_avals
    if len(leaves) != len(avals) or not all(map(_is_value, leaves)):
        return None
    for leaf, aval in zip(leaves, avals, strict=True):
        found = jax.typeof(leaf)
        same_kind = getattr(found, "weak_type", False) == getattr(aval, "weak_type", False)
        if found.shape != aval.shape or found.dtype != aval.dtype or not same_kind:
            return None
    return list(leaves)


def _leaves(closed: Any, mark: Mark, method: str) -> list[Any] | None:
    """An entry of this method of the wrapper for each argument that JAX uses; None if nothing is known of the
    call, or if it is another function's."""
    if (found := call()) is None:
        return None
    leaves = getattr(found.marked, method)(found.args, found.kwargs)
    if leaves is None or found.marked.function_name != mark.function:
        return None
    return _used(leaves, closed, found.marked)


def _used(leaves: list[Any], closed: Any, wrapper: Any) -> list[Any] | None:
    """The arguments but for those that JAX dropped as unused: it keeps the variables of the others.

    None if the jaxpr is that of another function with the same name, which the wrapper's function calls.
    """
    kept = set(open_jaxpr(closed).invars)
    if not kept:
        return []
    invars = next((wrapper.inputs_with(var) for var in kept), ())
    if len(leaves) != len(invars):
        return None
    return [leaf for leaf, var in zip(leaves, invars, strict=True) if var in kept]


def _is_value(leaf: Any) -> bool:
    kinds = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)
    return isinstance(leaf, kinds) and not isinstance(leaf, jax.core.Tracer)


def donated(closed: Any, mark: Mark) -> frozenset[int]:
    """The positions of the inputs of `closed` whose memory the caller gives away, as far as known."""
    flags = _leaves(closed, mark, "donated_leaves")
    if flags is None or len(flags) != len(closed.in_avals):
        return frozenset()
    return frozenset(position for position, given in enumerate(flags) if given)


def compiler_options(mark: Mark) -> Mapping[str, Any]:
    """The options for XLA's compiler if the wrapper's call is the whole module."""
    found = call()
    same = found is not None and found.marked.function_name == mark.function
    return found.marked.compiler_options if found is not None and same else {}
