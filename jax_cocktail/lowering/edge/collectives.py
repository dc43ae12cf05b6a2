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

_SUMS = frozenset({"psum", "psum_invariant"})
_ADDS = frozenset({"add", "add_any"})
_MOVES = frozenset({"neg", "transpose", "reshape", "squeeze", "broadcast_in_dim", "reduce_sum", "copy"})


@dataclass(frozen=True, eq=False, slots=True)
class _Sums:
    """The sums over devices in the body of a loop: an equation of them, the variables that are partial
    without them, and which carries and which of the other results of the loop are, by position."""

    example: Any
    partial: frozenset[Any]
    carries: tuple[int, ...]
    stacked: tuple[int, ...]


def leaves(equation: Any) -> bool:
    """True if all communication of a loop can be moved behind it."""
    return _sums(equation) is not None


def _sums(equation: Any) -> _Sums | None:
    """The sums that leave a `scan`; None if it has none, or if it has to communicate."""
    if primitive_name(equation) != "scan" or constants(equation.params["jaxpr"]):
        return None
    body = open_jaxpr(equation.params["jaxpr"])
    found = [each for each in body.eqns if communicates(each)]
    if not found or not all(_is_sum(each, found[0]) for each in found):
        return None
    consts, carries = scan_counts(equation.params)
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
    if not all(_is_linear(each, partial, made) for each in readers):
        return None
    results = [
        k for k, atom in enumerate(body.outvars) if not isinstance(atom, jex.Literal) and atom in partial
    ]
    inner = {k for k in range(carries) if body.invars[consts + k] in partial}
    if inner - set(results):  # the next iteration needs the whole value
        return None
    mine = tuple(k for k in results if k < carries)
    return _Sums(found[0], frozenset(partial), mine, tuple(k for k in results if k >= carries))


def _is_sum(equation: Any, first: Any) -> bool:
    """True if an equation is a sum over the same devices as the first one, element by element."""
    same = primitive_name(equation) == primitive_name(first) and equation.params == first.params
    axes = equation.params.get("axes", ())
    shapes = all(
        a.aval.shape == b.aval.shape for a, b in zip(equation.invars, equation.outvars, strict=True)
    )
    literal = any(isinstance(atom, jex.Literal) for atom in equation.invars)
    return (
        primitive_name(equation) in _SUMS
        and same
        and shapes
        and not literal
        and all(isinstance(axis, str) for axis in axes)
    )


def _read(equation: Any) -> list[Any]:
    return [atom for atom in equation.invars if not isinstance(atom, jex.Literal)]


def _is_linear(equation: Any, partial: set[Any], made: Mapping[Any, Any]) -> bool:
    """True if the result of an equation is linear in partial values, and in nothing else. `made`: the
    equations that make variables."""
    name, operands = primitive_name(equation), equation.invars
    if name in _MOVES:
        return True
    if name in _ADDS or name == "sub":
        return all(not isinstance(atom, jex.Literal) and atom in partial for atom in operands)
    if name != "mul" and name != "div":
        return False
    factors = [_constant(atom, made) for atom in operands]
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
    """
    found = _sums(equation)
    if found is None:
        return (equation,)
    body, consts = open_jaxpr(equation.params["jaxpr"]), scan_counts(equation.params)[0]
    kept = [k for k in found.carries if not is_zeros(equation.invars[consts + k])]
    if not all(_only_added(body, body.invars[consts + k], body.outvars[k]) for k in kept):
        return (equation,)
    try:
        return _moved(equation, found, frozenset(kept), new)
    except (AttributeError, ImportError, TypeError):  # another release of JAX has other types
        return (equation,)


def _moved(
    equation: Any, found: _Sums, kept: frozenset[int], new: Callable[[Any], Any]
) -> tuple[Any, ...]:
    """The loop without its sums, and these behind it. `kept`: the carries that begin with other values than
    zeros, which are added in the end."""
    body, consts = open_jaxpr(equation.params["jaxpr"]), scan_counts(equation.params)[0]
    example = found.example
    before, after = list[Any](), list[Any]()
    operands, results = list(equation.invars), list(equation.outvars)
    for k in found.carries:
        begin, wanted = equation.invars[consts + k], equation.outvars[k]
        made, operands[consts + k] = zeros_of(wanted.aval, None if k in kept else begin, example, new)
        before += made
    for k in (*found.carries, *found.stacked):
        begin, wanted = equation.invars[consts + k] if k in kept else None, equation.outvars[k]
        results[k] = new(varying(wanted.aval, example))
        whole = wanted if begin is None else new(wanted.aval)
        after.append(example.replace(invars=[results[k]], outvars=[whole]))
        if begin is not None:
            add = {"primitive": add_p, "params": {}, "effects": jex.no_effects}
            after.append(example.replace(invars=[begin, whole], outvars=[wanted], **add))
    without = _without(body, found, new)
    params = {**equation.params, "jaxpr": jex.ClosedJaxpr(without, [])}
    loop = equation.replace(invars=operands, outvars=results, params=params, effects=without.effects)
    return (*before, loop, *after)


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
        if communicates(each):
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
    made = list[Any]()
    if zeros is None:
        traced = open_jaxpr(jax.make_jaxpr(lambda: jax.lax.full(aval.shape, 0, aval.dtype))())
        names = {var: new(var.aval) for each in traced.eqns for var in each.outvars}
        made = [each.replace(outvars=[names[var] for var in each.outvars]) for each in traced.eqns]
        (zeros,) = traced.outvars
        zeros = zeros if isinstance(zeros, jex.Literal) else names[zeros]
    if example.primitive.name != _CHECKED_SUM:
        return made, zeros
    result = new(varying(aval, example))
    axes = tuple(sorted(result.aval.mat.varying - zeros.aval.mat.varying))
    cast = {"primitive": cast_to_varying(), "params": {"axes": axes}, "effects": jex.no_effects}
    return [*made, example.replace(invars=[zeros], outvars=[result], **cast)], result
