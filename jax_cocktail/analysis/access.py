"""Checks that a statement reads only its own part of a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jax_cocktail.analysis.axes import rule
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    free_values,
    once,
)
from jax_cocktail.utask.types import Value

Axes = Mapping[Value, int]
Recipes = Mapping[Value, UOperator]
_NO_RECIPES: Recipes = {}


def reads_own_part(
    statement: Statement, value: Value, axis: int, axes: Axes, recipes: Recipes = _NO_RECIPES
) -> bool:
    """True if the statement, cut along `axes`, reads only the part of `value` along `axis`. `recipes`: the
    operators that recompute parts of other values."""
    return _Reader(value, axis, axes, recipes).fits(statement)


@dataclass(frozen=True, slots=True)
class _Reader:
    """See `reads_own_part`."""

    value: Value
    axis: int
    axes: Axes
    recipes: Recipes

    def fits(self, statement: Statement) -> bool:
        if isinstance(statement, UOperator):
            tie = rule(statement).along([self.axes.get(v) for v in statement.outputs])
            if tie is None:
                return self.value not in statement.inputs
            return all(self._own(v, d) for v, d in zip(statement.inputs, tie.inputs, strict=True))
        if isinstance(statement, LoopUTask):
            condition = statement.condition
            return (
                self._handed(statement.initial, statement.carried)
                and (condition is None or self._region(condition, ()))
                and self._region(statement.body, statement.carried)
            )
        if isinstance(statement, BranchUTask):
            return all(self._region(region, statement.outputs) for region in statement.branches)
        return False

    def _own(self, read: Value, along: int | None) -> bool:
        """True if reading the part of `read` along an axis (None: all of it) reads the own part at most."""
        if read == self.value:
            return along == self.axis
        recipe = self.recipes.get(read)
        tie = rule(recipe).along((along,)) if recipe is not None and along is not None else None
        if recipe is None or tie is None:
            return True
        return all(self._own(v, d) for v, d in zip(recipe.inputs, tie.inputs, strict=True))

    def _handed(self, values: Iterable[Value], stand_ins: Iterable[Value]) -> bool:
        return all(self._own(v, self.axes.get(s)) for v, s in zip(values, stand_ins, strict=False))

    def _region(self, region: Region, stand_ins: Iterable[Value]) -> bool:
        """`stand_ins`: the values that the results become."""
        if not self.recipes and self.value not in _free(region):  # nothing in it reads any part
            return True
        return self._handed(region.results, stand_ins) and all(map(self.fits, region.body))


@once
def _free(region: Region) -> frozenset[Value]:
    return frozenset(free_values(region))
