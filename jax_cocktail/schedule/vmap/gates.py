"""Splits a lock-step loop where an `any` over its batch elements settles.

    while any(active):                          while any(active) and any(young):
        x = step(x, any(young))                     x = step(x, true)
        young = young and ...          ->       while any(active):
                                                    x = step(x, false)

Equinox gates work by an `any` over the batch: Diffrax evaluates the first stage of a step for all elements
while one of them has not finished its first step. Such a gate ties the elements together, so that none could
run alone. But a flag that is false stays false, so the gate closes once and for good, mostly after a trip or
two. Nothing mixes the elements of the second loop. Both loops together do what the one did, to the last bit,
since no value changes. An `all` of flags that stay true settles in the same way.

Where threads run the elements, the first loop is apart, too. An element runs with an open gate until its own
flag is false, and then until it has had as many trips as the last element to get there:

    while any(active and young):                       each element for itself; k counts its trips
        x = step(x, true)
    n = max(k), or without end if any(young)           an element that is done while young stays so
    while any(active and k < n):
        x = step(x, true)
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jax_cocktail.device.tuning import MODEL
from jax_cocktail.schedule.simplify.peephole import splat
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.vmap.counts import Test, with_count
from jax_cocktail.schedule.vmap.cut import is_apart
from jax_cocktail.schedule.vmap.lockstep import element_loop
from jax_cocktail.schedule.vmap.scopes import Scopes
from jax_cocktail.schedule.vmap.truths import truths
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.copies import applied, copied
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram, is_a
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues, region_reads
from jax_cocktail.utask.types import Value


def without_gates(program: UProgram, together: bool) -> UProgram:
    """Returns its argument if no loop has a gate that settles, or if more mixes its elements. `together`: the
    trips with an open gate run in lock-step."""
    found = map_regions(program, _Splitter(FreshValues(program), together).region)
    return program if found is program else simplify(found)


@dataclass(frozen=True, slots=True)
class _Gates:
    """The values `outputs` of a body: all elements of carry `number` reduced. An element that is `settled`
    stays so, and the gates are `settled` if all elements are."""

    outputs: tuple[Value, ...]
    number: int
    settled: bool

    def unsettled(self, flags: Value, build: Builder) -> Value:
        return build.emit("not", (flags,), flags.type) if self.settled else flags

    def open(self, flags: Value, build: Builder) -> Value:
        """True if any element is not settled."""
        axes = tuple(range(flags.type.rank))
        return build.emit("reduce", (self.unsettled(flags, build),), "bool", axes=axes, op="or")


class _Splitter(Scopes):
    def __init__(self, fresh: FreshValues, together: bool) -> None:
        super().__init__()
        self.fresh, self.together = fresh, together

    def region(self, region: Region) -> Region:
        with self.entered(region):
            return map_body(region, self._statement)

    def _statement(self, statement: Statement) -> Statement | Sequence[Statement]:
        statement = map_regions(statement, self.region)
        if not isinstance(statement, LoopUTask):
            return statement
        elements = element_loop(statement)
        if elements is None or is_apart(statement, elements):
            return statement
        gates = _gates(statement, elements.predicate, self.made)
        if gates is None:
            return statement
        closed = self._with(statement, gates, gates.settled)
        after = element_loop(closed)
        if after is None or not is_apart(closed, after):
            return statement
        opened = self._with(statement, gates, not gates.settled)
        before = self._in_lock_step(opened, gates) if self.together else self._apart(opened, gates)
        loop = before[-1]
        assert isinstance(loop, LoopUTask)
        return *before, replace(closed, initial=loop.outputs[: len(closed.initial)])

    def _with(self, loop: LoopUTask, gates: _Gates, value: bool) -> LoopUTask:
        """The loop with a constant in the place of its gates."""
        build = Builder(self.fresh, loop.source)
        constant = build.constant(value, "bool")
        body = region_reads(loop.body, dict.fromkeys(gates.outputs, constant))
        return replace(loop, body=replace(body, body=(*build.out, *body.body)))

    def _in_lock_step(self, loop: LoopUTask, gates: _Gates) -> Sequence[Statement]:
        """The trips with open gates, all elements together."""
        assert loop.condition is not None
        condition, build = loop.condition, Builder(self.fresh, loop.source)
        tests, (runs,) = applied(condition, condition.parameters, self.fresh)
        both = build.binary("and", runs, gates.open(condition.parameters[gates.number], build))
        condition = Region(condition.parameters, (*tests, *build.out), (both,))
        loop = replace(loop, condition=condition, likely_trips=MODEL.settling_trips)
        return (copied(loop, {}, self.fresh),)

    def _apart(self, loop: LoopUTask, gates: _Gates) -> Sequence[Statement]:
        """The trips with open gates, element by element. The loop that is the last statement has one carry
        more."""
        elements = element_loop(loop)
        assert elements is not None
        build = Builder(self.fresh, loop.source)
        shape = elements.predicate.type.shape
        ones = build.broadcast(build.constant(1), shape, ())

        def run(start: Sequence[Value], test: Test, trips: int) -> LoopUTask:
            longer = with_count(loop, elements, test, ones, self.fresh)
            longer = replace(longer, initial=tuple(start), likely_trips=trips)
            return copied(longer, {}, self.fresh)

        start = (*loop.initial, build.broadcast(build.constant(0), shape, ()))
        first = run(start, lambda carries, b: gates.unsettled(carries[gates.number], b), MODEL.settling_trips)
        build.out.append(first)
        axes = tuple(range(len(shape)))
        most = build.emit("reduce", first.outputs[-1:], INDEX, axes=axes, op="max")
        endless = gates.open(first.outputs[gates.number], build)
        most = build.select(endless, build.constant(np.iinfo(np.int64).max), most)
        limit = build.broadcast(most, shape, ())
        second = run(first.outputs, lambda carries, b: b.compare("lt", carries[-1], limit), 1)
        return *build.out, second


def _gates(loop: LoopUTask, predicate: Value, around: Mapping[Value, UOperator]) -> _Gates | None:
    """The gates of a lock-step loop, if they settle, and together. `around`: what makes values outside."""
    inside = {v: s for s in loop.body.body if isinstance(s, UOperator) for v in s.outputs}
    made = ChainMap(inside, dict(around))
    found: dict[tuple[int, bool], list[Value]] = {}
    for value, operator in inside.items():
        if not is_a(operator, "reduce") or value.type.dtype != "bool":
            continue
        settled, (flags,) = operator["op"] == "and", operator.inputs
        if not settled and operator["op"] != "or":
            continue
        if flags.type != predicate.type or not value.type.is_scalar:
            continue
        root = _root(flags, made)
        if root in loop.carried:
            number = loop.carried.index(root)
            if truths(loop.body, {root: settled}, made).get(loop.body.results[number]) is settled:
                found.setdefault((number, settled), []).append(value)
    if len(found) != 1:
        return None
    (((number, settled), outputs),) = found.items()
    return _Gates(tuple(outputs), number, settled)


def _root(flags: Value, made: Mapping[Value, UOperator]) -> Value:
    """The value that these flags equal: `or` with false and `and` with true change nothing."""
    while is_a(operator := made.get(flags), "or", "and"):
        left, right = operator.inputs
        neutral = bytes([operator.kind == "and"])
        if neutral not in (splat(left, made), splat(right, made)):
            break
        flags = left if splat(right, made) == neutral else right
    return flags
