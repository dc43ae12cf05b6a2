"""Counts the trips of each batch element of a lock-step loop, in the place of those of all.

    while any(active) and k < n:                 while any(active and k < n):
        x = select(active, step(x), x)     ->        x = select(active and k < n, step(x), x)
        k = k + 1                                    k = select(active and k < n, k + 1, k)

Equinox bounds a loop by one counter of all elements (`max_steps` of Diffrax). An element that is active was
so in all trips before, so that its own number of trips is the counter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jax_cocktail.schedule.simplify.trip_counts import Counter, counters_of
from jax_cocktail.schedule.vmap.cut import is_of_elements
from jax_cocktail.schedule.vmap.lockstep import ElementLoop, element_loop
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.copies import applied
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UProgram, definitions, is_a, reads, used_in
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value

Test = Callable[[Sequence[Value], Builder], Value]  # of the carries, for each batch element


def without_bounds(program: UProgram) -> UProgram:
    """Returns its argument if no loop is bounded by a counter of all its batch elements."""
    fresh, made = FreshValues(program), dict[Value, Statement]()

    def region(region: Region) -> Region:
        made.update(definitions(region))
        needed = used_in(region)
        return map_body(region, lambda s: statement(s, needed))

    def statement(statement: Statement, needed: set[Value]) -> Statement | Sequence[Statement]:
        statement = map_regions(statement, region)
        if not isinstance(statement, LoopUTask) or statement.condition is None:
            return statement
        for counter in counters_of(statement, made):
            if statement.outputs[counter.position] not in needed:
                bound = _bound(statement, counter)
                if bound is not None:
                    return bound.removed(fresh)
        return statement

    return map_regions(program, region)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A loop without its `counter`, the lock-step form of what is `left`, and how it was."""

    loop: LoopUTask
    elements: ElementLoop
    counter: Counter
    was: LoopUTask

    def removed(self, fresh: FreshValues) -> Sequence[Statement]:
        """The loop with a counter of each element."""
        counter, shape = self.counter, self.elements.predicate.type.shape
        build = Builder(fresh, self.loop.source)
        first = self.was.initial[counter.position]
        start = build.broadcast(first, shape, ())
        step = build.full(counter.step, first.type.dtype, shape)

        def test(carries: Sequence[Value], b: Builder) -> Value:
            return b.compare(counter.test, carries[-1], b.broadcast(counter.bound, shape, ()))

        loop = with_count(self.loop, self.elements, test, step, fresh)
        return *build.out, replace(loop, initial=(*self.loop.initial, start))


def _bound(loop: LoopUTask, counter: Counter) -> _Bound | None:
    """The loop without a counter that it has for nothing but its bound; None if it has another use."""
    assert loop.condition is not None
    condition, position = loop.condition, counter.position
    made, (result,) = definitions(condition), condition.results
    both = made.get(result)
    if not is_a(both, "and"):
        return None
    for other, mine in (both.inputs, both.inputs[::-1]):
        compare = made.get(mine)
        tests = tuple(s for s in condition.body if s not in (compare, both))
        if compare is None or condition.parameters[position] not in compare.inputs or other not in made:
            continue
        tested = {v for s in tests for v in reads(s)}
        moved = loop.body.results[position]
        others = [s for s in loop.body.body if moved not in s.outputs]
        read = {v for s in others for v in reads(s)}.union(loop.body.results[:position])
        read = read.union(loop.body.results[position + 1 :])
        if condition.parameters[position] in tested or not read.isdisjoint((loop.carried[position], moved)):
            continue
        rest = replace(loop, condition=Region(condition.parameters, tests, (other,)))
        rest = replace(rest, body=replace(rest.body, body=tuple(others)), stops_by=None)
        rest = rest.keep([k for k in range(len(loop.initial)) if k != position])
        elements = element_loop(rest)
        if elements is None:
            continue
        places = dict(zip(rest.tested, elements.axes, strict=True))
        assert rest.condition is not None
        if is_of_elements(elements.predicate, rest.condition, places):  # else one may begin after others
            return _Bound(rest, elements, counter, loop)
    return None


def with_count(
    loop: LoopUTask, elements: ElementLoop, test: Test, ones: Value, fresh: FreshValues
) -> LoopUTask:
    """The loop with one more carry, the number of trips of each element, but without an initial value for it.
    An element runs only while it passes a `test` of all carries as well."""
    assert loop.condition is not None
    tested, carried = (*loop.tested, fresh.make(ones.type)), (*loop.carried, fresh.make(ones.type))
    build = Builder(fresh, loop.source)
    active = build.binary("and", elements.predicate, test(tested, build))
    tests = (*(s for s in loop.condition.body if s != elements.closing), *build.out)
    closing = replace(elements.closing, inputs=(active,))
    condition = Region(tested, (*tests, closing), loop.condition.results)
    copies, (active,) = applied(Region(tested, tests, (active,)), carried, fresh)
    build = Builder(fresh, loop.source)
    following = (*elements.following, build.binary("add", carried[-1], ones))
    places = (*elements.axes, tuple(range(ones.type.rank)))
    results = tuple(
        build.select(build.broadcast(active, old.type.shape, axes), new, old)
        for new, old, axes in zip(following, carried, places, strict=True)
    )
    body = Region(carried, (*copies, *loop.body.body, *build.out), results)
    outputs = (*loop.outputs, fresh.make(ones.type))
    return replace(loop, initial=outputs, outputs=outputs, body=body, condition=condition)
