"""Hoists values that depend on the environment alone out of the bodies of recursive functions.

They become values of the environment themselves, so they are computed once and never on a tape. What every
call computes is hoisted if it is no larger than what it reads. From the sides of branches, which may not run,
only slices and other views are hoisted: the derivative of another function may be infinite where its branch
is not taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
from jax import lax

from jax_cocktail.primitives.jaxprs import call_body, interpret, open_jaxpr, scan_counts
from jax_cocktail.recursion.structure import binder
from jax_cocktail.recursion.task import aval_of, row_bytes

_VIEWS = frozenset({"slice", "split", "squeeze", "reshape", "transpose", "rev"})
_CALLS = frozenset({"jit", "pjit"})
_UNKNOWN = object()  # a value that differs between calls


@dataclass(eq=False, slots=True)
class _Found:
    """Values that are hoisted out of a jaxpr. `values`: the results of equations, by identity; `inside`: the
    same for the jaxprs of other equations."""

    values: dict[int, Sequence[Any]] = field(default_factory=dict)
    inside: dict[int, tuple[_Found, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.values or self.inside)


def hoisted(body: Any, runs: bool) -> Any:
    """The closed jaxpr of a function's body, whose constants are the environment, with the hoisted values as
    further constants. `runs`: the function is called whenever the recursion is."""
    parameters = open_jaxpr(body).invars
    found = _find(body, [_UNKNOWN] * len(parameters), runs)
    if not found:
        return body
    return jax.make_jaxpr(lambda *operands: _run(body, operands, found))(
        *(aval_of(v.aval) for v in parameters)
    )


def _find(jaxpr: Any, operands: Sequence[Any], runs: bool) -> _Found:
    """Computes the values to hoist. `operands`: those of the jaxpr, where they are known."""
    found = _Found()

    def apply(equation: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        key = id(equation)
        if _moves(equation, inputs, runs):
            found.values[key] = binder(equation)(*inputs)
            return found.values[key]
        again = runs and equation.primitive.name in _CALLS
        inside = tuple(_find(inner, own, again) for inner, own in _inside(equation, inputs))
        if any(inside):
            found.inside[key] = inside
        return [_UNKNOWN] * len(equation.outvars)

    interpret(jaxpr, operands, lambda _, value: value, apply)
    return found


def _moves(equation: Any, inputs: Sequence[Any], runs: bool) -> bool:
    """True if an equation is hoisted."""
    read = [v.aval for v in equation.invars if not isinstance(v, jex.Literal)]
    if not read or equation.effects or any(x is _UNKNOWN for x in inputs):
        return False
    made = [aval_of(v.aval) for v in equation.outvars]
    is_small = row_bytes(made) <= row_bytes([aval_of(a) for a in read])
    return is_small and (runs or equation.primitive.name in _VIEWS)


def _inside(equation: Any, inputs: Sequence[Any]) -> Iterator[tuple[Any, Sequence[Any]]]:
    """The jaxprs of an equation, with their operands where they are known."""
    name, params = equation.primitive.name, equation.params
    if name == "cond":
        yield from ((side, inputs[1:]) for side in params["branches"])
    elif name == "scan":
        count, _ = scan_counts(params)
        yield params["jaxpr"], [*inputs[:count], *[_UNKNOWN] * (len(inputs) - count)]
    elif name in _CALLS:
        yield call_body(params), inputs


def _run(jaxpr: Any, operands: Sequence[Any], found: _Found) -> tuple[Any, ...]:
    """Evaluates a jaxpr without what is hoisted out of it."""

    def apply(equation: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        key = id(equation)
        if key in found.values:
            return found.values[key]
        inside = found.inside.get(key)
        return _run_inside(equation, inputs, inside) if inside else binder(equation)(*inputs)

    return interpret(jaxpr, operands, lambda _, value: value, apply)


def _run_inside(equation: Any, inputs: Sequence[Any], inside: Sequence[_Found]) -> Sequence[Any]:
    params = equation.params
    if equation.primitive.name in _CALLS:
        return _run(call_body(params), inputs, inside[0])
    if equation.primitive.name == "cond":
        sides = zip(params["branches"], inside, strict=True)
        found: Sequence[Any] = lax.switch(
            inputs[0], [partial(_run, side, inputs[1:], own) for side, own in sides]
        )
        return found
    count, carries = scan_counts(params)

    def step(carried: Sequence[Any], rows: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        made = _run(params["jaxpr"], [*inputs[:count], *carried, *rows], inside[0])
        return made[:carries], made[carries:]

    carried, rows = lax.scan(
        step,
        tuple(inputs[count : count + carries]),
        tuple(inputs[count + carries :]),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*carried, *rows]
