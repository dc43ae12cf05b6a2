"""Checks that a statement reads only its own part of a value."""

from __future__ import annotations

from collections.abc import Mapping

from jax_cocktail.analysis.axes import rule
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator
from jax_cocktail.utask.types import Value


def reads_own_part(statement: Statement, value: Value, axis: int, axes: Mapping[Value, int]) -> bool:
    """True if the statement, cut along `axes`, reads only the part of `value` along `axis`."""
    if isinstance(statement, UOperator):
        if value not in statement.inputs:
            return True
        tie = rule(statement).along([axes.get(v) for v in statement.outputs])
        pairs = zip(statement.inputs, tie.inputs, strict=True) if tie is not None else ()
        return tie is not None and all(d == axis for v, d in pairs if v == value)
    if isinstance(statement, LoopUTask):
        carried = statement.carried
        initial = zip(statement.initial, carried, strict=True)
        if any(v == value and axes.get(c) != axis for v, c in initial):
            return False
        if statement.condition is not None and not _region(statement.condition, [], value, axis, axes):
            return False
        return _region(statement.body, carried, value, axis, axes)
    if isinstance(statement, BranchUTask):
        outputs = statement.outputs
        return all(_region(region, outputs, value, axis, axes) for region in statement.branches)
    return False


def _region(
    region: Region,
    stands_for: tuple[Value, ...] | list[Value],
    value: Value,
    axis: int,
    axes: Mapping[Value, int],
) -> bool:
    """`stands_for`: the values that the results become."""
    handed_on = zip(region.results, stands_for, strict=False)
    if any(v == value and axes.get(s) != axis for v, s in handed_on):
        return False
    return all(reads_own_part(s, value, axis, axes) for s in region.body)
