"""Branches that `jax.vmap` has turned into selects: found in a jaxpr, so that they count as control flow.

A vmapped `cond` or `switch` leaves no control flow behind: both sides stand among the other equations, and a
`select_n` with an integer index per lane (`jnp.where` has a bool) picks from them. Where a side is work, the
compiler has it done for the lanes that take it (`schedule.lanes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend import core as jex

from jax_cocktail.lowering.adapter import nested_jaxprs, open_jaxpr, primitive_name


def choices(
    equations: Sequence[Any], results: Sequence[Any], is_expensive: Callable[[Any], bool]
) -> tuple[frozenset[int], frozenset[int]]:
    """Positions of the selects of vmapped branches with an expensive equation on a side; and of those with
    all that only their sides need."""
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
    for position, equation in enumerate(equations):
        if _is_branch(equation):
            sides = _sides(equations, position, readers)
            if any(is_expensive(equations[p]) for p in sides):
                selects.add(position)
                members |= sides | {position}
    return frozenset(selects), frozenset(members)


def lane_branch_in(jaxpr: Any) -> bool:
    """Whether the select of a vmapped branch is among the equations, at any depth."""
    equations = open_jaxpr(jaxpr).eqns
    return any(_is_branch(e) or any(map(lane_branch_in, nested_jaxprs(e))) for e in equations)


def _is_branch(equation: Any) -> bool:
    if primitive_name(equation) != "select_n" or not equation.invars[0].aval.shape:
        return False
    return bool(np.issubdtype(equation.invars[0].aval.dtype, np.integer))


def _sides(equations: Sequence[Any], select: int, readers: dict[Any, set[int]]) -> set[int]:
    """What nothing but the cases of one select needs."""
    inside = {select}
    for position in range(select - 1, -1, -1):
        outputs = equations[position].outvars
        if any(readers.get(v) for v in outputs) and all(readers.get(v, set()) <= inside for v in outputs):
            inside.add(position)
    return inside - {select}
