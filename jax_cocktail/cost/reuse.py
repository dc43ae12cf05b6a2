"""The data that a loop touches again in every trip, and the cache that this needs.

An independent axis may be cut into more parts than there are units: a part whose values stay in a core's
cache runs all trips of its loop there, while a larger one streams them from further out in every trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax_cocktail.analysis.axes import rule
from jax_cocktail.cost.work import runs, work
from jax_cocktail.device.host import Cache
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator
from jax_cocktail.utask.operators import FREE, PRODUCTS
from jax_cocktail.utask.rewrite import Inside, fold
from jax_cocktail.utask.types import Value

_Pass = tuple[int, tuple[int, ...]]  # its number, and the axes that it reduces
_MOVES_NOTHING = FREE | {"dynamic_update_slice"}


def streaming_seconds(
    statements: Sequence[Statement], axes: Mapping[Value, int], parts: int, units: int, cache: Cache
) -> float:
    """Seconds that all parts together take to fetch the data that their loops use again."""

    def each(statement: Statement, inside: Inside[float]) -> float:
        nested = sum(map(sum, inside))
        if not isinstance(statement, LoopUTask):
            return nested
        size = sum(value.type.nbytes / (parts if value in axes else 1) for value in _touched(statement.body))
        return runs(statement) * (parts * cache.seconds(size, units) + nested)

    return sum(fold(statement, each) for statement in statements)


def repeated_seconds(
    statement: Statement, axes: Mapping[Value, int], parts: int, rates: tuple[float, float], cache: Cache
) -> float:
    """Seconds of the longest of so many parts. What is not divided is done by each unit, whole. A product
    takes the time of its arithmetic, or of its operands if that is longer: they come from beyond a core's
    cache.

    `rates`: flops per second of products of few rows, and of the rest.
    """
    products, others = rates

    def each(inner: Statement, inside: Inside[float]) -> float:
        nested = sum(map(sum, inside))
        if isinstance(inner, LoopUTask):
            return nested * runs(inner)
        if isinstance(inner, BranchUTask):
            return nested / len(inner.branches)
        if not isinstance(inner, UOperator):
            return nested
        cut = [axes.get(value) for value in inner.outputs]
        tie = rule(inner).along(cut) if any(axis is not None for axis in cut) else None
        flops = work(inner).flops / (1 if tie is None else parts)
        if inner.kind != "dot":
            return flops / (products if inner.kind in PRODUCTS else others)
        shares = tie.inputs if tie is not None else (None,) * len(inner.inputs)
        read = sum(
            v.type.nbytes
            / (1 if axis is None else parts)
            / (cache.far_rate if v.type.nbytes <= cache.far else cache.memory_rate)
            for v, axis in zip(inner.inputs, shares, strict=True)
        )
        return max(flops / products, read)

    return fold(statement, each)


def reused_bytes(statements: Sequence[Statement], axes: Mapping[Value, int]) -> float:
    """Bytes of the divided arrays that these statements touch in more than one pass. 0 if there is more among
    them than plain operators: products and nested uTasks read more than what is divided.

    A pass is what needs no whole row before: element operators, reductions along the same axes. What reads
    a result of a reduction is in the next pass."""
    passes: dict[Value, set[_Pass]] = {}
    ready: dict[Value, int] = {}  # the first pass that can read a value
    views: set[Value] = set()
    for position, statement in enumerate(statements):
        if not isinstance(statement, UOperator) or statement.kind in PRODUCTS:
            return 0.0
        number = max((ready.get(v, 0) for v in statement.inputs), default=0)
        ready.update(dict.fromkeys(statement.outputs, number + (not statement.is_element)))
        if statement.kind in _MOVES_NOTHING:
            views.update(statement.outputs)
            continue
        tie = rule(statement).along([axes.get(v) for v in statement.outputs])
        tied = tie.inputs if tie is not None else (None,) * len(statement.inputs)
        read = (v for v, axis in zip(statement.inputs, tied, strict=True) if axis is not None)
        for value in (*read, *statement.outputs):
            passes.setdefault(value, set()).add((number, _along(statement, position)))
    return float(sum(v.type.nbytes for v, found in passes.items() if v not in views and _several(found)))


def _along(operator: UOperator, position: int) -> tuple[int, ...]:
    """Equal for operators that may share a pass; () if the operator joins any."""
    if operator.kind == "reduce":
        return operator.ints("axes")
    return () if operator.is_element else (-1, position)


def _several(passes: set[_Pass]) -> bool:
    """True if there are two, apart from operators that join the other one."""
    return len({number for number, _ in passes}) > 1 or sum(along != () for _, along in passes) > 1


def _touched(body: Region) -> dict[Value, None]:
    """Arrays that the operators of a body read or write themselves; views move nothing."""
    found: dict[Value, None] = {}
    for statement in body.body:
        if isinstance(statement, UOperator) and statement.kind not in _MOVES_NOTHING:
            found.update(dict.fromkeys((*statement.inputs, *statement.outputs)))
    return found
