"""Inlines the calls of a jaxpr and keeps JAX's own equations, so that stock XLA can compile the remainder.

Variables are renamed but nothing is traced again, so sources, contexts and manual axes do not change.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.sharding import AxisType

from jax_cocktail.lowering.edge.adapter import (
    REMATERIALISED,
    Calls,
    control_flow_in,
    primitive_name,
    within,
)
from jax_cocktail.primitives.jaxprs import CASTS, constants, interpret, open_jaxpr
from jax_cocktail.recursion.task import RECURSION

# Primitives of which the result is the operand, for whoever compiles it: proofs are to see one value.
_SAME = frozenset({"copy", "stop_gradient"})


@dataclass(frozen=True, eq=False, slots=True)
class Flat:
    """A flat jaxpr: equations in order.

    `template` is the original without equations: a reference to the original would keep it alive. `constvars`
    and `consts` correspond; `outvars` may be literals; `recursions` holds each expanded recursion with the
    positions of its equations.
    """

    template: Any
    constvars: tuple[Any, ...]
    consts: tuple[Any, ...]
    equations: tuple[Any, ...]
    outvars: tuple[Any, ...]
    recursions: tuple[tuple[Any, range], ...] = ()

    def close(self, equations: Sequence[Any]) -> Any:
        """A closed jaxpr with these equations in place of its own."""
        jaxpr = self.template.replace(
            constvars=list(self.constvars), eqns=list(equations), outvars=list(self.outvars)
        )
        return jex.ClosedJaxpr(jaxpr, list(self.consts))


class _Inliner:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.equations: list[Any] = []
        self.constvars: list[Any] = []
        self.consts: list[Any] = []
        self.recursions: list[tuple[Any, range]] = []
        self._new = jex.gensym()
        self._zeros: set[Any] = set()  # variables that are arrays of zeros without a sign
        self._inside: list[Any] = []  # the calls whose bodies are being inlined, outermost first

    def constant(self, atom: Any, value: Any) -> Any:
        """Turns a constant of an inlined body into a constant of the whole jaxpr."""
        if isinstance(atom, jex.Literal):
            return atom
        self.constvars.append(self._new(atom.aval))
        self.consts.append(value)
        return self.constvars[-1]

    def _is_zeros(self, operand: Any) -> bool:
        return not isinstance(operand, jex.Literal) and operand in self._zeros

    def apply(self, equation: Any, operands: Sequence[Any], outermost: bool = False) -> Sequence[Any]:
        """Appends an equation, or those of the body if it is a call, and returns its results."""
        zeros = tuple(k for k, v in enumerate(operands) if self._is_zeros(v))
        same = not outermost and primitive_name(equation) in _SAME
        if same and operands[0].aval == equation.outvars[0].aval:
            return list(operands)
        body = self._calls.body(equation, zeros)
        if body is not None and primitive_name(equation) in REMATERIALISED:
            # without control flow it stays a call, so that stock XLA rematerialises it
            body = body if control_flow_in(body) else None
        if body is None:
            outvars = list(equation.outvars)
            if not outermost:  # JAX shares bodies between calls, so a body may be inlined twice
                outvars = [self._new(var.aval) for var in outvars]
            inlined = equation.replace(invars=list(operands), outvars=outvars)
            self.equations.append(within(inlined, self._inside))
            if makes_zeros(inlined, self._zeros):
                self._zeros.update(outvars)
            return outvars
        start = len(self.equations)
        self._inside.append(equation)
        operands = self._divided(operands, equation.params.get("in_shardings", ()))
        results = interpret(body, self._calls.arguments(body, operands), self.constant, self.apply)
        divided = self._divided(results, equation.params.get("out_shardings", ()))
        self._inside.pop()
        if primitive_name(equation) == RECURSION:
            self.recursions.append((equation, range(start, len(self.equations))))
        return divided

    def _divided(self, atoms: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
        """Values with the shardings that a call says: without the call, constraints say them."""
        found = list(atoms)
        for k, sharding in enumerate(shardings):
            if not isinstance(sharding, jax.sharding.NamedSharding) or sharding.num_devices == 1:
                continue
            if isinstance(found[k], jex.Literal) or AxisType.Auto not in sharding.mesh.axis_types:
                continue
            aval = jax.ShapeDtypeStruct(found[k].aval.shape, found[k].aval.dtype)
            constrained = partial(jax.lax.with_sharding_constraint, shardings=sharding)
            (equation,) = open_jaxpr(jax.make_jaxpr(constrained)(aval)).eqns
            result = self._new(found[k].aval)
            self.equations.append(within(equation.replace(invars=[found[k]], outvars=[result]), self._inside))
            found[k] = result
        return found


def makes_zeros(equation: Any, zeros: Container[Any]) -> bool:
    """True if an equation makes an array of zeros without a sign, or casts one of those `zeros`."""
    first = next(iter(equation.invars), None)
    if primitive_name(equation) in CASTS:
        return is_zeros(first, zeros)
    if primitive_name(equation) != "broadcast_in_dim" or not isinstance(first, jex.Literal):
        return False
    return first.aval.dtype.kind in "fiu" and is_zeros(first, ())


def is_zeros(atom: Any, zeros: Container[Any]) -> bool:
    """True if a literal is zero without a sign, or a variable is one of those `zeros`."""
    if isinstance(atom, jex.Literal):
        return not np.any(atom.val) and not np.any(np.signbit(atom.val))
    return atom in zeros


def flatten(closed: Any, calls: Calls) -> Flat:
    """Inlines all calls except rematerialised ones without control flow and those forced to stock."""
    jaxpr = open_jaxpr(closed)
    inliner = _Inliner(calls)
    outermost = partial(inliner.apply, outermost=True)
    results = interpret(closed, jaxpr.invars, lambda atom, _: atom, outermost)
    return Flat(
        template=jaxpr.replace(eqns=[]),
        constvars=(*jaxpr.constvars, *inliner.constvars),
        consts=(*constants(closed), *inliner.consts),
        equations=tuple(inliner.equations),
        outvars=results,
        recursions=tuple(inliner.recursions),
    )
