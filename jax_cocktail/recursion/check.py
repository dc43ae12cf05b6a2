"""Checks of recursive functions' bodies: termination, arguments that all calls share, side effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.jaxprs import equations_in
from jax_cocktail.recursion.structure import (
    REFERENCE,
    Atom,
    Call,
    Cond,
    Item,
    Repeat,
    Structure,
    calls_in,
)
from jax_cocktail.recursion.task import Numbering

NAMED_AXIS = "NamedAxisEffect"


def endless(bodies: Sequence[Structure]) -> bool:
    """True if no call of the first function ever returns."""
    open_ended = set(range(len(bodies)))
    while True:
        ended = {k for k in open_ended if not _always_calls(bodies[k], open_ended)}
        if not ended:
            return 0 in open_ended
        open_ended -= ended


def _always_calls(body: Structure, functions: set[int]) -> bool:
    return any(_calls(item, functions) for item in body.items)


def _calls(item: Item, functions: set[int]) -> bool:
    """True if every execution of an item calls one of these functions."""
    if isinstance(item, Call):
        return item.function in functions
    if isinstance(item, Cond):
        return all(_always_calls(side, functions) for side in item.sides)
    if isinstance(item, Repeat):
        first = item.body if item.condition is None else item.condition  # a while may never run its body
        return _always_calls(first, functions)
    return False


def numberings(jaxpr: Any) -> set[Numbering]:
    """The numberings of the references in a jaxpr. Those in a user's body have none."""
    return {e.params["numbering"] for e in equations_in(jaxpr) if e.primitive.name == REFERENCE}


def invariants(bodies: Sequence[Structure]) -> list[list[int | None]]:
    """For each argument of each function, the argument of the first function that it always equals, or None.

    `bodies`: structures of (token, *arguments) whose references pass all arguments.
    """
    unknown = -1
    found: list[list[int | None]] = [[unknown] * (len(body.parameters) - 1) for body in bodies]
    found[0] = list(range(len(found[0])))
    changed = True
    while changed:
        changed = False
        for caller, body in enumerate(bodies):
            known: dict[Atom, int | None] = dict(zip(body.parameters[1:], found[caller], strict=True))
            for call in calls_in(body):
                own = found[call.function]
                for k, passed in enumerate(map(known.get, call.inputs[1:])):
                    if passed != unknown and own[k] not in (passed, None):
                        own[k], changed = passed if own[k] == unknown else None, True
    return [[None if k == unknown else k for k in function] for function in found]


def refuse_effects(body: Any, name: str, source: str) -> None:
    """Raises UnsupportedError for side effects: `recursion` is an equation without effects and would lose
    them.

    An axis name of devices is allowed. An axis name of `jax.vmap` is not, because batch elements make calls
    of their own and the axis no longer exists when calls are expanded.
    """
    axes = {str(effect.name) for effect in body.effects if type(effect).__name__ == NAMED_AXIS}
    axes -= set(map(str, jax.sharding.get_abstract_mesh().manual_axes))
    if axes:
        raise UnsupportedError(
            f"the body of {name} uses the axis {', '.join(sorted(axes))} of jax.vmap, whose batch elements "
            "make calls of their own; combine them before or after the recursion",
            source,
        )
    effects = sorted({type(effect).__name__ for effect in body.effects} - {NAMED_AXIS})
    if effects:
        raise UnsupportedError(
            f"the body of {name} has side effects ({', '.join(effects)}; jax.debug.print is one); "
            "return the values together with the result, or use jax.pure_callback",
            source,
        )
