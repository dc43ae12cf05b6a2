"""Inlines the calls of a jaxpr and keeps JAX's own equations, so that stock XLA can compile the remainder.

Variables are renamed but nothing is traced again, so sources, contexts and manual axes do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core as jex

from jax_cocktail.lowering.adapter import (
    REMATERIALISED,
    body_of_call,
    constants,
    control_flow_in,
    open_jaxpr,
    primitive_name,
)
from jax_cocktail.recursion.primitive import RECURSION


@dataclass(frozen=True, eq=False, slots=True)
class Flat:
    """A flat jaxpr: equations in order.

    `constvars` and `consts` correspond; `outvars` may be literals; `recursions` holds each expanded recursion
    with the positions of its equations.
    """

    original: Any
    constvars: tuple[Any, ...]
    consts: tuple[Any, ...]
    equations: tuple[Any, ...]
    outvars: tuple[Any, ...]
    recursions: tuple[tuple[Any, range], ...] = ()

    def close(self, equations: Sequence[Any]) -> Any:
        """A closed jaxpr with these equations in place of its own."""
        jaxpr = open_jaxpr(self.original).replace(
            constvars=list(self.constvars), eqns=list(equations), outvars=list(self.outvars)
        )
        return jex.ClosedJaxpr(jaxpr, list(self.consts))


class _Inliner:
    def __init__(self) -> None:
        self.equations: list[Any] = []
        self.constvars: list[Any] = []
        self.consts: list[Any] = []
        self.recursions: list[tuple[Any, range]] = []
        self._names: dict[Any, Any] = {}
        self._new = jex.gensym()

    def read(self, atom: Any) -> Any:
        return atom if isinstance(atom, jex.Literal) else self._names.get(atom, atom)

    def constant(self, var: Any, value: Any) -> None:
        """Turns a constant of an inlined body into a constant of the whole jaxpr."""
        self._names[var] = fresh = self._new(var.aval)
        self.constvars.append(fresh)
        self.consts.append(value)

    def run(self, equations: Sequence[Any], outermost: bool) -> None:
        for equation in equations:
            body = body_of_call(equation)
            if body is not None and primitive_name(equation) in REMATERIALISED:
                # without control flow it stays a call, so that stock XLA rematerialises it
                body = body if control_flow_in(body) else None
            operands = [self.read(atom) for atom in equation.invars]
            if body is None:
                self._keep(equation, operands, outermost)
                continue
            inner, start = open_jaxpr(body), len(self.equations)
            for var, value in zip(inner.constvars, constants(body), strict=True):
                self.constant(var, value)
            self._names.update(zip(inner.invars, operands, strict=True))
            self.run(inner.eqns, outermost=False)
            if primitive_name(equation) == RECURSION:
                self.recursions.append((equation, range(start, len(self.equations))))
            results = [self.read(atom) for atom in inner.outvars]
            self._names.update(zip(equation.outvars, results, strict=True))

    def _keep(self, equation: Any, operands: list[Any], outermost: bool) -> None:
        outvars = list(equation.outvars)
        if not outermost:  # JAX shares bodies between calls, so a body may be inlined twice
            outvars = [self._new(var.aval) for var in outvars]
            self._names.update(zip(equation.outvars, outvars, strict=True))
        self.equations.append(equation.replace(invars=operands, outvars=outvars))


def flatten(closed: Any) -> Flat:
    """Inlines all calls except rematerialised ones without control flow and those forced to stock."""
    jaxpr = open_jaxpr(closed)
    inliner = _Inliner()
    inliner.run(jaxpr.eqns, outermost=True)
    return Flat(
        original=closed,
        constvars=(*jaxpr.constvars, *inliner.constvars),
        consts=(*constants(closed), *inliner.consts),
        equations=tuple(inliner.equations),
        outvars=tuple(inliner.read(atom) for atom in jaxpr.outvars),
        recursions=tuple(inliner.recursions),
    )
