"""Divides copies of operands that loops overwrite: every unit copies a part.

    loop from (x) { ... }   ->   y = parallel loop from (empty) { y[part] = x[part] };  loop from (y) { ... }

A loop starts by copying the operands that it may not overwrite. Unit 0 would copy them while the others wait
(see `explicit_copies`). Nothing writes an operand, so the copy itself waits for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.schedule.memory.explicit_copies import copied_carries
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    is_parallel,
)
from jax_cocktail.utask.layout import divisors
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import TensorType, Value


def divided_copies(program: UProgram, plan: MemoryPlan) -> UProgram:
    """Expects a stitched program and its plan, and returns a program without a plan; or its argument, if no
    loop copies an operand of more than `PROGRAM.replicated_bytes`."""
    if plan.most_units <= 1:
        return program
    fresh = FreshValues(program)

    def inside(region: Region) -> Region:
        return map_body(region, with_copies)

    def with_copies(statement: Statement) -> Sequence[Statement]:
        before: list[Statement] = []
        if isinstance(statement, LoopUTask):
            initial = list(statement.initial)
            for k in copied_carries(statement, plan):
                copy = _Copy.of(initial[k], plan)
                if copy is not None:
                    initial[k] = copy.emit(Builder(fresh, statement.source, before))
            statement = replace(statement, initial=tuple(initial)) if before else statement
        return [*before, statement if is_parallel(statement) else map_regions(statement, inside)]

    return map_regions(program, inside)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy by equal parts of an axis. All axes before it have one element."""

    source: Value
    axis: int
    parts: int

    @staticmethod
    def of(source: Value, plan: MemoryPlan) -> _Copy | None:
        """None for what one unit copies as fast as all, and for what lies in no operand."""
        if plan.slot(source).space != "input" or source.type.nbytes <= PROGRAM.replicated_bytes:
            return None
        axis = next(axis for axis, n in enumerate(source.type.shape) if n > 1)
        most = max(source.type.nbytes // PROGRAM.copied_bytes, 1)
        numbers = [n for n in divisors(source.type.shape[axis]) if 1 < n <= most]
        turns = {n: -(-n // plan.most_units) / n for n in numbers}
        return _Copy(source, axis, min(numbers, key=lambda n: (turns[n], n))) if numbers else None

    def emit(self, build: Builder) -> Value:
        """The copied array."""
        array, (trip, carried) = self.source.type, (build.value("int64"), build.fresh.make(self.source.type))
        result, first = build.fresh.make(array), build.emit("empty", (), array)
        with build.region() as body:
            start, zero = self._start(build, trip), build.constant(0)
            starts = [start if axis == self.axis else zero for axis in range(array.rank)]
            shape = [n // self.parts if axis == self.axis else n for axis, n in enumerate(array.shape)]
            part = build.emit("dynamic_slice", (self.source, *starts), TensorType(array.dtype, tuple(shape)))
            inputs, written = (carried, part, *starts), build.fresh.make(array)
            update = UOperator("dynamic_update_slice", inputs, (written,), (), build.source)
            body.append(StitchedUTask((update,), tuple(dict.fromkeys(inputs)), (written,), build.source))
        region = Region((trip, carried), tuple(body), (written,))
        loop = LoopUTask((first,), (result,), region, None, self.parts, build.source, parallel=True)
        build.out.append(loop)
        return result

    def _start(self, build: Builder, trip: Value) -> Value:
        size = self.source.type.shape[self.axis] // self.parts
        if size == 1:
            return trip
        inputs, start = (trip, build.constant(size)), build.fresh.make(INDEX)
        product = UOperator("mul", inputs, (start,), (), build.source)
        build.out.append(StitchedUTask((product,), inputs, (start,), build.source))
        return start
