"""Derives block barriers, among the threads of a unit, between lane loops (AStitch's Regional scheme).

    lane loop: write x; lane loop: read x     ->     lane loop: write x; block_barrier; lane loop: read x

If a unit is a block of threads, every thread runs the whole text and a share of every lane loop. A lane loop
may read the results of another one only after a block barrier; the method is in `hazards`. A barrier between
units includes a block barrier. Every thread computes scalars for itself, so they need none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jax_cocktail.analysis.parallel import block_access, scalar_constants
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.schedule.sync.hazards import (
    ALL,
    BLOCK_BARRIER,
    FIRST,
    Access,
    Performer,
    State,
    Synchroniser,
)
from jax_cocktail.utask.ir import LoopUTask, Statement, StitchedUTask, UOperator, UProgram, by_threads
from jax_cocktail.utask.operators import BLOCK_SCRATCH
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.types import ITEM_SIZE, Value

SCRATCH = Access("scratch", 0, 1, True, ALL)
TAGS = Access("tags", 0, 1, True, ALL)  # all threads receive a step before any of them sends the next


def block_barriers(program: UProgram, plan: MemoryPlan) -> UProgram:
    """Inserts `block_barrier`. Expects a planned program that has its barriers between units."""
    return _BlockBarriers(plan, program).run(program)


class _BlockBarriers(Synchroniser):
    """An access to an array has a performer if the same thread touches each element of the same bytes."""

    def __init__(self, plan: MemoryPlan, program: UProgram) -> None:
        super().__init__(plan, BLOCK_BARRIER)
        self.constants = scalar_constants(program.entry)

    def enters(self, statement: Statement) -> bool:
        """False also for what a thread runs alone, which has no barriers."""
        return super().enters(statement) and not by_threads(statement)

    def inside(self, statement: Statement, state: State) -> tuple[Statement, State]:
        """An access that is open before a loop stays open after it, because a unit may skip the loop."""
        after, left = super().inside(statement, state)
        return after, {**state, **left} if isinstance(statement, LoopUTask) else left

    def accesses(self, statement: Statement) -> Iterator[Access]:
        if isinstance(statement, LoopUTask):
            yield from self.transfer(statement.initial, statement.carried)
            if by_threads(statement):
                yield from self._trips(statement)
        elif isinstance(statement, StitchedUTask):
            for member in statement.members:
                yield from self._own(member)
            yield from self._lanes(statement)
        elif isinstance(statement, UOperator) and self.works(statement):
            yield from self._own(statement)
            yield from self._work(statement.inputs, statement.outputs)

    def _trips(self, loop: LoopUTask) -> Iterator[Access]:
        """The accesses of a loop whose trips the threads share: loops of one length have the same threads."""
        written = {v for pair in zip(loop.outputs, loop.carried, strict=True) for v in pair}
        for value, runs in block_access(loop, self.constants).items():
            performer: Performer = ALL
            if value in self.layouts and runs is not None and self.layouts[value].is_whole:
                ranges = (n for r in runs for n in (r.axis, r.begin, r.size, r.digit.every, r.digit.count))
                size = ITEM_SIZE[value.type.dtype]
                performer = ("trip", loop.trip_count or 0, size, *value.type.shape, *ranges)
            yield from self.whole(value, False, performer)
            if value in written:
                yield from self.whole(value, True, performer)

    def _lanes(self, group: StitchedUTask) -> Iterator[Access]:
        """The accesses of a lane loop. If it only does element-wise work on whole dense arrays, or reduces
        one to a scalar, one thread has element i of each array, in this loop and in all others of that
        size. What is short is reduced by every warp."""
        closer = group.members[-1]
        whole = closer.inputs[0] if closer.kind == "reduce" else closer.output
        if closer.kind == "dynamic_update_slice" and closer.inputs[1].type.is_scalar:
            yield from self._work(group.inputs, ())
            for value in group.outputs:
                yield from self.whole(value, True, FIRST)
            return
        plain = all(_own_element(member) for member in group.members if member.kind != "reduce")
        if closer.kind == "reduce":
            plain = plain and closer.output.type.is_scalar and whole.type.size > BLOCK.warp_length
        for values, write in ((group.inputs, False), (group.outputs, True)):
            for value in values:
                dense = value in self.layouts and self.layouts[value].is_whole
                ours = plain and dense and value.type.size == whole.type.size > 1
                performer = ("thread", value.type.size, ITEM_SIZE[value.type.dtype]) if ours else ALL
                yield from self.whole(value, write, performer)

    def _own(self, operator: UOperator) -> Iterator[Access]:
        """The accesses beside those to operands and results. An update copies its array to the place of the
        result, unless it is there."""
        if operator.kind in BLOCK_SCRATCH:
            yield SCRATCH
        if operator.kind == "exchange":
            yield TAGS
        if operator.kind == "dynamic_update_slice":
            yield from self.transfer(operator.inputs[:1], operator.outputs)

    def _work(self, inputs: Iterable[Value], outputs: Iterable[Value]) -> Iterator[Access]:
        for value in inputs:
            yield from self.whole(value, False)
        for value in outputs:
            yield from self.whole(value, True)


def _own_element(operator: UOperator) -> bool:
    """True if element i of the result reads at most element i of every array."""
    if operator.is_element and operator.facts.ties == "alike":
        return True
    return operator.kind == "broadcast" and operator.inputs[0].type.is_scalar
