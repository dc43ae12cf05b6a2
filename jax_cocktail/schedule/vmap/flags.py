"""Brings loops that carry a flag per batch element into the form that `jax.vmap` gives to loops.

    loop until no predicate(carries):              loop until no predicate(carries):
        next = step(carries)                           active = predicate(carries)
        carries = select(flag, next, carries)  ->      next = step(carries)
        flag = flag and predicate(next)                carries = select(active, next, carries)

Equinox, hence Diffrax, writes the select itself, by a flag. That the flag is the predicate is proven by
induction: it is so before the first trip, and behind each trip that an element takes. Then `lockstep` can
prove that batch elements are independent of each other. Where what makes the first flag is out of sight, the
loop asks the flag in the place of the predicate. It may then end sooner, with elements that no trip changes,
so nobody may read what it carries for all elements, such as a counter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jax_cocktail.schedule.simplify.dead_code import remove_dead_code
from jax_cocktail.schedule.vmap.cut import is_of_elements
from jax_cocktail.schedule.vmap.lockstep import spread
from jax_cocktail.schedule.vmap.scopes import Scopes
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.copies import applied
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    definitions,
    is_a,
    used_in,
)
from jax_cocktail.utask.operators import ELEMENTWISE
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues, with_reads
from jax_cocktail.utask.types import Value

Made = Mapping[Value, UOperator]


def without_flags(program: UProgram) -> UProgram:
    """Returns its argument if no loop has such a flag."""
    return map_regions(program, _Flags(FreshValues(program)).region)


class _Flags(Scopes):
    def __init__(self, fresh: FreshValues) -> None:
        super().__init__()
        self.fresh = fresh
        self.read: set[Value] = set()  # values that the region at hand reads

    def region(self, region: Region) -> Region:
        outer, self.read = self.read, used_in(region)
        with self.entered(region):
            region = map_body(region, self._statement)
        self.read = outer
        return region

    def _statement(self, statement: Statement) -> Statement | Sequence[Statement]:
        statement = map_regions(statement, self.region)
        if not isinstance(statement, LoopUTask) or statement.condition is None:
            return statement
        flags = (_flag(statement, k) for k in range(len(statement.carried)))
        found = next((flag for flag in flags if flag is not None), None)
        if found is None or not found.is_kept():
            return statement
        if found.is_so_first(self.made):
            return found.removed(self.fresh)
        scalars = {v for v in statement.outputs if v.type.is_scalar}
        return statement if scalars & self.read else found.asked(self.fresh)


@dataclass(frozen=True, slots=True)
class _Flag:
    """Carry `number` of a loop: a flag that each trip combines with `after` by "and", and by which the trip
    selects all other carries, but for scalars. `following`: the next carries where it is true; `predicate`:
    what the loop's condition reduces."""

    loop: LoopUTask
    number: int
    after: Value
    following: tuple[Value, ...]
    predicate: Value

    def is_so_first(self, around: Made) -> bool:
        """True if the flag is the predicate of the carries before the first trip. `around`: what makes values
        outside."""
        numbers = _Numbers(around)
        known = [numbers.of(v) for v in self.loop.initial]
        return self._tested(numbers, known) == known[self.number]

    def is_kept(self) -> bool:
        """True if the flag of an element that takes a trip is the predicate behind it."""
        numbers = _Numbers({})
        for i, carried in enumerate(self.loop.carried):
            numbers.known[carried] = numbers.number(("carry", i))
        numbers.statements(self.loop.body.body)
        known = [numbers.of(v) for v in self.following]
        return self._tested(numbers, known) == known[self.number]

    def _tested(self, numbers: _Numbers, known: Sequence[int]) -> int:
        """The number of the predicate of carries with these numbers."""
        assert self.loop.condition is not None
        numbers.known.update(zip(self.loop.tested, known, strict=True))
        numbers.statements(self.loop.condition.body)
        return numbers.of(self.predicate)

    def removed(self, fresh: FreshValues) -> LoopUTask:
        """The loop with the predicate in the place of the flag."""
        loop, flag = self.loop, self.loop.carried[self.number]
        assert loop.condition is not None
        condition = UProgram("", replace(loop.condition, results=(self.predicate,)))
        tests, (active,) = applied(remove_dead_code(condition).entry, loop.carried, fresh)
        build = Builder(fresh, loop.source)
        end = build.select(active, self.after, flag)
        body = [with_reads(s, {flag: active}) for s in loop.body.body]
        results = _with(loop.body.results, self.number, end)
        return replace(loop, body=Region(loop.body.parameters, (*tests, *body, *build.out), results))

    def asked(self, fresh: FreshValues) -> Sequence[Statement]:
        """The loop with the flag in the place of the predicate, and with no flag if there is no first trip.

        An element with a flag takes the first trip if there is one, and others as long as its predicate is
        true. What the predicate of another one asks for changes nothing.
        """
        loop, flag = self.loop, self.loop.carried[self.number]
        first, last = loop.initial[self.number], loop.outputs[self.number]
        assert loop.condition is not None
        out, (runs,) = applied(loop.condition, loop.initial, fresh)
        build = Builder(fresh, loop.source, out)
        runs = build.broadcast(runs, flag.type.shape, ())
        start, end = build.binary("and", first, runs), fresh.make(flag.type)
        closing = _closing(loop.condition)
        asked = loop.tested[self.number]
        tests = (replace(s, inputs=(asked,)) if s is closing else s for s in loop.condition.body)
        condition = remove_dead_code(UProgram("", replace(loop.condition, body=tuple(tests)))).entry
        inside = Builder(fresh, loop.source)
        results = _with(loop.body.results, self.number, inside.select(flag, self.after, flag))
        body = Region(loop.body.parameters, (*loop.body.body, *inside.out), results)
        initial, outputs = (_with(v, self.number, w) for v, w in ((loop.initial, start), (loop.outputs, end)))
        build.out.append(replace(loop, initial=initial, outputs=outputs, body=body, condition=condition))
        build.define((last,), "select", (runs, end, first))
        return build.out


def _with(values: Sequence[Value], number: int, value: Value) -> tuple[Value, ...]:
    """The values with another one at a position."""
    return (*values[:number], value, *values[number + 1 :])


def _flag(loop: LoopUTask, number: int) -> _Flag | None:
    """Carry `number` of a loop as a flag, if it may be one."""
    assert loop.condition is not None
    flag, made = loop.carried[number], definitions(loop.body)
    combined = made.get(loop.body.results[number])
    closing = _closing(loop.condition)
    if not is_a(combined, "and") or flag.type.dtype != "bool" or flag not in combined.inputs:
        return None
    if closing is None or closing.inputs[0].type != flag.type:
        return None
    after = combined.inputs[1] if combined.inputs[0] == flag else combined.inputs[0]
    following, places = list[Value](), dict[Value, tuple[int, ...]]()
    rows = zip(loop.carried, loop.tested, loop.body.results, strict=True)
    for carried, tested, result in rows:
        select = made.get(result)
        if carried == flag:
            following.append(after)
            places[tested] = tuple(range(flag.type.rank))
        elif is_a(select, "select") and select.inputs[2] == carried:
            root, axes = spread(select.inputs[0], made)
            if root != flag:
                return None
            following.append(select.inputs[1])
            places[tested] = axes
        elif carried.type.is_scalar:  # of all elements; the predicate does not look at it
            following.append(result)
        else:
            return None
    if not is_of_elements(closing.inputs[0], loop.condition, places):
        return None
    return _Flag(loop, number, after, tuple(following), closing.inputs[0])


def _closing(condition: Region) -> UOperator | None:
    """The reduction that asks whether any element's predicate is true, beside a bound of all elements."""
    made = definitions(condition)
    result = made.get(condition.results[0])
    found = (made.get(v) for v in result.inputs) if is_a(result, "and") else (result,)
    return next((s for s in found if is_a(s, "reduce") and s["op"] == "or"), None)


@dataclass(slots=True)
class _Numbers:
    """Value numbering, shapes aside: values with equal numbers are equal for each batch element, and a scalar
    has the number of its broadcasts. `around`: what makes values from outside."""

    around: Made
    known: dict[Value, int] = field(default_factory=dict)
    seen: dict[object, int] = field(default_factory=dict)

    def number(self, key: object) -> int:
        return self.seen.setdefault(key, len(self.seen))

    def of(self, value: Value) -> int:
        pending = [value]
        while pending:  # not by recursion: what is around may be long
            last = pending[-1]
            maker = None if last in self.known else self.around.get(last)
            missing = [v for v in maker.inputs if v not in self.known and v in self.around] if maker else []
            if missing:
                pending += missing
                continue
            pending.pop()
            if maker is not None:
                self._operator(maker)
            self.known.setdefault(last, self.number(("outer", last)))
        return self.known[value]

    def statements(self, body: Sequence[Statement]) -> None:
        """Numbers what they make. The results of nested loops and branches equal nothing else."""
        for statement in body:
            if isinstance(statement, UOperator):
                self._operator(statement)
            else:
                self.known.update((v, self.number(("made", v))) for v in statement.outputs)

    def _operator(self, operator: UOperator) -> None:
        operands = tuple(map(self.of, operator.inputs))
        if operator.kind == "broadcast" and operator.inputs[0].type.is_scalar:
            self.known[operator.output] = operands[0]
            return
        types: tuple[object, ...] = tuple(v.type for v in (*operator.inputs, *operator.outputs))
        if operator.kind in ELEMENTWISE:
            types = (operator.output.type.dtype,)
        key = (operator.kind, operands, types, operator.attributes)
        for i, value in enumerate(operator.outputs):
            distinct = (value,) if operator.facts.distinct else ()
            self.known[value] = self.number((key, i, distinct))
