"""Proves lock-step loops: `jax.vmap` makes them of a while loop with a batched predicate.

Such a loop runs until no batch element's predicate is true, and a select keeps the carries of elements that
are done. The proof: the predicate by which the body selects is the one that the condition reduces. If no
operator mixes batch elements (`cut`), each of them is then independent of how long the others run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, is_a
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class ElementLoop:
    """A lock-step while loop.

    `predicate`: the value per batch element that `closing` reduces in the condition; `following`: the next
    carries of an active element; `axes`: for each carry, its axis for each axis of the predicate.
    """

    predicate: Value
    closing: UOperator
    following: tuple[Value, ...]
    axes: tuple[tuple[int, ...], ...]


def element_loop(loop: LoopUTask) -> ElementLoop | None:
    """The lock-step form of `loop`, or None if there is no proof of it."""
    condition = loop.condition
    if condition is None or not loop.initial:
        return None
    closing = _made_in(condition).get(condition.results[0])
    if not is_a(closing, "reduce") or closing["op"] != "or":
        return None
    (predicate,) = closing.inputs
    if closing["axes"] != tuple(range(predicate.type.rank)):
        return None
    made = _made_in(loop.body)
    following: list[Value] = []
    axes: list[tuple[int, ...]] = []
    roots: set[Value] = set()
    for carried, result in zip(loop.carried, loop.body.results, strict=True):
        select = made.get(result)
        if not is_a(select, "select") or select.inputs[2] != carried:
            return None
        root, places = spread(select.inputs[0], made)
        if root.type.shape != predicate.type.shape or any(
            result.type.shape[d] != n for d, n in zip(places, root.type.shape, strict=True)
        ):
            return None
        roots.add(root)
        following.append(select.inputs[1])
        axes.append(places)
    numbers = _Numbers()
    for i, (tested, carried) in enumerate(zip(condition.parameters, loop.carried, strict=True)):
        numbers.known[tested] = numbers.known[carried] = numbers.number(("carry", i))
    numbers.statements(condition.body)
    numbers.statements(loop.body.body)
    if {numbers.of(root) for root in roots} != {numbers.of(predicate)}:
        return None
    return ElementLoop(predicate, closing, tuple(following), tuple(axes))


def _made_in(region: Region) -> Mapping[Value, UOperator]:
    return {v: s for s in region.body if isinstance(s, UOperator) for v in s.outputs}


def spread(value: Value, made: Mapping[Value, Statement]) -> tuple[Value, tuple[int, ...]]:
    """The value that a predicate is a broadcast of, and the axis that each of its axes becomes."""
    operator = made.get(value)
    if is_a(operator, "broadcast"):
        return operator.inputs[0], operator.ints("dimensions")
    return value, tuple(range(value.type.rank))


@dataclass(slots=True)
class _Numbers:
    """Value numbering: values with equal numbers are equal. Nested uTasks are compared by structure."""

    known: dict[Value, int] = field(default_factory=dict)
    seen: dict[object, int] = field(default_factory=dict)
    depth: int = 0

    def number(self, key: object) -> int:
        return self.seen.setdefault(key, len(self.seen))

    def of(self, value: Value) -> int:
        """The number of a value; a value from outside gets a number of its own."""
        if value not in self.known:
            self.known[value] = self.number(("outer", value))
        return self.known[value]

    def statements(self, body: Sequence[Statement]) -> None:
        for statement in body:
            key = self._key(statement)
            for i, value in enumerate(statement.outputs):
                self.known[value] = self.number((key, i))

    def _key(self, statement: Statement) -> object:
        operands = tuple(map(self.of, statement.inputs))
        types = tuple(v.type for v in statement.outputs)
        if isinstance(statement, UOperator) and not statement.facts.distinct:
            return (statement.kind, operands, types, statement.attributes)
        if isinstance(statement, LoopUTask):
            regions = tuple(map(self._region, statement.regions))
            return ("loop", statement.trip_count, statement.parallel, operands, types, regions)
        if isinstance(statement, BranchUTask):
            return ("branch", operands, types, tuple(map(self._region, statement.branches)))
        return ("unlike any other", statement.outputs)

    def _region(self, region: Region) -> object:
        self.depth += 1
        for i, value in enumerate(region.parameters):
            self.known[value] = self.number(("parameter", self.depth, i, value.type))
        self.statements(region.body)
        self.depth -= 1
        return tuple(map(self.of, region.results))
