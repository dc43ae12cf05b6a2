"""Differentiates the body of a recursive function into values, residuals and a linear part.

A body is a sequence of *runs* of equations and, between them, branches that contain references (see
`recursion.structure`). JAX linearises the runs. We linearise the branches, because the tape must not hold
values that every call can look up: JAX would store weights that pass through a branch once per call. The
linear part can be pushed forward (tangents) or pulled back (cotangents).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.jaxprs import constants, open_jaxpr
from jax_cocktail.recursion.check import numberings
from jax_cocktail.recursion.structure import (
    Atom,
    Call,
    Cond,
    Const,
    Op,
    Structure,
    Var,
    free,
)
from jax_cocktail.recursion.task import Aval, Numbering, aval_of, evaluate, is_float, placed, zeros

Values = dict[Var, Any]


@dataclass(frozen=True, eq=False, slots=True)
class LinearEquations:
    """Linear equations. `jaxpr`: (*residuals, *inputs) -> outputs; `residuals`: places of the residuals."""

    jaxpr: Any
    residuals: tuple[int, ...]
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Side:
    """One side of a branch. `residuals`: places among those of the enclosing structure."""

    segments: tuple[Segment, ...]
    residuals: tuple[int, ...]
    results: tuple[Atom, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Fork:
    """A branch that has been taken. The side is residual number `index`."""

    index: int
    sides: tuple[Side, ...]
    outputs: tuple[Var, ...]

    @property
    def inputs(self) -> tuple[Var, ...]:
        """The tangent variables that some side reads but does not define."""
        found: dict[Var, None] = {}
        for side in self.sides:
            made: set[Var] = set()
            for step in side.segments:
                found |= dict.fromkeys(v for v in step.inputs if v not in made)
                made.update(step.outputs)
            found |= dict.fromkeys(v for v in side.results if isinstance(v, Var) and v not in made)
        return tuple(found)


Segment = LinearEquations | Fork


@dataclass(frozen=True, eq=False, slots=True)
class Traced:
    """A traced structure. `jaxpr`: (*parameters) -> (*results, *residuals); `segments`: its linear part;
    `active`: the variables that have tangents."""

    jaxpr: Any
    segments: tuple[Segment, ...]
    active: frozenset[Var]


def trace_body(body: Structure, active: frozenset[Var], outer: Mapping[Var, Any] | None = None) -> Traced:
    """Traces a structure with its residuals as further results. `active`: the variables that have tangents;
    `outer`: the values of its free variables."""
    linear: list[tuple[tuple[Segment, ...], frozenset[Var]]] = []

    def run(*operands: Any) -> list[Any]:
        values = dict(outer or {}) | dict(zip(body.parameters, operands, strict=True))
        tracer = _Forward(values, set(active))
        tracer.run(body)
        linear.append((tuple(tracer.segments), frozenset(tracer.active)))  # no value outlives the trace
        return [tracer.read(atom) for atom in body.results] + tracer.residuals

    jaxpr = jax.make_jaxpr(run)(*(v.aval for v in body.parameters))
    return Traced(jaxpr, *linear[-1])


class _Forward:
    def __init__(self, values: Values, active: set[Var]) -> None:
        self.values = values
        self.active = active
        self.residuals: list[Any] = []
        self.segments: list[Segment] = []

    def read(self, atom: Atom) -> Any:
        return atom.array if isinstance(atom, Const) else self.values[atom]

    def keep(self, values: Sequence[Any]) -> tuple[int, ...]:
        """The places of new residuals."""
        start = len(self.residuals)
        self.residuals += values
        return tuple(range(start, len(self.residuals)))

    def run(self, body: Structure) -> None:
        pending: list[Op | Call] = []
        for position, item in enumerate(body.items):
            if isinstance(item, Cond):
                self._straight(pending, set(free(body.items[position:], body.results)))
                self._cond(item)
                pending = []
            else:
                assert isinstance(item, Op | Call)  # loops remain equations here
                pending.append(item)
        self._straight(pending, {v for v in body.results if isinstance(v, Var)})

    def _straight(self, items: Sequence[Op | Call], wanted: set[Var]) -> None:
        """Linearises items without branches."""
        made = [v for item in items for v in item.outputs if v in wanted]
        inputs = [v for v in dict.fromkeys(free(items)) if v in self.active]

        def compute(*moving: Any) -> list[Any]:
            values = self.values | dict(zip(inputs, moving, strict=True))
            for item in items:
                operands = [a.array if isinstance(a, Const) else values[a] for a in item.inputs]
                values |= zip(item.outputs, item.run(*operands), strict=True)
            return [values[v] for v in made]

        if not inputs:
            self.values |= zip(made, compute(), strict=True)
            return
        results, linear = jax.linearize(compute, *(self.values[v] for v in inputs))
        self.values |= zip(made, results, strict=True)
        moves = [k for k, v in enumerate(made) if is_float(v.aval)]

        def moving(*tangents: Any) -> list[Any]:
            found = linear(*tangents)  # only once: references must not be repeated
            return [found[k] for k in moves]

        jaxpr = jax.make_jaxpr(moving)(*(v.aval for v in inputs))
        if numberings(jaxpr) - {Numbering.GIVEN}:
            raise UnsupportedError(
                "a while loop in which a recursive function calls itself has no derivative; use scan, or "
                "fori_loop with constant bounds"
            )
        outputs = tuple(made[k] for k in moves)
        self.active.update(outputs)
        kept = self.keep(constants(jaxpr))
        self.segments.append(LinearEquations(_without_constants(jaxpr), kept, tuple(inputs), outputs))

    def _cond(self, item: Cond) -> None:
        sides = [_traced_side(side, self.values, frozenset(self.active)) for side in item.sides]
        outer = [{k: self.keep([x])[0] for k, x in side.known.items()} for side in sides]
        slots: list[Aval] = []
        places = [placed(side.avals, slots) for side in sides]

        def taken(side: _TracedSide, places: Mapping[int, int]) -> Callable[[], list[Any]]:
            def run() -> list[Any]:
                results = evaluate(side.jaxpr, constants(side.jaxpr), ())
                count = len(item.outputs)
                own = {slot: results[count + k] for k, slot in places.items()}
                filled = [own[n] if n in own else zeros(a) for n, a in enumerate(slots)]
                return results[:count] + filled

            return run

        index = self.read(item.index)
        found = lax.switch(index, [taken(s, p) for s, p in zip(sides, places, strict=True)])
        count = len(item.outputs)
        self.values |= zip(item.outputs, found[:count], strict=True)
        moving = [k for k, v in enumerate(item.outputs) if is_float(v.aval)]
        kept = self.keep(found[count:])
        fork = Fork(
            self.keep([index])[0],
            tuple(
                Side(
                    side.segments,
                    tuple(known[k] if k in known else kept[own[k]] for k in range(side.count)),
                    tuple(side.results[k] for k in moving),
                )
                for side, known, own in zip(sides, outer, places, strict=True)
            ),
            tuple(item.outputs[k] for k in moving),
        )
        if any(fork.inputs):
            self.active.update(fork.outputs)
            self.segments.append(fork)


@dataclass(frozen=True, eq=False, slots=True)
class _TracedSide:
    """A traced side. `jaxpr`: returns the results and `count` residuals; `avals`: the types of residuals
    computed inside; `known`: the other residuals, which are outer values; `results`: the structure's."""

    jaxpr: Any
    segments: tuple[Segment, ...]
    count: int
    avals: Mapping[int, Aval]
    known: Mapping[int, Any]
    results: tuple[Atom, ...]


def _without_constants(jaxpr: Any) -> Any:
    """The jaxpr with its constants as first operands, because it outlives the trace that they belong to."""
    outer = [aval_of(x) for x in constants(jaxpr)]

    def run(*operands: Any) -> list[Any]:
        return evaluate(jaxpr, operands[: len(outer)], operands[len(outer) :])

    return jax.make_jaxpr(run)(*outer, *(aval_of(v.aval) for v in open_jaxpr(jaxpr).invars))


def _traced_side(side: Structure, values: Values, active: frozenset[Var]) -> _TracedSide:
    found = trace_body(side, active, values)
    opened = open_jaxpr(found.jaxpr)
    outer = dict(zip(opened.constvars, constants(found.jaxpr), strict=True))
    residuals = opened.outvars[len(side.results) :]
    avals, known = {}, {}
    for k, atom in enumerate(residuals):
        if isinstance(atom, jex.Literal):
            known[k] = jnp.asarray(atom.val, atom.aval.dtype)
        elif atom in outer:
            known[k] = outer[atom]
        else:
            avals[k] = aval_of(atom.aval)
    results = tuple(
        atom if isinstance(atom, Const) or atom in found.active else Const(0, atom.aval)
        for atom in side.results
    )
    return _TracedSide(found.jaxpr, found.segments, len(residuals), avals, known, results)


# -- the linear part -----------------------------------------------------------------------------------------
def picked(values: Mapping[Any, Any], atoms: Sequence[Atom]) -> list[Any]:
    """The values of these atoms; zeros for those without one."""
    return [values[v] if v in values else zeros(v.aval) for v in atoms]


def added(values: Mapping[Var, Any], atoms: Sequence[Any], terms: Sequence[Any]) -> Values:
    """The values with these terms added to those of the variables among `atoms`."""
    found = dict(values)
    for v, x in zip(atoms, terms, strict=True):
        if isinstance(v, Var):
            found[v] = found[v] + x if v in found else x
    return found


def push(segments: Sequence[Segment], residuals: Sequence[Any], moves: Values) -> Values:
    """Computes the tangents of all variables from those of the inputs."""
    moves = dict(moves)
    for step in segments:
        if isinstance(step, LinearEquations):
            known = [residuals[k] for k in step.residuals]
            found = evaluate(step.jaxpr, constants(step.jaxpr), [*known, *picked(moves, step.inputs)])
        else:
            found = lax.switch(residuals[step.index], [_pushed(s, residuals, moves) for s in step.sides])
        moves |= zip(step.outputs, found, strict=True)
    return moves


def _pushed(side: Side, residuals: Sequence[Any], moves: Values) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        found = push(side.segments, [residuals[k] for k in side.residuals], moves)
        return picked(found, side.results)

    return run


def pull(segments: Sequence[Segment], residuals: Sequence[Any], cotangents: Values) -> Values:
    """Computes the cotangents of the inputs from those of the results."""
    for step in reversed(segments):
        if not any(v in cotangents for v in step.outputs):
            continue
        wanted = picked(cotangents, step.outputs)
        cotangents = {v: ct for v, ct in cotangents.items() if v not in step.outputs}
        if isinstance(step, LinearEquations):
            known = [residuals[k] for k in step.residuals]

            def linear(*moves: Any, step: LinearEquations = step, known: Sequence[Any] = known) -> list[Any]:
                return evaluate(step.jaxpr, constants(step.jaxpr), [*known, *moves])

            found = jax.linear_transpose(linear, *(v.aval for v in step.inputs))(wanted)
        else:
            sides = [_pulled(side, residuals, step, wanted) for side in step.sides]
            found = lax.switch(residuals[step.index], sides)
        cotangents = added(cotangents, step.inputs, found)
    return cotangents


def _pulled(
    side: Side, residuals: Sequence[Any], fork: Fork, wanted: Sequence[Any]
) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        start = added({}, side.results, wanted)
        return picked(pull(side.segments, [residuals[k] for k in side.residuals], start), fork.inputs)

    return run
