"""Derives block barriers, among the threads of a unit, between lane loops (AStitch's Regional scheme).

    lane loop: write x; lane loop: read x     ->     lane loop: write x; block_barrier; lane loop: read x

If a unit is a block of threads, every thread runs the whole text and a share of every lane loop. A lane loop
may read the results of another one only after a block barrier. It is inserted as late as possible: before the
first statement in conflict with a touch since the last one. A barrier between units includes a block barrier.
Every thread computes scalars for itself, so they need none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from jax_cocktail.errors import VerificationError
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
)
from jax_cocktail.utask.operators import BLOCK_SCRATCH, ELEMENTWISE, NO_RESULTS
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.types import ITEM_SIZE, Value

ROUNDS = 8  # over a loop body, until the touches that cross its back edge no longer change
_BLOCK_BARRIER = UOperator("block_barrier", (), ())


@dataclass(frozen=True, slots=True)
class Touch:
    """Bytes `begin` to `end` of a memory space. `lanes`: with equal `lanes`, the same thread touches each
    element of the same bytes; 0: unknown."""

    space: str
    begin: int
    end: int
    write: bool
    lanes: int = 0

    def conflicts(self, other: Touch) -> bool:
        if not (self.write or other.write) or self.space != other.space:
            return False
        if self.end <= other.begin or other.end <= self.begin:
            return False
        same = self.lanes == other.lanes and (self.lanes == ONE or self.begin == other.begin)
        return not (self.lanes and same)


ONE = 1  # `lanes` of a touch by the first thread alone
State = frozenset[Touch]  # touches since the last block barrier
NOTHING: State = frozenset()
SCRATCH = Touch("scratch", 0, 1, True)
TAGS = Touch("tags", 0, 1, True)  # all threads receive a step before any of them sends the next


def insert_block_barriers(program: UProgram, plan: MemoryPlan) -> UProgram:
    """Inserts `block_barrier`. Expects a planned program that has its barriers between units."""
    deriver = _Deriver(plan)
    entry, _ = deriver.region(program.entry, NOTHING, deriver.results(program.entry.results))
    return program if entry is program.entry else replace(program, entry=entry)


class _Deriver:
    def __init__(self, plan: MemoryPlan) -> None:
        self.plan = plan

    def region(self, region: Region, state: State, tail: Iterable[Touch]) -> tuple[Region, State]:
        """The region with its block barriers, and the touches open after it. `tail`: copies at its end."""
        body: list[Statement] = []
        for statement in region.body:
            if isinstance(statement, UOperator) and statement.kind in NO_RESULTS:
                state = (
                    state if statement.kind == "arrive" else NOTHING
                )  # for a lone unit, a wait is a block barrier
                body.append(statement)
                continue
            touches = frozenset(self.touches(statement))
            if _conflict(state, touches):
                body.append(_BLOCK_BARRIER)
                state = NOTHING
            if isinstance(statement, LoopUTask | BranchUTask):
                statement, state = self._nested(statement, state | touches)
            else:
                state |= touches
            body.append(statement)
        last = frozenset(tail)
        if _conflict(state, last):
            body.append(_BLOCK_BARRIER)
            state = NOTHING
        same = len(body) == len(region.body) and all(a is b for a, b in zip(body, region.body, strict=True))
        return region if same else replace(region, body=tuple(body)), state | last

    def _nested(self, statement: LoopUTask | BranchUTask, state: State) -> tuple[Statement, State]:
        if isinstance(statement, LoopUTask):
            return self._loop(statement, state)
        branches: list[Region] = []
        left: State = NOTHING
        for region in statement.branches:
            after, out = self.region(region, state, self.transfer(region.results, statement.outputs))
            branches.append(after)
            left |= out
        same = all(a is b for a, b in zip(branches, statement.branches, strict=True))
        return statement if same else replace(statement, branches=tuple(branches)), left

    def _loop(self, loop: LoopUTask, state: State) -> tuple[Statement, State]:
        """Walks the loop until the touches on its back edge settle."""
        tail = tuple(self.transfer(loop.body.results, loop.carried))
        around: State = NOTHING
        for _ in range(ROUNDS):
            condition, middle = loop.condition, state | around
            if condition is not None:
                condition, middle = self.region(condition, middle, ())
            body, out = self.region(loop.body, middle, tail)
            if out <= around:
                break
            around |= out
        else:
            raise VerificationError(
                f"what crosses the back edge of a loop at {loop.source} does not settle in {ROUNDS} rounds;"
                " a fault of the pass that inserts block barriers, report it with the program"
            )
        left = state | (middle if loop.condition is not None else out)
        same = condition is loop.condition and body is loop.body
        return loop if same else replace(loop, condition=condition, body=body), left

    # -- touches -----------------------------------------------------------------------------------------
    def touches(self, statement: Statement) -> Iterator[Touch]:
        """The touches of a statement itself; of a loop or branch, those before its regions."""
        if isinstance(statement, LoopUTask):
            yield from self.transfer(statement.initial, statement.carried)
        elif isinstance(statement, StitchedUTask):
            for member in statement.members:
                if member.kind in BLOCK_SCRATCH:
                    yield SCRATCH
                yield from self._moved(member)
            yield from self._lanes(statement)
        elif isinstance(statement, UOperator) and not self._is_view(statement):
            if statement.kind in BLOCK_SCRATCH:
                yield SCRATCH
            if statement.kind == "exchange":
                yield TAGS
            yield from self._moved(statement)
            yield from self._work(statement.inputs, statement.outputs)

    def _lanes(self, group: StitchedUTask) -> Iterator[Touch]:
        """The touches of a lane loop. If it only does element-wise work on whole dense arrays, or reduces one
        to a scalar, one thread has element i of each array, in this loop and in all others of that size."""
        closer = group.members[-1]
        update = closer.kind == "dynamic_update_slice"
        whole = closer.inputs[0] if closer.kind == "reduce" else closer.output
        if update and closer.inputs[1].type.is_scalar:
            yield from self._work(group.inputs, ())
            for value in group.outputs:
                yield from self._whole(value, True, ONE)
            return
        inner = group.members[:-1] if closer.kind == "reduce" else group.members
        plain = all(map(_own_element, inner))
        plain = plain and (closer.kind != "reduce" or closer.output.type.is_scalar)
        for values, write in ((group.inputs, False), (group.outputs, True)):
            for value in values:
                dense = value in self.plan.layouts and self.plan.layouts[value].is_whole
                ours = plain and dense and value.type.size == whole.type.size > 1
                key = value.type.size * 16 + ITEM_SIZE[value.type.dtype]
                yield from self._whole(value, write, key if ours else 0)

    def _is_view(self, operator: UOperator) -> bool:
        if operator.kind in ("constant", "empty") or not operator.outputs:
            return True
        layout = self.plan.layouts.get(operator.outputs[0])
        return layout is not None and layout.root != operator.outputs[0]

    def _moved(self, operator: UOperator) -> Iterator[Touch]:
        """An update copies its array to the place of the result, unless it is there."""
        if operator.kind == "dynamic_update_slice":
            yield from self.transfer(operator.inputs[:1], operator.outputs)

    def _work(self, inputs: Iterable[Value], outputs: Iterable[Value]) -> Iterator[Touch]:
        for value in inputs:
            yield from self._whole(value, False)
        for value in outputs:
            yield from self._whole(value, True)

    def transfer(self, sources: Iterable[Value], targets: Iterable[Value]) -> Iterator[Touch]:
        for source, target in zip(sources, targets, strict=True):
            if target in self.plan.layouts and target.type.size and not self._same(source, target):
                yield from self._whole(source, False)
                yield from self._whole(target, True)

    def results(self, values: tuple[Value, ...]) -> Iterator[Touch]:
        """The copies of results that are not computed in place."""
        for position, value in enumerate(values):
            layout = self.plan.layouts.get(value)
            if layout is None or not value.type.size:
                continue
            if not (layout.is_whole and self._place(value) == (f"output {position}", 0)):
                yield from self._whole(value, False)
                yield Touch(f"output {position}", 0, value.type.nbytes, True)

    # -- memory ------------------------------------------------------------------------------------------
    def _same(self, source: Value, target: Value) -> bool:
        return source not in self.plan.layouts or self.plan.same_place(source, target)

    def _place(self, value: Value) -> tuple[str, int]:
        """Memory space and first byte."""
        slot = self.plan.place(value)
        if slot.space in ("input", "output", "constant"):
            return f"{slot.space} {slot.index}", 0
        return slot.space, slot.index

    def _whole(self, value: Value, write: bool, lanes: int = 0) -> Iterator[Touch]:
        """The whole memory behind a value."""
        if value not in self.plan.layouts or not value.type.size:
            return
        space, begin = self._place(value)
        yield Touch(space, begin, begin + self.plan.layouts[value].root.type.nbytes, write, lanes)


def _own_element(operator: UOperator) -> bool:
    """True if element i of the result reads at most element i of every array."""
    if operator.kind in ELEMENTWISE or operator.kind in ("constant", "iota"):
        return True
    return operator.kind == "broadcast" and operator.inputs[0].type.is_scalar


def _conflict(state: State, touches: State) -> bool:
    return any(a.conflicts(b) for a in state for b in touches)
