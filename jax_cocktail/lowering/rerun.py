"""What follows a custom call with side exits: if its exit flag is set, stock XLA runs the region again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
from jax import lax

from jax_cocktail.primitives.jaxprs import constants, open_jaxpr


@dataclass(frozen=True, eq=False, slots=True)
class Rewritten:
    """A marked jaxpr with custom calls, and the variables that hold their exit flags and, of traced programs,
    their rings of stamps."""

    jaxpr: Any
    flags: tuple[Any, ...]
    rings: tuple[Any, ...] = ()

    def with_rings(self) -> Any:
        """The jaxpr that returns the rings as well, after its results."""
        opened = open_jaxpr(self.jaxpr)
        outer = opened.replace(outvars=[*opened.outvars, *self.rings])
        return jex.ClosedJaxpr(outer, list(constants(self.jaxpr)))

    def only_flags(self) -> Any | None:
        """The part of the jaxpr that computes the flags; None if that has side effects."""
        opened, needed, kept = open_jaxpr(self.jaxpr), set(self.flags), []
        for equation in reversed(opened.eqns):
            if needed.isdisjoint(equation.outvars):
                continue
            if equation.effects:
                return None
            kept.append(equation)
            needed.update(atom for atom in equation.invars if not isinstance(atom, jex.Literal))
        part = opened.replace(eqns=kept[::-1], outvars=list(self.flags), effects=jex.no_effects)
        return jex.ClosedJaxpr(part, list(constants(self.jaxpr)))


def run_again(stock: Sequence[Any], flag: Any, ours: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Equations that define the variables `results`: by the equations `stock` if `flag`, else as `ours`.

    Nothing is traced again, so sources, contexts, manual axes and effects do not change.
    """
    made = {var for equation in stock for var in equation.outvars}
    atoms = (atom for equation in stock for atom in equation.invars if not isinstance(atom, jex.Literal))
    operands = [*dict.fromkeys(atom for atom in atoms if atom not in made), *ours]
    effects = frozenset().union(*(equation.effects for equation in stock))
    template = open_jaxpr(jax.make_jaxpr(lambda taken: lax.cond(taken, lambda: 1, lambda: 0))(True))
    *before, branch = template.eqns
    empty = open_jaxpr(branch.params["branches"][0])
    sides = (
        empty.replace(invars=operands, outvars=list(ours)),
        empty.replace(invars=operands, eqns=list(stock), outvars=list(results), effects=effects),
    )
    names = dict(zip(template.invars, [flag], strict=True))
    return [
        *(e.replace(invars=[names.get(atom, atom) for atom in e.invars]) for e in before),
        branch.replace(
            invars=[*(names.get(atom, atom) for atom in branch.invars), *operands],
            outvars=list(results),
            params={**branch.params, "branches": tuple(jex.ClosedJaxpr(side, []) for side in sides)},
            effects=effects,
        ),
    ]
