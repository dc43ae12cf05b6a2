"""Follows the shardings of a call's arguments through its equations, by the ties of our operators.

XLA's partitioner does the same, and decides: where it finds other shardings, it moves data at the border of a
region, and the results are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.lowering.edge.adapter import Calls, holds_control_flow, is_key, primitive_name, program
from jax_cocktail.lowering.edge.flatten import Flat
from jax_cocktail.lowering.edge.shardings import Followed, Names, Spread, is_explicit, spec_of
from jax_cocktail.primitives import translate
from jax_cocktail.primitives.jaxprs import open_jaxpr
from jax_cocktail.schedule.vmap.cut import SUM, Uncuttable
from jax_cocktail.schedule.vmap.shards import followed, preferred
from jax_cocktail.schedule.vmap.spread import Axis

CONSTRAINTS = frozenset({"sharding_constraint", "reshard"})  # they say how devices divide a value


def follow(flat: Flat, spread: Spread, calls: Calls) -> Followed:
    """Follows the shardings of a call's arguments."""
    pairs = zip(flat.template.invars, spread.operands, strict=True)
    specs: dict[Any, Sequence[Names]] = {var: spec for var, spec in pairs if spec is not None}
    zeros, terms, apart = set[Any](), set[Any](), set[int]()
    for position, equation in enumerate(flat.equations):
        if primitive_name(equation) in CONSTRAINTS:
            specs[equation.outvars[0]] = _constrained(equation, specs, spread)
            apart.add(position)
            continue
        if _is_zeros(equation):
            zeros.update(equation.outvars)
        found = _of_results(equation, specs, spread, zeros, calls)
        specs.update(zip(equation.outvars, found.specs, strict=True))
        summed = [var for var, names in zip(equation.outvars, found.sums, strict=True) if names]
        if holds_control_flow(equation):
            terms.update(summed)
        elif found.reasons(spread) or summed or not terms.isdisjoint(_variables(equation)):
            apart.add(position)
    return Followed(specs, zeros, apart)


def _constrained(
    equation: Any, specs: Mapping[Any, Sequence[Names]], spread: Spread
) -> Sequence[Names]:
    """The spec of a value that the user constrains. One that is resharded to no axis keeps those that JAX
    leaves to the partitioner, if its type does not say them."""
    (operand,), (result,) = equation.invars, equation.outvars
    sharding = equation.params.get("sharding", equation.params.get("dst_sharding"))
    nothing: Sequence[Names] = ((),) * len(result.aval.shape)
    known = nothing if isinstance(operand, jex.Literal) else specs.get(operand, nothing)
    spec = spec_of(sharding, tuple(known))
    if spec is None or not {name for names in spec for name in names} <= dict(spread.mesh).keys():
        return known
    left = primitive_name(equation) == "reshard" and not is_explicit(result.aval.sharding)
    return known if left and not any(spec) else spec


def _variables(equation: Any) -> list[Any]:
    return list(dict.fromkeys(v for v in equation.invars if not isinstance(v, jex.Literal)))


def _of_results(
    equation: Any, specs: Mapping[Any, Sequence[Names]], spread: Spread, zeros: Collection[Any], calls: Calls
) -> Found:
    """The shardings of the results of an equation, as far as we know them."""
    variables = _variables(equation)
    given = [specs.get(var, ()) for var in variables]
    nothing = Found([len(getattr(var.aval, "shape", ())) for var in equation.outvars])
    if not any(map(any, given)):
        return nothing
    try:
        alone = translate(program(_alone(equation, variables), calls), "equation")
    except UnsupportedError:
        return nothing
    zero = [n for n, var in enumerate(variables) if var in zeros]
    found = Found([v.type.rank for v in alone.entry.results])
    for names, axes in choices(variables, given, spread, found):
        try:
            found.take(names, followed(alone, axes, spread.parts(names), zero))
        except Uncuttable as error:
            found.fail(names, axes, error)
    for names, axes in found.without(spread):
        found.prefer(names, preferred(alone, axes, spread.parts(names)))
    return found


class Found:
    """The specs of results, as one group of axes of a mesh after another divides them. `sums`: the axes over
    which devices have terms of a result; `used`: those that divide what is computed."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.specs: list[list[Names]] = [[()] * rank for rank in ranks]
        self.sums: list[Names] = [()] * len(ranks)
        self.used: set[str] = set()
        self._failed: dict[Names, tuple[dict[int, int], str]] = {}

    def take(self, names: Names, axes: Sequence[Axis]) -> None:
        """A group divides the results along some axes."""
        self.used.update(names)
        self.add(names, axes)

    def add(self, names: Names, axes: Sequence[Axis]) -> None:
        for number, axis in enumerate(axes):
            if axis == SUM:
                self.sums[number] += names
            elif axis is not None:
                self.specs[number][axis] += names

    def prefer(self, names: Names, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """A group divides results that are computed whole, along axes that nothing else divides; these."""
        own = tuple(
            axis if axis is not None and not self.specs[number][axis] else None
            for number, axis in enumerate(axes)
        )
        self.add(names, own)
        return own

    def fail(self, names: Names, axes: dict[int, int], error: Uncuttable) -> None:
        """A group cannot divide what it divides of the operands."""
        self._failed.setdefault(names, (axes, str(error)))

    def without(self, spread: Spread) -> list[tuple[Names, dict[int, int]]]:
        """The groups that divide operands but nothing that is computed. They have no axis in common."""
        left, seen = [], set(self.used)
        for names, (axes, _) in self._failed.items():
            if seen.isdisjoint(names) and spread.parts(names) > 1:
                left.append((names, axes))
                seen.update(names)
        return left

    def reasons(self, spread: Spread) -> list[str]:
        """The reasons why some axes of the mesh divide nothing that is computed."""
        return [why for names, (_, why) in self._failed.items() if spread.parts(self._unused(names)) > 1]

    def _unused(self, names: Names) -> Names:
        return tuple(name for name in names if name not in self.used)


def choices(
    operands: Sequence[Any], specs: Sequence[Sequence[Names]], spread: Spread, found: Found
) -> Iterator[tuple[Names, dict[int, int]]]:
    """Groups of axes of the mesh with the axes of operands that they divide, those of most bytes first: all
    that a group divides, then one by one. A group of which an axis is used is not tried again."""
    together: dict[Names, dict[int, int]] = {}
    for number, spec in enumerate(specs):
        for axis, names in enumerate(spec):
            if names:
                together.setdefault(names, {})[number] = axis
    every = [*together.items()]
    every += [(n, {k: d}) for n, axes in together.items() if len(axes) > 1 for k, d in axes.items()]
    for names, axes in sorted(every, key=lambda pair: -sum(nbytes(operands[k]) for k in pair[1])):
        if found.used.isdisjoint(names):
            yield names, axes
        else:
            found.fail(names, axes, Uncuttable("the mesh divides another axis as well"))


def nbytes(var: Any) -> int:
    return prod(var.aval.shape) * (8 if is_key(var.aval) else var.aval.dtype.itemsize)


def _is_zeros(equation: Any) -> bool:
    """True for an equation that makes an array of zeros."""
    first = next(iter(equation.invars), None)
    if primitive_name(equation) != "broadcast_in_dim" or not isinstance(first, jex.Literal):
        return False
    return not np.any(first.val)


@cache
def _empty() -> Any:
    return open_jaxpr(jax.make_jaxpr(lambda: ())())


def _alone(equation: Any, variables: Sequence[Any]) -> Any:
    """A closed jaxpr of one equation."""
    results, effects = list(equation.outvars), equation.effects
    opened = _empty().replace(invars=list(variables), eqns=[equation], outvars=results, effects=effects)
    return jex.ClosedJaxpr(opened, [])

