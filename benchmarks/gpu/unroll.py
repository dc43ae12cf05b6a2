"""A function with every loop of known trip count written out, as an expert would do who shuns loops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import jax
from jax import lax

MOST_EQUATIONS = 20_000  # XLA takes minutes for more


class CannotUnroll(ValueError):
    """The program has a loop of unknown trip count, or none, or would be too long."""


def unrolled(function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any]:
    """The same function without loops, if it calls `lax.scan` and `lax.fori_loop` by these names."""
    closed = jax.make_jaxpr(function)(*arguments)
    count = equations(closed, unroll=True)
    if count >= MOST_EQUATIONS:
        raise CannotUnroll(f"{count} equations unrolled, the limit is {MOST_EQUATIONS}")
    if count == equations(closed, unroll=False):
        raise CannotUnroll("there is no loop in it")

    @functools.wraps(function)
    def without_loops(*given: Any) -> Any:
        with (
            mock.patch.object(lax, "scan", functools.partial(lax.scan, unroll=True)),
            mock.patch.object(lax, "fori_loop", functools.partial(lax.fori_loop, unroll=True)),
        ):
            return function(*given)

    return without_loops


def equations(closed: Any, *, unroll: bool) -> int:
    """How many equations a closed jaxpr has, in all bodies; with `unroll`, those of a scan once a step."""
    return sum(_weight(equation, unroll) for equation in closed.jaxpr.eqns)


def _weight(equation: Any, unroll: bool) -> int:
    name, params = equation.primitive.name, equation.params
    if name == "while":
        raise CannotUnroll("it has a loop of unknown trip count")
    bodies = [params[key] for key in ("jaxpr", "call_jaxpr") if hasattr(params.get(key), "consts")]
    inside = sum(equations(body, unroll=unroll) for body in (*bodies, *params.get("branches", ())))
    return inside * params["length"] if name == "scan" and unroll else inside or 1
