"""Simplification: removes redundancy from a program in the uTask IR (COCKTAILER, OSDI'23, section 3).

One forward walk rewrites operators (`peephole`), shares equal ones (lexically: a nested region may use values
of an enclosing one), and resolves loops and branches whose course is known; then `dead_code` removes unused
values. Both repeat until nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax_cocktail.schedule.simplify.dead_code import remove_dead_code
from jax_cocktail.schedule.simplify.floor_division import floor_division
from jax_cocktail.schedule.simplify.peephole import Outcome, peephole, splat
from jax_cocktail.schedule.simplify.unread_carries import unread_carries
from jax_cocktail.utask.ir import (
    Attributes,
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    is_a,
    once,
)
from jax_cocktail.utask.rewrite import map_regions, with_body
from jax_cocktail.utask.substitute import FreshValues, replaced, with_operands
from jax_cocktail.utask.types import TensorType, Value

_Key = tuple[str, tuple[Value, ...], tuple[TensorType, ...], Attributes]


def simplify(program: UProgram) -> UProgram:
    """An equal program without redundancy; `program` itself if there is none to remove."""
    entry = program.entry
    while (smaller := _smaller(entry)) is not None:
        entry = smaller
    return program if entry is program.entry else replace(program, entry=entry)


@once
def _smaller(entry: Region) -> Region | None:
    """A program's entry after one walk, None if nothing changes. Candidates and trials ask again."""
    program = UProgram("", entry)
    smaller = remove_dead_code(_Rewriter(program).run())
    return None if smaller == program else smaller.entry


class _Rewriter:
    """One forward walk. `_now` maps a value to its replacement; ids are unique, so it needs no scope.
    `_known`: the results of the operators in scope."""

    def __init__(self, program: UProgram) -> None:
        self._program = program
        self._fresh = FreshValues(program)
        self._now: dict[Value, Value] = {}
        self._definitions: dict[Value, UOperator] = {}
        self._known: dict[_Key, tuple[Value, ...]] = {}
        self._shared: set[Value] = set()  # arrays of which each trip of a parallel loop writes its own slice

    def run(self) -> UProgram:
        return map_regions(self._program, self._region)

    def _replace(self, values: Sequence[Value], others: Sequence[Value]) -> None:
        self._now.update(zip(values, replaced(others, self._now), strict=True))

    # -- regions -----------------------------------------------------------------------------------------
    def _region(self, region: Region) -> Region:
        body: list[Statement] = []
        outside = len(self._known)
        self._statements(region.body, body)
        while len(self._known) > outside:  # operators out of scope
            self._known.popitem()
        return with_body(region, body, replaced(region.results, self._now))

    def _statements(self, statements: Sequence[Statement], body: list[Statement]) -> None:
        for statement in statements:
            if isinstance(statement, UOperator):
                self._operator(statement, body)
            elif isinstance(statement, LoopUTask):
                self._loop(statement, body)
            elif isinstance(statement, BranchUTask):
                self._branch(statement, body)
            else:
                body.append(with_operands(statement, self._now))

    def _operator(self, operator: UOperator, body: list[Statement]) -> None:
        operator = with_operands(operator, self._now)
        if steps := floor_division(operator, self._definitions, self._fresh):
            self._statements(steps, body)
            return
        while (found := self._peephole(operator)) is not None:
            if isinstance(found, Value):
                self._replace(operator.outputs, (found,))
                return
            operator = found
        types = tuple(value.type for value in operator.outputs)
        key = (operator.kind, operator.inputs, types, operator.attributes)
        earlier = self._known.get(key)
        if earlier is not None:
            self._replace(operator.outputs, earlier)
            return
        if not operator.facts.distinct:  # two arrays that a loop fills must not share an initial array
            self._known[key] = operator.outputs
        for value in operator.outputs:
            self._definitions[value] = operator
        body.append(operator)

    def _peephole(self, operator: UOperator) -> Outcome:
        """The first rewrite that applies. The update of an own slice stays one, even of all of the array, as
        in the only trip of a loop."""
        if is_a(operator, "dynamic_update_slice") and operator.inputs[0] in self._shared:
            return None
        return peephole(operator, self._definitions)

    # -- loops -------------------------------------------------------------------------------------------
    def _loop(self, loop: LoopUTask, body: list[Statement]) -> None:
        if loop.trip_count == 0:
            self._replace(loop.outputs, loop.initial)
            return
        if loop.trip_count == 1 and not loop.parallel:
            self._run_once(loop, body)
            return
        loop = self._merge_equal(self._drop_invariant(with_operands(loop, self._now)))
        self._shared.update(loop.carried if loop.parallel else ())
        body.append(self._drop_unread(map_regions(loop, self._region), body))

    def _run_once(self, loop: LoopUTask, body: list[Statement]) -> None:
        assert loop.index is not None
        zero = self._fresh.make(loop.index.type)
        constant = UOperator("constant", (), (zero,), (("data", bytes(zero.type.nbytes)),), loop.source)
        self._operator(constant, body)
        self._replace(loop.body.parameters, (zero, *loop.initial))
        self._statements(loop.body.body, body)
        self._replace(loop.outputs, loop.body.results)

    def _drop_invariant(self, loop: LoopUTask) -> LoopUTask:
        """Carries that no iteration changes equal their initial value throughout."""
        kept = []
        rows = zip(loop.initial, loop.carried, loop.body.results, strict=True)
        for i, (initial, carried, result) in enumerate(rows):
            if self._now.get(result, result) not in (carried, initial):
                kept.append(i)
                continue
            for value in (carried, loop.outputs[i], loop.tested[i]):
                self._replace((value,), (initial,))
        return loop.keep(kept)

    def _drop_unread(self, loop: LoopUTask, body: list[Statement]) -> LoopUTask:
        """An array that no trip reads needs no initial value, and no carry if all trips give the same."""
        inside = {value for s in loop.body.body for value in s.outputs}.union(loop.body.parameters)
        initial, dropped = list(loop.initial), set[int]()
        for k, result in unread_carries(loop).items():
            type_ = result.type
            if result not in inside:
                dropped.add(k)
                self._replace((loop.outputs[k],), (result,))
            elif not type_.is_scalar and not is_a(self._definitions.get(loop.initial[k]), "empty"):
                initial[k] = self._fresh.make(type_)
                self._operator(UOperator("empty", (), (initial[k],), (), loop.source), body)
        if dropped or initial != list(loop.initial):
            loop = replace(loop, initial=tuple(initial))
        return loop.keep([k for k in range(len(initial)) if k not in dropped])

    def _merge_equal(self, loop: LoopUTask) -> LoopUTask:
        """Carries with equal initial and next values become one."""
        leaders = _equal_carries(loop)
        kept = [i for i, leader in enumerate(leaders) if i == leader]
        for i, leader in enumerate(leaders):
            if i != leader:
                for values in (loop.carried, loop.outputs, loop.tested):
                    self._replace((values[i],), (values[leader],))
        return loop.keep(kept)

    # -- branches ----------------------------------------------------------------------------------------
    def _branch(self, branch: BranchUTask, body: list[Statement]) -> None:
        branch = with_operands(branch, self._now)
        chosen = splat(branch.selector, self._definitions)
        if chosen is not None or len(branch.branches) == 1:
            number = int.from_bytes(chosen or b"", "little", signed=True)
            region = branch.branches[min(max(number, 0), len(branch.branches) - 1)]
            self._statements(region.body, body)
            self._replace(branch.outputs, region.results)
            return
        branch = map_regions(branch, self._region)
        kept: dict[tuple[Value, ...], int] = {}
        for i, output in enumerate(branch.outputs):
            results = tuple(region.results[i] for region in branch.branches)
            if len(set(results)) == 1:  # a value common to all branches is from outside
                self._replace((output,), results[:1])
            elif results in kept:
                self._replace((output,), (branch.outputs[kept[results]],))
            else:
                kept[results] = i
        body.append(branch.keep(list(kept.values())))


def _equal_carries(loop: LoopUTask) -> list[int]:
    """For every carry the first one that always equals it.

    Partition refinement: carries with the same initial value are assumed equal, the body is numbered under
    that assumption, and classes with different next values are split, until no class splits.
    """
    leaders = _leaders(loop.initial)
    if leaders == list(range(len(leaders))):
        return leaders
    while True:
        carried = loop.carried
        numbers: dict[Value, object] = {
            value: carried[leader] for value, leader in zip(carried, leaders, strict=True)
        }
        _number(loop.body.body, numbers)
        following = [numbers.get(value, value) for value in loop.body.results]
        finer = _leaders(list(zip(leaders, following, strict=True)))
        if finer == leaders:
            return leaders
        leaders = finer


def _leaders(keys: Sequence[object]) -> list[int]:
    """For every key the index of the first one that equals it."""
    first: dict[object, int] = {}
    return [first.setdefault(key, i) for i, key in enumerate(keys)]


def _number(statements: Sequence[Statement], numbers: dict[Value, object]) -> None:
    """Gives equal values of one region equal numbers; each nested uTask differs from all others."""
    seen: dict[object, Value] = {}
    for statement in statements:
        if not isinstance(statement, UOperator) or statement.facts.distinct:
            continue
        operands = tuple(numbers.get(value, value) for value in statement.inputs)
        types = tuple(value.type for value in statement.outputs)
        key = (statement.kind, operands, types, statement.attributes)
        for position, value in enumerate(statement.outputs):
            numbers[value] = seen.setdefault((key, position), value)
