"""Operators as families of uTasks (COCKTAILER, OSDI'23, section 3; scheduling: section 4).

An operator of the paper is a homogeneous family of `num_utasks` uTasks. Here the family follows from the axis
rule of the operator kind: along a tied axis, uTask i is the same operator, with adapted sizes, on part i of
the tied operands and on the whole of the others. If equal parts leave a remainder of the axis, one more uTask
computes it.
"""

from __future__ import annotations

from math import gcd

from jax_cocktail.analysis.axes import Tie, rule
from jax_cocktail.errors import VerificationError
from jax_cocktail.placement.cutter import Axes
from jax_cocktail.placement.parts import Tiling
from jax_cocktail.utask.ir import UOperator


def num_utasks(operator: UOperator, axes: Axes, parts: int) -> int:
    """The number of equal uTasks of the operator along `axes` of its results: `parts`, a divisor of `parts`
    that its rule allows, or one. A remainder is one more uTask."""
    tie = rule(operator).along(axes)
    if tie is None:
        return 1
    return min(parts, tie.parts) if any_runs(operator, tie) else gcd(parts, tie.parts)


def any_runs(operator: UOperator, tie: Tie) -> bool:
    """True if parts of any length correspond along the tied axes, because these have the same length."""
    operands = zip(operator.inputs, tie.inputs, strict=True)
    tied = [(v, d) for v, d in operands if d is not None]
    tied += zip(operator.outputs, tie.outputs, strict=True)
    return all(v.type.shape[d] == tie.parts for v, d in tied)


def tie_of(operator: UOperator, axes: Axes, tiling: Tiling) -> Tie | None:
    """The tie that makes the operator the parts of a tiling; None if these would not be independent."""
    tie, parts = rule(operator).along(axes), tiling.parts
    if tie is None or num_utasks(operator, axes, parts) != parts:
        return None
    return tie if not (tiling.length or tiling.line) or any_runs(operator, tie) else None


def schedule_operator(operator: UOperator, axes: Axes, parts: int) -> Tie:
    """The axes along which the operator becomes `parts` uTasks at unit level (ScheduleOperator of section 4).

    `placement.tile` puts the uTasks of many operators into one parallel loop: unit p modulo the number of
    units runs part p of each, so that values passed between uTasks need no barrier. `axes`: of the results,
    chosen per axis class. Raises VerificationError if the uTasks would not be independent.
    """
    tie = tie_of(operator, axes, Tiling(parts))
    if tie is None:
        raise VerificationError(
            f"tiling: {operator.kind} cannot be cut along {list(axes)} into {parts} parts; a fault of"
            " placement, report it with the program"
        )
    return tie
