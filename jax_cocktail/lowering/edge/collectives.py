"""Moves sums over devices out of loops.

A loop may add up in every iteration what all devices have computed, as the gradient of a recurrent network
does. The sum over devices of a sum over iterations is the same, up to rounding: so each device adds up its
own values, and the devices communicate once, after the loop.

A value is *partial* if its sum over the devices is what the program means. The results of the sums are
partial once these are left out, and so is what is linear in partial values. The loop has to return all of
them: nothing else may need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.extend.core.primitives import add_p

from jax_cocktail.lowering.edge.adapter import cast_to_varying, primitive_name
from jax_cocktail.primitives.jaxprs import CASTS, communicates, constants, open_jaxpr, scan_counts

_SCATTER = "reduce_scatter"  # a sum of which each device gets a part
_SUMS = frozenset({"psum", "psum_invariant", _SCATTER})
_ADDS = frozenset({"add", "add_any"})
_MOVES = frozenset({"neg", "transpose", "reshape", "squeeze", "broadcast_in_dim", "reduce_sum", "copy"})


@dataclass(frozen=True, eq=False, slots=True)
class _Loop:
    """A loop: the jaxpr of one iteration, the position of its carries among its inputs and that among the
    operands of the loop, their number, and the jaxpr of the condition, if there is one, with the position of
    the carries among its inputs."""

    body: Any
    consts: int
    begins: int
    carries: int
    condition: Any = None
    seen: int = 0

    def needs(self, carry: int) -> bool:
        """True if the condition reads a carry."""
        if self.condition is None:
            return False
        variable = self.condition.invars[self.seen + carry]
        read = [*self.condition.outvars, *(atom for each in self.condition.eqns for atom in each.invars)]
        return any(atom is variable for atom in read)


def _loop(equation: Any) -> _Loop | None:
    """The loop of an equation, if its sums can leave it; else None."""
    params, name = equation.params, primitive_name(equation)
    if name == "scan" and not constants(params["jaxpr"]) and params["length"]:
        consts, carries = scan_counts(params)
        return _Loop(open_jaxpr(params["jaxpr"]), consts, consts, carries)
    if name != "while" or constants(params["body_jaxpr"]) or constants(params["cond_jaxpr"]):
        return None
    body, condition = open_jaxpr(params["body_jaxpr"]), open_jaxpr(params["cond_jaxpr"])
    if any(map(communicates, condition.eqns)):
        return None
    seen, consts = int(params["cond_nconsts"]), int(params["body_nconsts"])
    return _Loop(body, consts, seen + consts, len(body.outvars), condition, seen)


@dataclass(frozen=True, eq=False, slots=True)
class _Sums:
    """Sums over the same devices in the body of a loop: their equations, the variables that are partial
    without them, and which carries and which of the other results of the loop are, by position."""

    equations: tuple[Any, ...]
    partial: frozenset[Any]
    carries: tuple[int, ...]
    stacked: tuple[int, ...]

    @property
    def example(self) -> Any:
        return self.equations[0]


def _sums(equation: Any, loop: _Loop, example: Any) -> _Sums | None:
    """The sums like this one in a loop, if they can leave it; else None."""
    body, consts, carries = loop.body, loop.consts, loop.carries
    found = [each for each in body.eqns if _is_like(each, example)]
    partial = {var for each in found for var in each.outvars}
    known = -1
    while len(partial) != known:  # a carry that becomes partial makes others partial
        known = len(partial)
        for number, result in enumerate(body.outvars[:carries]):
            if not isinstance(result, jex.Literal) and result in partial:
                partial.add(body.invars[consts + number])
        for each in body.eqns:
            if not partial.isdisjoint(_read(each)):
                partial.update(each.outvars)
    readers = [each for each in body.eqns if not partial.isdisjoint(_read(each))]
    made = {var: each for each in body.eqns for var in each.outvars}
    if not all(_is_linear(each, partial, made, _scatters(example)) for each in readers):
        return None
    results = [
        k for k, atom in enumerate(body.outvars) if not isinstance(atom, jex.Literal) and atom in partial
    ]
    inner = {k for k in range(carries) if body.invars[consts + k] in partial}
    if inner - set(results) or any(map(loop.needs, inner)):  # the next iteration needs the whole value
        return None
    mine, stacked = tuple(k for k in results if k < carries), tuple(k for k in results if k >= carries)
    if stacked and _scatters(example):
        return None
    return _Sums(tuple(found), frozenset(partial), mine, stacked)


def _is_sum(equation: Any) -> bool:
    """True if an equation is a sum over devices, element by element."""
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    if primitive_name(equation) not in _SUMS or not all(isinstance(axis, str) for axis in axes):
        return False
    if any(isinstance(atom, jex.Literal) for atom in equation.invars):
        return False
    if _scatters(equation):
        return bool(equation.params["tiled"])
    pairs = zip(equation.invars, equation.outvars, strict=True)
    return all(a.aval.shape == b.aval.shape for a, b in pairs)


def _is_like(equation: Any, other: Any) -> bool:
    """True if both are sums over the same devices."""
    same = primitive_name(equation) == primitive_name(other) and equation.params == other.params
    return same and _is_sum(equation)


def _scatters(equation: Any) -> bool:
    return primitive_name(equation) == _SCATTER


def _read(equation: Any) -> list[Any]:
    return [atom for atom in equation.invars if not isinstance(atom, jex.Literal)]


def _is_linear(equation: Any, partial: set[Any], made: Mapping[Any, Any], scatters: bool) -> bool:
    """True if the result of an equation is linear in partial values, and in nothing else. `made`: the
    equations that make variables; `scatters`: the shapes of partial values change."""
    name, operands = primitive_name(equation), equation.invars
    if name in _MOVES:
        return not scatters or name == "neg" or name == "copy"
    if name in _ADDS or name == "sub":
        return all(not isinstance(atom, jex.Literal) and atom in partial for atom in operands)
    if name != "mul" and name != "div":
        return False
    factors = [_constant(atom, made) for atom in operands]
    if scatters and all(value is None or value.shape for value in factors):
        return False
    if name == "mul":
        return any(value is not None and np.all(np.isfinite(value)) for value in factors)
    by = factors[1]
    return by is not None and by.dtype.kind in "fc" and bool(np.all(np.isfinite(by) & (by != 0)))


def _constant(atom: Any, made: Mapping[Any, Any]) -> Any | None:
    """The value of a constant; None for any other value."""
    if isinstance(atom, jex.Literal):
        return np.asarray(atom.val)
    if atom not in made or primitive_name(made[atom]) not in CASTS | {"convert_element_type"}:
        return None
    value = _constant(made[atom].invars[0], made)
    return None if value is None else value.astype(atom.aval.dtype)


def _only_added(body: Any, variable: Any, result: Any) -> bool:
    """True if something is only added to a variable, or taken from it, and the same holds for what this
    makes, as far as `result`, which is one result alone."""
    if sum(atom is result for atom in body.outvars) != 1:
        return False
    while variable is not result:
        users = [each for each in body.eqns if any(atom is variable for atom in each.invars)]
        if len(users) != 1 or any(atom is variable for atom in body.outvars):
            return False
        name, (first, *others) = primitive_name(users[0]), users[0].invars
        if any(each is first for each in others):
            return False
        if name not in _ADDS and not (name == "sub" and first is variable):
            return False
        (variable,) = users[0].outvars
    return not any(atom is variable for each in body.eqns for atom in each.invars)


def moved(equation: Any, is_zeros: Callable[[Any], bool], new: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The equations in place of one: if it is a loop whose sums over devices can leave it, they follow it.

    Args:
      equation: any.
      is_zeros: tells whether an operand is known to be an array of zeros.
      new: makes a variable of a type.

    Raises:
      AttributeError, ImportError, TypeError: JAX hides types that this takes.
    """
    loop = _loop(equation)
    if loop is None:
        return (equation,)
    for each in filter(_is_sum, loop.body.eqns):
        found = _sums(equation, loop, each)
        if found is None:
            continue
        body, consts = loop.body, loop.consts
        kept = [k for k in found.carries if not is_zeros(equation.invars[loop.begins + k])]
        if not all(_only_added(body, body.invars[consts + k], body.outvars[k]) for k in kept):
            continue
        before, left, after = _moved(equation, loop, found, frozenset(kept), new)
        return (*before, *moved(left, is_zeros, new), *after)
    return (equation,)


def _moved(
    equation: Any, loop: _Loop, found: _Sums, kept: frozenset[int], new: Callable[[Any], Any]
) -> tuple[list[Any], Any, list[Any]]:
    """Equations in front of the loop, the loop without its sums, and these behind it. `kept`: the carries
    that begin with other values than zeros, which are added in the end."""
    example, begins = found.example, loop.begins
    before, after = list[Any](), list[Any]()
    operands, results = list(equation.invars), list(equation.outvars)
    for k in found.carries:
        begin, wanted = equation.invars[begins + k], equation.outvars[k]
        zeros = None if k in kept or _scatters(example) else begin
        made, operands[begins + k] = zeros_of(wanted.aval, zeros, example, new)
        before += made
    for k in (*found.carries, *found.stacked):
        begin, wanted = equation.invars[begins + k] if k in kept else None, equation.outvars[k]
        results[k] = new(varying(wanted.aval, example))
        whole = wanted if begin is None else new(wanted.aval)
        after.append(example.replace(invars=[results[k]], outvars=[whole]))
        if begin is not None:
            add = {"primitive": add_p, "params": {}, "effects": jex.no_effects}
            after.append(example.replace(invars=[begin, whole], outvars=[wanted], **add))
    without = _without(loop.body, found, new)
    effects, closed = without.effects, jex.ClosedJaxpr(without, [])
    if loop.condition is None:
        params = {**equation.params, "jaxpr": closed}
    else:
        condition, inputs = loop.condition, list(loop.condition.invars)
        for k in found.carries:  # their types are others
            inputs[loop.seen + k] = new(varying(equation.outvars[k].aval, example))
        effects |= condition.effects
        condition = jex.ClosedJaxpr(condition.replace(invars=inputs), [])
        params = {**equation.params, "body_jaxpr": closed, "cond_jaxpr": condition}
    left = equation.replace(invars=operands, outvars=results, params=params, effects=effects)
    return before, left, after


def _without(body: Any, found: _Sums, new: Callable[[Any], Any]) -> Any:
    """The body in which the operands of its sums over devices take the place of their results."""
    names: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, jex.Literal) else names.get(atom, atom)

    def renamed(var: Any) -> Any:
        if var in found.partial:
            names[var] = new(varying(var.aval, found.example))
        return names.get(var, var)

    inputs, equations = [*map(renamed, body.invars)], []
    for each in body.eqns:
        operands = [*map(read, each.invars)]
        if each in found.equations:
            names.update(zip(each.outvars, operands, strict=True))
        else:
            equations.append(each.replace(invars=operands, outvars=[*map(renamed, each.outvars)]))
    effects = frozenset().union(*(each.effects for each in equations))
    results = [*map(read, body.outvars)]
    return body.replace(invars=inputs, eqns=equations, outvars=results, effects=effects)


# ---- types of values that vary over devices ----------------------------------------------------------------

_CHECKED_SUM = "psum_invariant"  # where JAX checks over which axes values vary


def varying(aval: Any, example: Any) -> Any:
    """The type of what a sum over devices adds up, where the sum has this type. `example`: the sum. Raises
    AttributeError or TypeError if JAX hides this."""
    if _scatters(example):
        axis, shape = example.params["scatter_dimension"], list(aval.shape)
        shape[axis] *= example.params["axis_size"]
        return aval.update(shape=tuple(shape))
    if example.primitive.name != _CHECKED_SUM:
        return aval
    axes = frozenset(example.params["axes"]) | aval.mat.varying
    return aval.update(manual_axis_type=aval.mat.update(varying=axes))


def zeros_of(aval: Any, zeros: Any | None, example: Any, new: Callable[[Any], Any]) -> tuple[list[Any], Any]:
    """Equations that make an array of zeros, and this array. It has the type `varying`.

    Args:
      aval: the type of the sum over devices.
      zeros: an array of zeros of this type; None if there is none.
      example: the sum.
      new: makes a variable of a type.

    Raises:
      AttributeError, ImportError, TypeError: JAX hides what this takes.
    """
    made, wanted = list[Any](), varying(aval, example)
    if zeros is None:
        traced = open_jaxpr(jax.make_jaxpr(lambda: jax.lax.full(wanted.shape, 0, wanted.dtype))())
        names = {var: new(var.aval) for each in traced.eqns for var in each.outvars}
        made = [each.replace(outvars=[names[var] for var in each.outvars]) for each in traced.eqns]
        (zeros,) = traced.outvars
        zeros = zeros if isinstance(zeros, jex.Literal) else names[zeros]
    if example.primitive.name not in (_CHECKED_SUM, _SCATTER):
        return made, zeros
    result = new(wanted)
    axes = tuple(sorted(wanted.mat.varying - zeros.aval.mat.varying))
    if not axes:
        return made, zeros
    cast = {"primitive": cast_to_varying(), "params": {"axes": axes}, "effects": jex.no_effects}
    return [*made, example.replace(invars=[zeros], outvars=[result], **cast)], result
