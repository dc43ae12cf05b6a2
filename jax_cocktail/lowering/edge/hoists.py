"""Moves communication between devices out of loops that need not repeat it.

- What a loop communicates is *invariant* if its operands do not change between iterations, as the weights
  that a device gathers. It goes in front of the loop, with what makes its operands.
- What a `scan` only stacks is communicated once, as a whole, behind it.
- Sums that a loop only adds up are made once, behind it (see `collectives`).
- `axis_index` is no communication, but XLA alone knows it: it goes in front of loops and branches.

All devices have to make the same collectives. A loop that runs once at least makes no more of them than
before. A `while` loop may run no iteration, so collectives leave it only where all devices reach it: outside
of branches and other `while` loops.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core as jex

from jax_cocktail.lowering.edge.adapter import CALLS, forced_to_stock, primitive_name, within
from jax_cocktail.lowering.edge.collectives import moved
from jax_cocktail.lowering.edge.flatten import is_zeros, makes_zeros
from jax_cocktail.lowering.edge.meshes import LOOPS, SHARD_MAP
from jax_cocktail.lowering.state import read_mark
from jax_cocktail.primitives.jaxprs import (
    AXIS_INDEX,
    COLLECTIVES,
    call_body,
    constants,
    equations_inside,
    interpret,
    is_jaxpr,
    names_axes,
    nested_jaxprs,
    open_jaxpr,
    scan_counts,
    with_constants,
)

# The parameters of collectives that are positions of axes. A collective that is not here is not stacked.
_POSITIONS: Mapping[str, tuple[str, ...]] = {
    "psum": (),
    "psum_invariant": (),
    "pmax": (),
    "pmin": (),
    "ppermute": (),
    "all_gather": ("all_gather_dimension",),
    "all_gather_invariant": ("all_gather_dimension",),
    "reduce_scatter": ("scatter_dimension",),
    "all_to_all": ("split_axis", "concat_axis"),
}
_NAMED = "NamedAxisEffect"  # JAX's mark that something needs an axis of the mesh
_HIDDEN = (AttributeError, ImportError, TypeError)  # another release of JAX has other types


def moved_out(closed: Any) -> Any:
    """A closed jaxpr that computes the same with less communication in its loops."""
    return _Mover(jex.gensym()).jaxpr(closed, reached=False)


def _speaks_inside(equation: Any) -> bool:
    return any(map(names_axes, equations_inside(equation)))


def _writes_inputs(equation: Any) -> bool:
    """True if a jaxpr of an equation reads or writes references, which its effects name by position."""
    inner = (effect for jaxpr in nested_jaxprs(equation) for effect in open_jaxpr(jaxpr).effects)
    return any(hasattr(effect, "input_index") for effect in inner)


def _is_pure(equation: Any) -> bool:
    """True if an equation computes its results from its operands alone, at once."""
    named = all(type(effect).__name__ == _NAMED for effect in equation.effects)
    return named and next(nested_jaxprs(equation), None) is None


def _variables(atoms: Sequence[Any]) -> set[Any]:
    return {atom for atom in atoms if not isinstance(atom, jex.Literal)}


def _effects(equations: Sequence[Any]) -> Any:
    return frozenset[Any]().union(*(each.effects for each in equations))


def _like(jaxpr: Any, opened: Any) -> Any:
    """An open jaxpr, closed if another one is, with the constants of that one."""
    return opened if isinstance(jaxpr, jex.Jaxpr) else jex.ClosedJaxpr(opened, list(constants(jaxpr)))


@dataclass(frozen=True, eq=False, slots=True)
class _Body:
    """A jaxpr of a loop: the parameter that holds it, and the position and the number of its constants among
    the operands of the loop."""

    parameter: str
    first: int
    count: int


def _bodies(equation: Any) -> tuple[_Body, ...]:
    """The jaxprs of a loop, the last one for one iteration."""
    params = equation.params
    if primitive_name(equation) == "scan":
        return (_Body("jaxpr", 0, scan_counts(params)[0]),)
    condition, body = int(params["cond_nconsts"]), int(params["body_nconsts"])
    return _Body("cond_jaxpr", 0, condition), _Body("body_jaxpr", condition, body)


@dataclass(frozen=True, eq=False, slots=True)
class _Mover:
    """`new`: makes a variable of a type."""

    new: Callable[[Any], Any]

    def jaxpr(self, jaxpr: Any, reached: bool) -> Any:
        """The jaxpr with less communication in its loops. `reached`: all devices run it equally often."""
        opened, equations, zeros = open_jaxpr(jaxpr), list[Any](), set[Any]()
        for each in opened.eqns:
            if makes_zeros(each, zeros):
                zeros.update(each.outvars)
            equations += self._equation(each, reached, zeros)
        if len(equations) == len(opened.eqns) and all(map(operator.is_, equations, opened.eqns)):
            return jaxpr
        return _like(jaxpr, opened.replace(eqns=equations))

    def _equation(self, equation: Any, reached: bool, zeros: set[Any]) -> Sequence[Any]:
        if forced_to_stock(equation) or not _speaks_inside(equation) or _writes_inputs(equation):
            return (equation,)
        name = primitive_name(equation)
        if name == SHARD_MAP and not getattr(equation.params["mesh"], "manual_axes", ()):
            inside = True
        else:
            inside = reached and name not in ("cond", "while")
        params = {key: self._exchanged(value, inside) for key, value in equation.params.items()}
        if any(params[key] is not value for key, value in equation.params.items()):
            equation = equation.replace(params=params)
        try:
            if name == "cond":
                return self._out_of_branches(equation)
            return self._out_of_loop(equation, reached, zeros) if name in LOOPS else (equation,)
        except _HIDDEN:
            return (equation,)

    def _exchanged(self, value: Any, reached: bool) -> Any:
        if is_jaxpr(value):
            return self.jaxpr(value, reached)
        if not isinstance(value, tuple | list) or not any(map(is_jaxpr, value)):
            return value
        items = [self._exchanged(each, reached) for each in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)

    # ---- loops ---------------------------------------------------------------------------------------------

    def _out_of_loop(self, equation: Any, reached: bool, zeros: set[Any]) -> Sequence[Any]:
        is_scan = primitive_name(equation) == "scan"
        runs = equation.params["length"] > 0 if is_scan else reached
        loop, before, after = self._without_calls(equation), list[Any](), list[Any]()
        begin = loop
        for number in range(len(_bodies(loop))):
            lifted, loop = self._invariant(loop, _bodies(loop)[number], runs)
            before += lifted
        while is_scan and runs and (found := self._stacked(loop)) is not None:
            loop, later = found
            after.insert(0, later)
        if runs:
            known = set(zeros)
            for each in before:
                if makes_zeros(each, known):
                    known.update(each.outvars)
            first, *sums = moved(loop, lambda atom: is_zeros(atom, known), self.new)
            if first is begin:
                return (equation,)
            return *before, first, *sums, *after
        return (equation,) if loop is begin else (*before, loop, *after)

    def _without_calls(self, equation: Any) -> Any:
        """A loop without the calls that communicate in its jaxprs."""
        params = dict(equation.params)
        for body in _bodies(equation):
            jaxpr = params[body.parameter]
            if not constants(jaxpr) and any(map(_is_call, open_jaxpr(jaxpr).eqns)):
                params[body.parameter] = _like(jaxpr, self._inlined(open_jaxpr(jaxpr)))
        return equation.replace(params=params) if params != equation.params else equation

    def _invariant(self, equation: Any, body: _Body, runs: bool) -> tuple[list[Any], Any]:
        """The equations in front of a loop for what is invariant in one of its jaxprs, and the loop. `runs`:
        collectives are among them."""
        jaxpr = equation.params[body.parameter]
        if constants(jaxpr) or open_jaxpr(jaxpr).constvars:
            return [], equation
        inner = open_jaxpr(jaxpr)
        known = self._same_in_all(equation, body, inner)
        chosen = _chosen(inner.eqns, set(known), runs)
        if not chosen:
            return [], equation
        lifted = list[Any]()
        for each in chosen:
            operands = [atom if isinstance(atom, jex.Literal) else known[atom] for atom in each.invars]
            results = [self.new(var.aval) for var in each.outvars]
            lifted.append(each.replace(invars=operands, outvars=results))
            known |= zip(each.outvars, results, strict=True)
        rest = [each for each in inner.eqns if each not in chosen]
        read = _variables([*inner.outvars, *(atom for each in rest for atom in each.invars)])
        added = [var for each in chosen for var in each.outvars if var in read]
        count, last = body.count, body.first + body.count
        inputs = [*inner.invars[:count], *added, *inner.invars[count:]]
        opened = _with_inputs(inner, inputs, rest)
        operands = [*equation.invars[:last], *(known[var] for var in added), *equation.invars[last:]]
        return lifted, _with_body(equation, body, _like(jaxpr, opened), operands, len(added))

    def _same_in_all(self, equation: Any, body: _Body, inner: Any) -> dict[Any, Any]:
        """The inputs of a loop's jaxpr that are the same in all iterations, with the loop's operands."""
        known = dict(zip(inner.invars, equation.invars[body.first : body.first + body.count], strict=False))
        last = _bodies(equation)[-1]
        step = open_jaxpr(equation.params[last.parameter])
        carries = len(step.invars) - last.count
        if primitive_name(equation) == "scan":
            carries = scan_counts(equation.params)[1]
        for k in range(carries):
            if step.outvars[k] is step.invars[last.count + k]:
                known[inner.invars[body.count + k]] = equation.invars[last.first + last.count + k]
        return known

    def _inlined(self, jaxpr: Any) -> Any:
        """An open jaxpr without the calls that communicate."""
        equations = list[Any]()

        def apply(equation: Any, operands: Sequence[Any], around: tuple[Any, ...] = ()) -> Sequence[Any]:
            if _is_call(equation) and not constants(call_body(equation.params)):
                inside = (*around, equation)
                body = call_body(equation.params)
                return interpret(body, operands, lambda atom, _: atom, lambda e, o: apply(e, o, inside))
            if not around:
                equations.append(equation.replace(invars=list(operands)))
                return list(equation.outvars)
            results = [self.new(var.aval) for var in equation.outvars]
            equations.append(within(equation.replace(invars=list(operands), outvars=results), around))
            return results

        if not any(map(_is_call, jaxpr.eqns)):
            return jaxpr
        closed = jex.ClosedJaxpr(jaxpr, [])
        results = interpret(closed, jaxpr.invars, lambda atom, _: atom, apply)
        return jaxpr.replace(eqns=equations, outvars=list(results))

    def _stacked(self, equation: Any) -> tuple[Any, Any] | None:
        """A `scan` without a collective of which it only stacks the result, and this collective, behind it;
        None if it has none."""
        carries, body = scan_counts(equation.params)[1], open_jaxpr(equation.params["jaxpr"])
        read = _variables([*body.outvars[:carries], *(atom for each in body.eqns for atom in each.invars)])
        for each in body.eqns:
            places = [k for k, atom in enumerate(body.outvars) if atom in _variables(each.outvars)]
            if not _may_be_stacked(each) or each.outvars[0] in read or len(places) != 1:
                continue
            (place,), (operand,) = places, each.invars
            results = list(equation.outvars)
            results[place] = self.new(_rows(operand.aval, equation.params["length"]))
            shifted = {name: each.params[name] + 1 for name in _POSITIONS[primitive_name(each)]}
            later = each.replace(
                invars=[results[place]], outvars=[equation.outvars[place]], params={**each.params, **shifted}
            )
            outvars, rest = list(body.outvars), [other for other in body.eqns if other is not each]
            outvars[place] = operand
            opened = body.replace(eqns=rest, outvars=outvars, effects=_effects(rest))
            params = {**equation.params, "jaxpr": _like(equation.params["jaxpr"], opened)}
            loop = equation.replace(outvars=results, params=params, effects=opened.effects)
            return loop, later
        return None

    # ---- branches ------------------------------------------------------------------------------------------

    def _out_of_branches(self, equation: Any) -> Sequence[Any]:
        """A branch, behind the indices of devices that its sides need."""
        sides = equation.params["branches"]
        if any(constants(side) or open_jaxpr(side).constvars for side in sides):
            return (equation,)
        inner = [self._inlined(open_jaxpr(side)) for side in sides]
        own = [[each for each in side.eqns if _is_index(each)] for side in inner]
        indices = [each for equations in own for each in equations]
        if not indices:
            return (equation,)
        opened = list[Any]()
        for side, equations in zip(inner, own, strict=True):
            rest = [each for each in side.eqns if each not in equations]
            added = [
                var if each in equations else self.new(var.aval)
                for each in indices
                for var in each.outvars
            ]
            opened.append(_with_inputs(side, [*side.invars, *added], rest))
        before = [each.replace(outvars=[self.new(var.aval) for var in each.outvars]) for each in indices]
        operands = [*equation.invars, *(var for each in before for var in each.outvars)]
        params = {**equation.params, "branches": tuple(map(_like, sides, opened))}
        effects = frozenset[Any]().union(*(side.effects for side in opened))
        return *before, equation.replace(invars=operands, params=params, effects=effects)


def _is_index(equation: Any) -> bool:
    return str(equation.primitive.name) == AXIS_INDEX


def _is_call(equation: Any) -> bool:
    """True if an equation is a call in which something communicates, for all that we know of it."""
    if primitive_name(equation) not in CALLS or read_mark(equation.params.get("name")) is not None:
        return False
    return _speaks_inside(equation)


def _chosen(equations: Sequence[Any], known: set[Any], runs: bool) -> list[Any]:
    """The collectives and indices that need nothing but known values, and what makes their operands. `runs`:
    collectives are among them."""
    pure = list[Any]()
    for each in equations:
        allowed = runs or str(each.primitive.name) not in COLLECTIVES
        if allowed and _is_pure(each) and _variables(each.invars) <= known:
            pure.append(each)
            known.update(each.outvars)
    needed, chosen = set[Any](), list[Any]()
    for each in reversed(pure):
        if names_axes(each) or not needed.isdisjoint(each.outvars):
            chosen.insert(0, each)
            needed |= _variables(each.invars)
    return chosen


def _with_inputs(opened: Any, inputs: Sequence[Any], equations: Sequence[Any]) -> Any:
    """An open jaxpr with other inputs, which have no names, and other equations."""
    info = opened.debug_info._replace(arg_names=None)
    effects = _effects(equations)
    return opened.replace(invars=list(inputs), eqns=list(equations), effects=effects, debug_info=info)


def _with_body(equation: Any, body: _Body, jaxpr: Any, operands: Sequence[Any], added: int) -> Any:
    """A loop with another jaxpr, which has so many more constants."""
    params = {**equation.params, body.parameter: jaxpr}
    if primitive_name(equation) == "scan":
        params = with_constants(params, body.count + added)
    else:
        params[body.parameter.replace("jaxpr", "nconsts")] = body.count + added
    inner = (open_jaxpr(params[each.parameter]) for each in _bodies(equation))
    effects = frozenset[Any]().union(*(each.effects for each in inner))
    return equation.replace(invars=list(operands), params=params, effects=effects)


def _may_be_stacked(equation: Any) -> bool:
    """True if a collective may be made of all rows of an array at once."""
    axes = equation.params.get("axes", ())
    return (
        primitive_name(equation) in _POSITIONS
        and len(equation.invars) == len(equation.outvars) == 1
        and not isinstance(equation.invars[0], jex.Literal)
        and all(isinstance(axis, str) for axis in axes)
    )


def _rows(aval: Any, length: int) -> Any:
    """The type of so many arrays of a type. Raises AttributeError or TypeError if JAX hides this."""
    spec = type(aval.sharding.spec)(None, *aval.sharding.spec)
    sharding = aval.sharding.update(spec=spec)
    return aval.update(shape=(length, *aval.shape), sharding=sharding)
