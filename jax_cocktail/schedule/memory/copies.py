"""Makes copies around loops, so that units do not wait for each other in every iteration.

*Results.* A small carry that becomes a result would live in the shared memory of the result, where one unit
computes it and the others wait for it. It is copied once instead, after the loop: `result_copies`.

*Carries.* A loop starts by copying the initial values that it cannot take over in place:

    loop from (x) { ... }   ->   y = copy x;  loop from (y) { ... }

With several units, one of them copies a shared array while the others go on, or all copy an array that they
overwrite later; the barrier for this belongs before the loop, not in its body. A parallel loop cannot copy at
all. So `loop_copies` makes a statement of the copy; of a large array, each unit copies a part:

    loop from (x) { ... }   ->   y = parallel loop from (empty) { y[part] = x[part] };  loop from (y) { ... }

Nothing writes an operand, so the copy of one waits for nobody. A copy lies where the plan has put the
carried array. Nothing else is there when the loop begins, so the plan stays valid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from jax_cocktail.analysis.scopes import Scope, program_scope
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    defined_in,
    is_parallel,
)
from jax_cocktail.utask.layout import divisors
from jax_cocktail.utask.plan import MemoryPlan, Slot, layouts_of
from jax_cocktail.utask.rewrite import map_body, map_regions, with_body
from jax_cocktail.utask.substitute import FreshValues, replaced
from jax_cocktail.utask.types import TensorType, Value

_ONE_UNIT = {"own", "private", "thread"}  # spaces of memory that one unit or thread has for itself


def result_copies(program: UProgram, plan: Callable[[UProgram], MemoryPlan]) -> tuple[UProgram, MemoryPlan]:
    """A stitched program with copies of those results of loops that then lie in each unit's own memory, and
    its plan; the same program if there are none, or if one unit does all the work."""
    copies = _small_results(program) if program_scope(program) is Scope.DEVICE else ()
    tried = _with_copies(program, copies)
    memory = plan(tried)
    kept = [copy for copy in copies if memory.slot(copy.inputs[0]).space in _ONE_UNIT]
    if len(kept) == len(copies):
        return tried, memory
    program = _with_copies(program, kept)
    return program, plan(program)


def _small_results(program: UProgram) -> Sequence[UOperator]:
    """Copies of the small results of loops that replace no operand."""
    entry, fresh = program.entry, FreshValues(program)
    taken = {entry.parameters[k].type for k in program.donated}  # results may replace these operands
    made = [v for s in entry.body if isinstance(s, LoopUTask) and not s.parallel for v in s.outputs]
    small = [v for v in made if v in entry.results and v.type.size > 1 and v.type not in taken]
    small = [v for v in small if int(v.type.nbytes) <= PROGRAM.replicated_bytes]
    return [UOperator("copy", (v,), (fresh.make(v.type),)) for v in small]


def _with_copies(program: UProgram, copies: Collection[UOperator]) -> UProgram:
    entry, names = program.entry, {c.inputs[0]: c.output for c in copies}
    entry = with_body(entry, (*entry.body, *copies), replaced(entry.results, names))
    return program if entry is program.entry else replace(program, entry=entry)


def loop_copies(program: UProgram, plan: MemoryPlan) -> tuple[UProgram, MemoryPlan]:
    """Expects a stitched program and its plan. Returns its arguments if no loop copies into or out of shared
    memory."""
    if plan.most_units <= 1:
        return program, plan
    fresh, slots = FreshValues(program), dict[Value, Slot]()

    def inside(region: Region) -> Region:
        return map_body(region, with_copies)

    def with_copies(statement: Statement) -> Sequence[Statement]:
        copies: list[Statement] = []
        if isinstance(statement, LoopUTask):
            initial = list(statement.initial)
            for k in copied_carries(statement, plan):
                target, copy = plan.slot(statement.carried[k]), Builder(fresh, statement.source)
                initial[k] = _copied(initial[k], plan, target, copy)
                made = (v for s in copy.out for v in defined_in(s) if v.type == initial[k].type)
                slots.update((value, target) for value in made)
                copies += copy.out
            statement = replace(statement, initial=tuple(initial)) if copies else statement
        return [*copies, statement if is_parallel(statement) else map_regions(statement, inside)]

    copied = map_regions(program, inside)
    if not slots:
        return program, plan
    return copied, replace(plan, layouts=layouts_of(copied), slots={**plan.slots, **slots})


def copied_carries(loop: LoopUTask, plan: MemoryPlan) -> list[int]:
    """The positions of the carries that the loop starts by copying into or out of shared memory."""
    found = []
    for k, (source, target) in enumerate(zip(loop.initial, loop.carried, strict=True)):
        if target not in plan.layouts or not target.type.size or source not in plan.layouts:
            continue
        crosses = not {plan.slot(source).space, plan.slot(target).space} <= _ONE_UNIT
        if crosses and not plan.same_place(source, target):
            found.append(k)
    return found


def _copied(source: Value, plan: MemoryPlan, target: Slot, build: Builder) -> Value:
    """A copy of the array: by all units, if each has a part worth it and all see the copy."""
    large = int(source.type.nbytes) > PROGRAM.replicated_bytes
    if large and not {plan.slot(source).space, target.space} & _ONE_UNIT:
        parts = _Parts.of(source, plan.most_units)
        if parts is not None:
            return parts.copy(build)
    return build.emit("copy", (source,), source.type)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Equal parts of an array along an axis. All axes before it have one element."""

    source: Value
    axis: int
    count: int

    @staticmethod
    def of(source: Value, units: int) -> _Parts | None:
        """As many parts as keep the units equally busy; None if parts would be too small."""
        axis = next(axis for axis, n in enumerate(source.type.shape) if n > 1)
        most = max(source.type.nbytes // PROGRAM.copied_bytes, 1)
        numbers = [n for n in divisors(source.type.shape[axis]) if 1 < n <= most]
        turns = {n: -(-n // units) / n for n in numbers}
        return _Parts(source, axis, min(numbers, key=lambda n: (turns[n], n))) if numbers else None

    def copy(self, build: Builder) -> Value:
        """The copied array."""
        array, (trip, carried) = self.source.type, (build.value("int64"), build.fresh.make(self.source.type))
        result, first = build.fresh.make(array), build.emit("empty", (), array)
        with build.region() as body:
            start, zero = self._start(build, trip), build.constant(0)
            starts = [start if axis == self.axis else zero for axis in range(array.rank)]
            shape = [n // self.count if axis == self.axis else n for axis, n in enumerate(array.shape)]
            part = build.emit("dynamic_slice", (self.source, *starts), TensorType(array.dtype, tuple(shape)))
            inputs, written = (carried, part, *starts), build.fresh.make(array)
            update = UOperator("dynamic_update_slice", inputs, (written,), (), build.source)
            body.append(StitchedUTask((update,), tuple(dict.fromkeys(inputs)), (written,), build.source))
        region = Region((trip, carried), tuple(body), (written,))
        loop = LoopUTask((first,), (result,), region, None, self.count, build.source, parallel=True)
        build.out.append(loop)
        return result

    def _start(self, build: Builder, trip: Value) -> Value:
        size = self.source.type.shape[self.axis] // self.count
        if size == 1:
            return trip
        inputs, start = (trip, build.constant(size)), build.fresh.make(INDEX)
        product = UOperator("mul", inputs, (start,), (), build.source)
        build.out.append(StitchedUTask((product,), inputs, (start,), build.source))
        return start
