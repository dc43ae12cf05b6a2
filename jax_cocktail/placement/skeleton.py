"""What a nested uTask makes beside the values that are cut: counters, scalar state, flags.

Parts compute such values again for themselves. If something outside needs them too, a copy of the uTask that
makes nothing else stays at mesh level. Nothing in it depends on a value that is cut: an operator that reads
one and makes a value that is not cut would have consumed the class.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement
from jax_cocktail.utask.types import Value


def skeleton(statement: Statement, cut: Collection[Value]) -> Statement | None:
    """The statement without all that is in `cut`; None if nothing is left."""
    kept = [k for k, v in enumerate(statement.outputs) if v not in cut]
    if not kept:
        return None
    if isinstance(statement, LoopUTask):
        condition = statement.condition
        if condition is not None:
            condition = _region(condition, _picked(condition.parameters, kept), condition.results, cut)
        index = () if statement.index is None else (statement.index,)
        parameters = (*index, *_picked(statement.carried, kept))
        return replace(
            statement,
            initial=_picked(statement.initial, kept),
            outputs=_picked(statement.outputs, kept),
            condition=condition,
            body=_region(statement.body, parameters, _picked(statement.body.results, kept), cut),
        )
    if isinstance(statement, BranchUTask):
        branches = tuple(_region(r, (), _picked(r.results, kept), cut) for r in statement.branches)
        return replace(statement, branches=branches, outputs=_picked(statement.outputs, kept))
    return statement


def _region(
    region: Region, parameters: tuple[Value, ...], results: tuple[Value, ...], cut: Collection[Value]
) -> Region:
    body = (skeleton(s, cut) for s in region.body)
    return Region(parameters, tuple(s for s in body if s is not None), results)


def _picked(values: Sequence[Value], indices: Sequence[int]) -> tuple[Value, ...]:
    return tuple(values[k] for k in indices)
