"""Finds branches that `jax.vmap` has turned into selects, so that they count as control flow.

`jax.vmap` replaces a `cond` or `switch` by the equations of both sides and a `select_n` with an integer index
per batch element (`jnp.where` has a bool). If a side is expensive, the compiler runs it only for the batch
elements that take it (`schedule.vmap`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend import core as jex

from jax_cocktail.lowering.edge.adapter import holds_control_flow, primitive_name
from jax_cocktail.primitives.jaxprs import equations_in, nested_jaxprs, open_jaxpr


def choices(
    equations: Sequence[Any], results: Sequence[Any], is_expensive: Callable[[Any], bool]
) -> tuple[frozenset[int], frozenset[int]]:
    """The selects of vmapped branches that have an expensive side, or one with control flow.

    Returns:
      The positions of these selects, and the positions of these selects together with all equations that only
      their sides need.
    """
    readers: dict[Any, set[int]] = {}
    for position, equation in enumerate(equations):
        for atom in equation.invars:
            if not isinstance(atom, jex.Literal):
                readers.setdefault(atom, set()).add(position)
    for atom in results:
        if not isinstance(atom, jex.Literal):
            readers.setdefault(atom, set()).add(len(equations))
    selects: set[int] = set()
    members: set[int] = set()
    for group in _branches(equations):
        sides = _sides(equations, group, readers)
        if any(is_expensive(equations[p]) or holds_control_flow(equations[p]) for p in sides):
            selects |= group
            members |= sides | group
    return frozenset(selects), frozenset(members)


def element_branch_in(jaxpr: Any) -> bool:
    """True if a jaxpr contains the select of a vmapped branch, at any depth."""
    inner = (body for equation in equations_in(jaxpr) for body in nested_jaxprs(equation))
    return any(_branches(open_jaxpr(body).eqns) for body in (jaxpr, *inner))


def _branches(equations: Sequence[Any]) -> list[set[int]]:
    """The selects of vmapped branches, grouped by index.

    The condition of a select is the index itself or, in a gradient, a comparison of it with a number.
    """
    groups: dict[Any, set[int]] = {}
    source: dict[Any, Any] = {}  # result of a broadcast or comparison -> its operand
    for position, equation in enumerate(equations):
        name = primitive_name(equation)
        if name not in ("broadcast_in_dim", "eq", "select_n") or isinstance(equation.invars[0], jex.Literal):
            continue
        root = source.get(equation.invars[0], equation.invars[0])
        if name == "broadcast_in_dim" or (name == "eq" and isinstance(equation.invars[1], jex.Literal)):
            source[equation.outvars[0]] = root
        elif name == "select_n" and root.aval.shape and np.issubdtype(root.aval.dtype, np.integer):
            groups.setdefault(root, set()).add(position)
    return list(groups.values())


def _sides(equations: Sequence[Any], selects: set[int], readers: dict[Any, set[int]]) -> set[int]:
    """The equations whose results only the cases of these selects need."""
    inside = set(selects)
    for position in range(max(selects) - 1, -1, -1):
        outputs = equations[position].outvars
        if any(readers.get(v) for v in outputs) and all(readers.get(v, set()) <= inside for v in outputs):
            inside.add(position)
    return inside - selects
