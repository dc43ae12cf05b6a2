"""Checks of recursive functions' bodies: termination, arguments that all calls share, side effects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.jaxprs import nested_jaxprs, open_jaxpr, scan_counts
from jax_cocktail.recursion.structure import REFERENCE, holds_reference
from jax_cocktail.recursion.task import Numbering

NAMED_AXIS = "NamedAxisEffect"
Place = tuple[int, int]  # (function, argument)


def endless(bodies: Sequence[Any]) -> bool:
    """True if no call of the first function ever returns. `bodies`: jaxprs with references."""
    open_ended = set(range(len(bodies)))
    while True:
        ended = {k for k in open_ended if not _always_calls(bodies[k], open_ended)}
        if not ended:
            return 0 in open_ended
        open_ended -= ended


def _always_calls(jaxpr: Any, functions: set[int]) -> bool:
    return any(_calls(equation, functions) for equation in open_jaxpr(jaxpr).eqns)


def _calls(equation: Any, functions: set[int]) -> bool:
    name, params = equation.primitive.name, equation.params
    if name == REFERENCE:
        return params["function"] in functions
    if not holds_reference(equation):
        return False
    if name == "cond":
        return all(_always_calls(branch, functions) for branch in params["branches"])
    if name == "while":
        return _always_calls(params["cond_jaxpr"], functions)
    if name == "scan" and not params["length"]:
        return False
    return any(_always_calls(body, functions) for body in nested_jaxprs(equation))


def numberings(jaxpr: Any) -> Iterator[Numbering]:
    """The numberings of the references in a jaxpr. Those in a user's body have none."""
    for equation in open_jaxpr(jaxpr).eqns:
        if equation.primitive.name == REFERENCE:
            yield equation.params["numbering"]
        else:
            for inner in nested_jaxprs(equation):
                yield from numberings(inner)


def invariants(bodies: Sequence[Any]) -> list[list[int | None]]:
    """For each argument of each function, the argument of the first function that it always equals, or None.

    `bodies`: jaxprs of (token, *arguments) whose references pass all arguments.
    """
    counts = [len(open_jaxpr(body).invars) - 1 for body in bodies]
    unknown = -1
    found: list[list[int | None]] = [[unknown] * n for n in counts]
    found[0] = list(range(counts[0]))
    calls = [
        (caller, callee, sources)
        for caller, body in enumerate(bodies)
        for callee, sources in _references(body, {v: k for k, v in enumerate(open_jaxpr(body).invars[1:])})
    ]
    changed = True
    while changed:
        changed = False
        for caller, callee, sources in calls:
            for k, source in enumerate(sources):
                passed = None if source is None else found[caller][source]
                if passed == unknown or found[callee][k] == passed or found[callee][k] is None:
                    continue
                found[callee][k] = passed if found[callee][k] == unknown else None
                changed = True
    return [[None if k == unknown else k for k in function] for function in found]


def _references(jaxpr: Any, arguments: Mapping[Any, int]) -> Iterator[tuple[int, list[int | None]]]:
    """For each reference at any depth: (function, the caller's argument passed in each position or None)."""
    for equation in open_jaxpr(jaxpr).eqns:
        passed = [None if isinstance(a, jex.Literal) else arguments.get(a) for a in equation.invars]
        if equation.primitive.name == REFERENCE:
            yield equation.params["function"], passed[1:]
        elif holds_reference(equation):
            for body, operands in _bodies(equation, passed):
                inner = zip(open_jaxpr(body).invars, operands, strict=False)
                yield from _references(body, {v: k for v, k in inner if k is not None})


def _bodies(equation: Any, passed: list[int | None]) -> Iterator[tuple[Any, list[int | None]]]:
    """The jaxprs of an equation, each with the arguments that its first parameters equal."""
    name, params = equation.primitive.name, equation.params
    if name == "cond":
        for branch in params["branches"]:
            yield branch, passed[1:]
    elif name == "while":
        first, second = params["cond_nconsts"], params["body_nconsts"]
        yield params["cond_jaxpr"], passed[:first]
        yield params["body_jaxpr"], passed[first : first + second]
    elif name == "scan":
        yield params["jaxpr"], passed[: scan_counts(params)[0]]
    else:
        for body in nested_jaxprs(equation):
            same = len(open_jaxpr(body).invars) == len(passed)
            yield body, passed if same else []


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
