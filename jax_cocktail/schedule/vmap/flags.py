"""Brings loops that carry a flag per batch element into the form that `jax.vmap` gives to loops.

    loop until no predicate(carries):              loop until no predicate(carries):
        next = step(carries)                           active = predicate(carries)
        carries = select(flag, next, carries)  ->      next = step(carries)
        flag = flag and predicate(next)                carries = select(active, next, carries)

Equinox, hence Diffrax, writes the select itself, by a flag. That the flag is the predicate is proven by
induction: it is so before the first trip, and behind each trip that an element takes. Then `lockstep` can
prove that batch elements are independent of each other.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.copies import applied
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram, definitions, is_a
from jax_cocktail.utask.operators import ELEMENTWISE
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues, with_reads
from jax_cocktail.utask.types import Value

Made = Mapping[Value, UOperator]


def without_flags(program: UProgram, fresh: FreshValues) -> UProgram:
    """Returns its argument if no loop has such a flag."""
    return map_regions(program, _Flags(fresh).region)


class _Flags:
    def __init__(self, fresh: FreshValues) -> None:
        self.fresh = fresh
        self.made: ChainMap[Value, UOperator] = ChainMap()  # operators in scope, by result

    def region(self, region: Region) -> Region:
        outer, self.made = self.made, self.made.new_child()
        self.made.update((v, s) for s in region.body if isinstance(s, UOperator) for v in s.outputs)
        region = map_body(region, self._statement)
        self.made = outer
        return region

    def _statement(self, statement: Statement) -> Statement:
        statement = map_regions(statement, self.region)
        if not isinstance(statement, LoopUTask) or statement.condition is None:
            return statement
        flags = (_flag(statement, k) for k in range(len(statement.carried)))
        found = next((flag for flag in flags if flag is not None), None)
        return statement if found is None or not found.is_proven(self.made) else found.removed(self.fresh)


@dataclass(frozen=True, slots=True)
class _Flag:
    """Carry `number` of a loop: a flag that each trip combines with `after` by "and", and by which the trip
    selects all other carries. `following`: the next carries where it is true; `predicate`: what the loop's
    condition reduces."""

    loop: LoopUTask
    number: int
    after: Value
    following: tuple[Value, ...]
    predicate: Value

    def is_proven(self, around: Made) -> bool:
        """True if the flag is the predicate of the carries, at the beginning of every trip. `around`: what
        makes values outside."""
        first, again = _Numbers(around), _Numbers({})
        starts = [first.of(v) for v in self.loop.initial]
        for i, carried in enumerate(self.loop.carried):
            again.known[carried] = again.number(("carry", i))
        again.statements(self.loop.body.body)
        ends = [again.of(v) for v in self.following]
        pairs = (first, starts), (again, ends)
        return all(self._tested(numbers, known) == known[self.number] for numbers, known in pairs)

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
        tests_of = tuple(s for s in loop.condition.body if loop.condition.results[0] not in s.outputs)
        condition = replace(loop.condition, body=tests_of, results=(self.predicate,))
        tests, (active,) = applied(condition, loop.carried, fresh)
        build = Builder(fresh, loop.source)
        end = build.select(active, self.after, flag)
        body = [with_reads(s, {flag: active}) for s in loop.body.body]
        results = (*loop.body.results[: self.number], end, *loop.body.results[self.number + 1 :])
        return replace(loop, body=Region(loop.body.parameters, (*tests, *body, *build.out), results))


def _flag(loop: LoopUTask, number: int) -> _Flag | None:
    """Carry `number` of a loop as a flag, if it may be one."""
    assert loop.condition is not None
    flag, made = loop.carried[number], definitions(loop.body)
    combined = made.get(loop.body.results[number])
    closing = definitions(loop.condition).get(loop.condition.results[0])
    if not is_a(combined, "and") or flag.type.dtype != "bool" or flag not in combined.inputs:
        return None
    if not is_a(closing, "reduce") or closing["op"] != "or" or closing.inputs[0].type != flag.type:
        return None
    if not _is_of_elements(closing.inputs[0], loop.condition):
        return None
    after = combined.inputs[1] if combined.inputs[0] == flag else combined.inputs[0]
    following = list[Value]()
    for carried, result in zip(loop.carried, loop.body.results, strict=True):
        select = made.get(result)
        if carried == flag:
            following.append(after)
        elif is_a(select, "select") and select.inputs[2] == carried and _spread(select, made) == flag:
            following.append(select.inputs[1])
        else:
            return None
    return _Flag(loop, number, after, tuple(following), closing.inputs[0])


def _spread(select: UOperator, made: Mapping[Value, Statement]) -> Value:
    """The value that the predicate of a select is a broadcast of. One of the same shape keeps its axes."""
    maker = made.get(select.inputs[0])
    if not is_a(maker, "broadcast"):
        return select.inputs[0]
    moved = maker.ints("dimensions") != tuple(range(maker.inputs[0].type.rank))
    same = maker.inputs[0].type.shape == maker.output.type.shape
    return select.inputs[0] if moved and same else maker.inputs[0]


def _is_of_elements(value: Value, condition: Region) -> bool:
    """True if a value of a condition is, for each batch element, a function of that element's carries."""
    made, pending, seen = definitions(condition), [value], set[Value]()
    while pending:
        last = pending.pop()
        if last in seen or last not in made:  # a parameter, or the same in all trips
            seen.add(last)
            continue
        seen.add(last)
        maker = made[last]
        if not isinstance(maker, UOperator):
            return False
        spreads = maker.kind == "broadcast" and maker.inputs[0].type.is_scalar
        if maker.kind not in ELEMENTWISE and maker.kind != "constant" and not spreads:
            return False
        pending += maker.inputs
    shapes = {v.type.shape for v in seen if not v.type.is_scalar}
    return shapes <= {value.type.shape}


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
