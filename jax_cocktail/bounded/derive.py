"""Derivatives of a loop, each a loop again.

| loop | does | reads |
|---|---|---|
| `taped` | the trips, and keeps the carries at the begin of each | what the loop reads |
| `pushed` | the trips and their tangents together | what the loop reads, and its tangents |
| `tangent` | the tangents of the trips | the tape, constants and rows |
| `pulled` | the cotangents of the trips, the last trip first | the tape, constants and rows |

Only the carries that a derivative of the body reads are kept. Inside of a trip its derivative is JAX's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.extend.core as jex
from jax import lax

from jax_cocktail.bounded.loop import Key, Loop, Origin
from jax_cocktail.primitives.jaxprs import constants, open_jaxpr
from jax_cocktail.recursion.task import NUMBER, Aval, is_float, once, split

T = TypeVar("T")
Flags = tuple[bool, ...]


class Active(NamedTuple):
    """Flags for what has a tangent: constants, carries, rows, and the rows that the loop makes."""

    constants: Flags
    carried: Flags
    rows: Flags
    made: Flags


@dataclass(frozen=True, slots=True)
class Derived:
    """A loop made from another one, with the origins of its operands and results."""

    loop: Loop
    operands: tuple[Key, ...]
    results: tuple[Key, ...]


def active_of(loop: Loop, flags: Sequence[bool]) -> Active:
    """Flags for all tangents if the flagged operands have one. A carry has one if a trip may give it one."""
    _, consts, carried, rows = map(tuple, loop.split(flags))
    while True:
        moved = _moved(loop.body, (*consts, *carried, *rows))
        following = tuple(a or b for a, b in zip(carried, moved, strict=False))
        if following == carried:
            return Active(consts, carried, rows, moved[len(carried) :])
        carried = following


def varying(loop: Loop, flags: Sequence[bool]) -> Flags:
    """Flags for the results that differ from one batch element to another, if the flagged operands do."""
    every = (True,) * len(loop.results)
    heads, consts, carried, rows = map(tuple, loop.split(flags))
    if loop.origin is not None or loop.condition is None or rows or loop.row_results:
        return every
    while (found := _moved(loop.body, (*consts, *carried), lambda _: True)) != carried:
        following = tuple(a or b for a, b in zip(carried, found, strict=True))
        if following == carried:
            break
        carried = following
    return every if _moved(loop.condition, (*heads, *carried), lambda _: True)[0] else (False, *carried)


def _moved(jaxpr: Any, flags: Sequence[bool], kind: Callable[[Any], bool] = is_float) -> Flags:
    """The results of a jaxpr that may depend on the flagged operands, as values of some kind do."""
    opened = open_jaxpr(jaxpr)
    moved = {v for v, flag in zip(opened.invars, flags, strict=True) if flag}
    for equation in opened.eqns:
        if any(v in moved for v in equation.invars if not isinstance(v, jex.Literal)):
            moved.update(v for v in equation.outvars if hasattr(v.aval, "dtype") and kind(v.aval))
    return tuple(not isinstance(v, jex.Literal) and v in moved for v in opened.outvars)


def _pruned(jaxpr: Any) -> tuple[Any, Flags]:
    """The jaxpr without equations that no result needs, and flags for the operands that one needs."""
    opened = open_jaxpr(jaxpr)
    needed = {v for v in opened.outvars if not isinstance(v, jex.Literal)}
    live = []
    for equation in reversed(opened.eqns):
        if equation.effects or not needed.isdisjoint(equation.outvars):
            needed.update(v for v in equation.invars if not isinstance(v, jex.Literal))
            live.append(equation)
    closed = jex.ClosedJaxpr(opened.replace(eqns=live[::-1]), list(constants(jaxpr)))
    return closed, tuple(v in needed for v in opened.invars)


def _only(values: Sequence[T], flags: Sequence[bool]) -> list[T]:
    return [x for x, flag in zip(values, flags, strict=True) if flag]


def _sorts(loop: Loop) -> tuple[tuple[Aval, ...], ...]:
    return loop.constants, loop.carried, loop.rows


def _keys(whose: str, sort: str, flags: Sequence[bool]) -> tuple[Key, ...]:
    return tuple((whose, sort, k) for k, flag in enumerate(flags) if flag)


# ---- one trip ----------------------------------------------------------------------------------------------


class _Trip:
    """The body of a loop as a function of what has a tangent."""

    def __init__(self, loop: Loop, active: Active) -> None:
        self.avals = (*loop.constants, *loop.carried, *loop.rows)
        self.flags = (*active.constants, *active.carried, *active.rows)
        self.moved = (*active.carried, *active.made)
        self.counts = sum(active.constants), sum(active.carried)
        self._run = jex.jaxpr_as_fun(loop.body)

    def function(self, operands: Sequence[Any]) -> tuple[Callable[..., list[Any]], list[Any]]:
        """From the operands with tangents to the results with tangents, and these operands."""

        def moving(*given: Any) -> list[Any]:
            own = iter(given)
            pairs = zip(operands, self.flags, strict=True)
            return list(self._run(*(next(own) if flag else x for x, flag in pairs)))

        return moving, _only(operands, self.flags)

    def push(self, operands: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """All results, and the tangents of those that have one."""
        moving, own = self.function(operands)
        found, moved = jax.jvp(moving, own, list(tangents))
        return found, _only(moved, self.moved)

    def pull(self, operands: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """The cotangents of the operands that have tangents."""
        moving, own = self.function(operands)
        _, pull = jax.vjp(lambda *given: _only(moving(*given), self.moved), *own)
        return list(pull(list(cotangents)))


# ---- loops -------------------------------------------------------------------------------------------------


@once
def saved(loop: Loop, active: Active) -> Flags:
    """Flags for the carries on the tape: those that a derivative of the body reads."""
    trip, own = _Trip(loop, active), len(loop.constants)
    inputs = len(trip.avals)
    kinds = _only(trip.avals, trip.flags), _only((*loop.carried, *loop.row_results), trip.moved)
    found = [False] * len(loop.carried)
    for run, moving in zip((lambda x, d: trip.push(x, d)[1], trip.pull), kinds, strict=True):
        traced = jax.make_jaxpr(lambda *v, run=run: run(v[:inputs], v[inputs:]))(*trip.avals, *moving)
        needed = _pruned(traced)[1][own : own + len(found)]
        found = [a or b for a, b in zip(found, needed, strict=True)]
    return tuple(found)


@once
def taped(loop: Loop, active: Active) -> Derived:
    """The loop that keeps its carries."""
    flags, start, run = saved(loop, active), len(loop.constants), jex.jaxpr_as_fun(loop.body)

    def body(*values: Any) -> list[Any]:
        return [*run(*values), *_only(values[start : start + len(flags)], flags)]

    traced = jax.make_jaxpr(body)(*loop.constants, *loop.carried, *loop.rows)
    tape = tuple(_only(loop.carried, flags))
    made = replace(
        loop,
        body=traced,
        row_results=(*loop.row_results, *tape),
        unread=loop.unread + len(tape) if loop.unread == len(loop.row_results) else len(tape),
        checkpoints=0,
        origin=None,
    )
    return Derived(made, loop.operand_keys, (*loop.result_keys, *_keys("", "saved", flags)))


@once
def pushed(loop: Loop, active: Active) -> Derived:
    """The loop that computes tangents beside the values."""
    trip = _Trip(loop, active)
    counts = len(loop.constants), trip.counts[0], len(loop.carried), trip.counts[1], len(loop.rows)
    kept = len(loop.carried), len(loop.row_results)

    def body(*values: Any) -> list[Any]:
        consts, dconsts, carry, dcarry, rows, drows = split(values, *counts)
        found, moved = trip.push((*consts, *carry, *rows), (*dconsts, *dcarry, *drows))
        return [*found[: kept[0]], *moved[: counts[3]], *found[kept[0] :], *moved[counts[3] :]]

    consts, carried, rows, made = (
        (*avals, *_only(avals, flags))
        for avals, flags in zip(
            (loop.constants, loop.carried, loop.rows, loop.row_results), active, strict=True
        )
    )
    condition, heads = loop.condition, len(loop.heads)
    if condition is not None:
        test = jex.jaxpr_as_fun(condition)
        condition = jax.make_jaxpr(lambda *v: test(*v[: heads + kept[0]]))(*loop.heads, *carried)
    groups = ("constant", "carry", "row", "out", "made")
    number = (loop.constants, loop.carried, loop.rows, loop.carried, loop.row_results)
    moving = (active.constants, active.carried, active.rows, active.carried, active.made)
    keys = [
        (*_keys("", g, [True] * len(avals)), *_keys("d", g, flags))
        for g, avals, flags in zip(groups, number, moving, strict=True)
    ]
    operands = (*_keys("", "head", [True] * heads), *keys[0], *keys[1], *keys[2])
    results = (("", "trips", 0), *keys[3], *keys[4])
    traced = jax.make_jaxpr(body)(*consts, *carried, *rows)
    found = replace(
        loop,
        condition=condition,
        body=traced,
        constants=consts,
        carried=carried,
        rows=rows,
        row_results=made,
        unread=0,
        origin=Origin(loop, active, operands, results, taped=False),
    )
    return Derived(found, operands, results)


@once
def tangent(loop: Loop, active: Active) -> Derived:
    """The loop of the tangents alone, as many trips as the taped loop took."""
    trip, flags = _Trip(loop, active), saved(loop, active)
    counts = len(loop.constants), trip.counts[0], trip.counts[1], len(loop.rows), sum(active.rows)

    def run(*values: Any) -> list[Any]:
        consts, dconsts, dcarry, rows, drows, carry = split(values, *counts)
        return trip.push((*consts, *carry, *rows), (*dconsts, *dcarry, *drows))[1]

    moving = [tuple(_only(a, f)) for a, f in zip(_sorts(loop), active, strict=False)]
    before = (*loop.constants, *moving[0], *moving[1], *loop.rows, *moving[2])
    operands = (
        ("", "count", 0),
        *_keys("", "constant", [True] * len(loop.constants)),
        *_keys("d", "constant", active.constants),
        *_keys("d", "carry", active.carried),
        *_keys("", "row", [True] * len(loop.rows)),
        *_keys("d", "row", active.rows),
        *_keys("", "saved", flags),
    )
    results = (("", "trips", 0), *_keys("d", "out", active.carried), *_keys("d", "made", active.made))
    found = Loop(
        name=loop.name,
        most=loop.most,
        condition=None,
        body=_on_tape(run, before, loop.carried, flags),
        heads=(NUMBER,),
        constants=(*loop.constants, *moving[0]),
        carried=moving[1],
        rows=(*loop.rows, *moving[2], *_only(loop.carried, flags)),
        row_results=tuple(_only(loop.row_results, active.made)),
        reverse=loop.reverse,
        origin=Origin(loop, active, operands, results, taped=True),
    )
    return Derived(found, operands, results)


@once
def pulled(loop: Loop, active: Active) -> Derived:
    """The loop of the cotangents, which runs the trips from the last one to the first.

    It carries the cotangents of carries and the sums of those of constants, and makes those of rows.
    """
    trip, flags = _Trip(loop, active), saved(loop, active)
    consts, cuts = len(loop.constants), trip.counts
    counts = consts, cuts[1], cuts[0], len(loop.rows), sum(active.made)

    def run(*values: Any) -> list[Any]:
        constant, after, sums, rows, made, carry = split(values, *counts)
        found = trip.pull((*constant, *carry, *rows), (*after, *made))
        terms, before, moved = split(found, *cuts)
        return [*before, *(a + b for a, b in zip(sums, terms, strict=True)), *moved]

    moving = [tuple(_only(a, f)) for a, f in zip(_sorts(loop), active, strict=False)]
    made = tuple(_only(loop.row_results, active.made))
    before = (*loop.constants, *moving[1], *moving[0], *loop.rows, *made)
    operands = (
        ("", "count", 0),
        *_keys("", "constant", [True] * consts),
        *_keys("c", "out", active.carried),
        *_keys("", "sum", active.constants),
        *_keys("", "row", [True] * len(loop.rows)),
        *_keys("c", "made", active.made),
        *_keys("", "saved", flags),
    )
    results = (
        ("", "trips", 0),
        *_keys("c", "carry", active.carried),
        *_keys("c", "constant", active.constants),
        *_keys("c", "row", active.rows),
    )
    found = Loop(
        name=loop.name,
        most=loop.most,
        condition=None,
        body=_on_tape(run, before, loop.carried, flags),
        heads=(NUMBER,),
        constants=loop.constants,
        carried=(*moving[1], *moving[0]),
        rows=(*loop.rows, *made, *_only(loop.carried, flags)),
        row_results=moving[2],
        reverse=not loop.reverse,
    )
    return Derived(found, operands, results)


def _on_tape(
    run: Callable[..., list[Any]], before: Sequence[Aval], carried: Sequence[Aval], flags: Sequence[bool]
) -> Any:
    """The jaxpr of a body that takes the carries of the tape alone. `run` takes all carries, as last ones."""
    full = jax.make_jaxpr(run)(*before, *carried)
    alive = jex.jaxpr_as_fun(_pruned(full)[0])

    def body(*values: Any) -> list[Any]:
        own = iter(values[len(before) :])
        pairs = zip(carried, flags, strict=True)
        # nothing reads the carries that are not on the tape
        others = (next(own) if flag else lax.empty(aval.shape, aval.dtype) for aval, flag in pairs)
        return list(alive(*values[: len(before)], *others))

    return jax.make_jaxpr(body)(*before, *_only(carried, flags))
