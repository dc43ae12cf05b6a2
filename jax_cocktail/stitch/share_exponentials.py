"""Computes the exponentials of a row once, for its softmax and for that of its logarithm.

    a = x - max(x, 1)                         a = x - max(x, 1)
    e = exp(a); s = sum(e, 1)         ->      e = exp(a); s = sum(e, 1)
    p = exp(a - log(s))                       p = e / s

That is the softmax of those who need its logarithm as well, as in entropies and divergences. No element of
`a` is positive, so no exponential overflows, and `s` is at least 1, or NaN. Then the two forms of `p` differ
in their rounding alone. The quotient has the smaller error, because the difference is rounded before its
exponential is taken. Long rows stay as they are: a core computes an exponential in the time in which it moves
one to memory and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from jax_cocktail.device.host import SERVER
from jax_cocktail.device.tuning import DivisionTuning
from jax_cocktail.schedule.simplify.dead_code import remove_dead_code
from jax_cocktail.schedule.simplify.peephole import splat
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import Region, Statement, UOperator, UProgram, is_a
from jax_cocktail.utask.layout import is_unit_change
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value

MOST_BYTES = SERVER.shared.near * DivisionTuning().kept  # of the exponentials of a row, which are kept
Definitions = Mapping[Value, UOperator]


def share_exponentials(program: UProgram) -> UProgram:
    """Returns its argument if nothing in it has this form. All of it must be in one region."""
    fresh = FreshValues(program)

    def region(old: Region) -> Region:
        made = {v: s for s in old.body if isinstance(s, UOperator) for v in s.outputs}

        def change(statement: Statement) -> Statement | list[Statement]:
            inner = map_regions(statement, region)
            return _change(inner, made, fresh) if isinstance(inner, UOperator) else inner

        return map_body(old, change)

    found = map_regions(program, region)
    return program if found is program else remove_dead_code(found)


def _change(statement: Statement, made: Definitions, fresh: FreshValues) -> Statement | list[Statement]:
    if not is_a(statement, "exp") or statement.output.type.dtype not in ("float32", "float64"):
        return statement
    difference = made.get(statement.inputs[0])
    if not is_a(difference, "sub"):
        return statement
    negative, logarithm = difference.inputs
    total = _sum_of(logarithm, made)
    if total is None:
        return statement
    exponentials, axes = total.inputs[0], total.ints("axes")
    exponential, shape = made.get(exponentials), exponentials.type.shape
    if not is_a(exponential, "exp") or exponential.inputs != (negative,):
        return statement
    if not _is_short_row(total) or not _has_no_positive(negative, axes, made):
        return statement
    b = Builder(fresh, statement.source)
    kept = [d for d in range(len(shape)) if d not in axes]
    b.define(statement.outputs, "div", (exponentials, b.broadcast(total.output, shape, kept)))
    return b.out


def _is_short_row(total: UOperator) -> bool:
    """True if the exponentials of a row lie side by side, and are few enough to be kept."""
    x, axes = total.inputs[0].type, total.ints("axes")
    length = prod(x.shape[d] for d in axes)
    return length == prod(x.shape[min(axes, default=0) :]) and x.nbytes * length <= MOST_BYTES * x.size


def _sum_of(logarithm: Value, made: Definitions) -> UOperator | None:
    """The sum whose logarithm every element of the row has."""
    value, places = _seen(logarithm, list(range(logarithm.type.rank)), made)
    maker = made.get(value)
    if not is_a(maker, "log"):
        return None
    return _reduction(maker.inputs[0], places, logarithm, "sum", made)


def _has_no_positive(value: Value, axes: Sequence[int], made: Definitions) -> bool:
    """True if the value is the difference of an array and of the largest elements of its rows."""
    maker = made.get(value)
    if not is_a(maker, "sub"):
        return False
    array, largest = maker.inputs
    found, places = _seen(largest, list(range(largest.type.rank)), made)
    above = made.get(found)
    if is_a(above, "max"):  # and of minus infinity, from which the maximum of an empty row begins
        least = np.array(-np.inf, array.type.dtype).tobytes()
        others = [x for x in above.inputs if splat(x, made) != least]
        found = others[0] if len(others) == 1 else found
    reduction = _reduction(found, places, largest, "max", made)
    return reduction is not None and reduction.inputs == (array,) and reduction.ints("axes") == tuple(axes)


def _reduction(value: Value, places: list[int], array: Value, op: str, made: Definitions) -> UOperator | None:
    """The reduction of an array of the same shape whose result each element of `array` sees at its own row.
    `places`: the axis of `array` that each axis of `value` is."""
    value, places = _seen(value, places, made)
    maker = made.get(value)
    if not is_a(maker, "reduce") or maker.text("op") != op:
        return None
    shape, axes = maker.inputs[0].type.shape, maker.ints("axes")
    kept = [d for d in range(len(shape)) if d not in axes]
    own = all(p == d for p, d, n in zip(places, kept, value.type.shape, strict=True) if n != 1)
    return maker if own and shape == array.type.shape else None


def _seen(value: Value, places: list[int], made: Definitions) -> tuple[Value, list[int]]:
    """Looks through broadcasts and unit axes. Returns the value behind, and the places of its axes."""
    while True:
        maker = made.get(value)
        if is_a(maker, "broadcast"):
            places = [places[d] for d in maker.ints("dimensions")]
        elif is_a(maker, "reshape") and is_unit_change(maker):
            rest = iter([p for p, n in zip(places, value.type.shape, strict=True) if n != 1])
            places = [next(rest) if n != 1 else -1 for n in maker.inputs[0].type.shape]
        else:
            return value, places
        value = maker.inputs[0]
