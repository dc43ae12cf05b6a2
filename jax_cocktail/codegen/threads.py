"""Emits loops whose trips the threads of all units share: each thread runs its trips alone.

Warps take runs of trips, so that their accesses coalesce. Units take warps in turn, so that a few trips are
spread over all units. If a trip is a loop of unknown length, a thread takes its next trip as soon as it is
done, while the other threads of its warp still run theirs (persistent threads: Aila and Laine, HPG'09):

    for (trip ...) {                       for (;;) {
      first;                                 if (many lanes of the warp rest) {
      while (going) body;                      if (rests) { last; take a trip; }
      last;                      ->            if (no lane has a trip) break;
    }                                          if (took one) { first; begin; }
                                             }
                                             for (a few turns while going) body;
                                           }

The lanes of a warp vote before they go on. Otherwise a compiler makes an inner loop of `body`, where all
lanes wait for the longest one. With loops in loops, a lane that is done with the innermost one goes on in the
outer ones, whatever the others do there (program-counter autobatching: Radul et al., MLSys'20). `at` is the
number of the loop that it has ended, and `inside` that of the loop whose body it begins.

If a trip is an expensive branch, a warp would run all sides that its lanes take, one after the other. The
threads of a block therefore go over its trips once for each side, and gather trips that take it:

    for (trip ...) {                       for (side ...) {
      first;                                 for (;;) {
      branch;                                  if (many lanes rest, and one can take a trip) {
      last;                      ->              take a trip; first; continue;  // or rests, for another side
    }                                          }
                                               if (no lane has the side) break;
                                               side; last;
                                             }
                                           }
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from jax_cocktail.codegen.context import Context
from jax_cocktail.codegen.kernel import Expression, Name, Node
from jax_cocktail.codegen.transfer import emit_transfer
from jax_cocktail.codegen.writer import code, joined
from jax_cocktail.cost.footprint import written
from jax_cocktail.cost.work import runs
from jax_cocktail.device.tuning import BLOCK, ELEMENTS
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    defined_in,
    operators_in,
    walk,
)
from jax_cocktail.utask.operators import KINDS
from jax_cocktail.utask.plan import Slot
from jax_cocktail.utask.rewrite import Inside, fold
from jax_cocktail.utask.types import Value

FIRST, NEXT = "ck_first_trip(unit)", "ck_next_trip(unit)"
_GOING, _AT, _INSIDE = Name("going"), Name("at"), Name("inside")
_ENDS, _TAKES = Name("ends"), Name("takes")
Emit = Callable[[Region], None]


@contextmanager
def alone(context: Context) -> Iterator[None]:
    """Statements that each thread runs for itself."""
    context.needs.add("units")
    context.part_depth, context.by_thread = context.part_depth + 1, True
    yield
    context.part_depth, context.by_thread = context.part_depth - 1, False


def own_bytes(context: Context, loop: LoopUTask) -> int:
    """Bytes of the arrays that each thread of the loop has for itself."""
    plan = context.plan
    made = {plan.layouts[v].root for s in loop.body.body for v in defined_in(s) if v in plan.layouts}
    slots = ((root, plan.slots[root]) for root in made if root in plan.slots)
    ends = (slot.index + root.type.nbytes for root, slot in slots if slot.space == "thread")
    return int(max(ends, default=0))


def unrolling(context: Context, loop: LoopUTask) -> str:
    """A limit to how far the compiler unrolls a loop on arrays of a thread. Without one it unrolls nests of
    them, and keeps pieces of arrays in all registers."""
    plan = context.plan
    touched = {v for o in operators_in(loop.body) for v in (*o.inputs, *o.outputs) if v in plan.layouts}
    if not context.by_thread or all(plan.slot(v).space != "thread" for v in touched):
        return ""
    nested = any(isinstance(s, LoopUTask) for s in walk(loop.body))
    return f"#pragma unroll {1 if nested else BLOCK.most_together}"


def nest(context: Context, loop: LoopUTask) -> tuple[LoopUTask, ...]:
    """A loop whose trips threads share, and the loops in it of which each is all that a trip of the one
    around it does, but for straight code before and behind it. The last one has an unknown length. Empty if
    there is none, if a thread has few trips, or if the straight code takes much longer than the last loop:
    few lanes at a time would run it."""
    found = [loop]
    while len(inner := _nested(found[-1].body)) == 1 and isinstance(inner[0], LoopUTask):
        found.append(inner[0])
    while found and found[-1].condition is None:
        found.pop()
    if len(found) < 2:
        return ()
    together = context.plan.most_units * context.target.threads
    beside = sum(_operations(*_beside(outer, inner)) for outer, inner in zip(found, found[1:], strict=False))
    innermost = _operations(found[-1].body, found[-1].condition)
    several = cast(int, loop.trip_count) >= ELEMENTS.rounds(innermost) * together
    worth = several and beside <= ELEMENTS.beside * innermost
    return tuple(found) if worth else ()


def branch_alone(context: Context, loop: LoopUTask) -> BranchUTask | None:
    """The expensive branch that a trip of the loop is, but for cheap straight code before and behind it, if
    threads have several trips. The code before it runs again for each side, so it may not read what trips
    write."""
    inner = _nested(loop.body)
    together = context.plan.most_units * context.target.threads
    several = cast(int, loop.trip_count) >= ELEMENTS.sided * together
    if not several or len(inner) != 1 or not isinstance(inner[0], BranchUTask):
        return None
    first, _ = _beside(loop, inner[0])
    dearest = max(map(_work, inner[0].branches))
    worth = dearest >= ELEMENTS.sided_flops and dearest >= ELEMENTS.beside * _work(first)
    read = {v for o in operators_in(first) for v in (*o.inputs, *o.outputs)}
    again = _slots(context, read).isdisjoint(_slots(context, loop.carried))
    return inner[0] if worth and again else None


def _slots(context: Context, values: Iterable[Value]) -> set[Slot]:
    return {context.plan.place(v) for v in values if v.type.size > 1 and v in context.plan.layouts}


def _work(region: Region) -> float:
    """The operations of one run of a region, with all iterations of the loops in it."""

    def each(statement: Statement, inside: Inside[float]) -> float:
        if isinstance(statement, UOperator):
            return KINDS[statement.kind].cost * float(written(statement).type.size)
        return sum(map(sum, inside), 0.0) * (runs(statement) if isinstance(statement, LoopUTask) else 1)

    return sum(fold(s, each) for s in region.body)


def _nested(region: Region) -> list[Statement]:
    return [s for s in region.body if not isinstance(s, UOperator | StitchedUTask)]


def _beside(outer: LoopUTask, inner: Statement) -> tuple[Region, Region]:
    """The statements of a loop's body before and behind the one statement in it that is not straight code."""
    at = next(k for k, s in enumerate(outer.body.body) if s is inner)
    return Region((), outer.body.body[:at], ()), Region((), outer.body.body[at + 1 :], ())


def _operations(*regions: Region | None) -> float:
    """The operations of one run of the statements, with loops within them once."""
    operators = (o for region in regions if region is not None for o in operators_in(region))
    return sum(KINDS[o.kind].cost * written(o).type.size for o in operators)


def takes(context: Context, branch: BranchUTask, number: int) -> Expression:
    """True if a trip takes a side; a selector out of bounds takes the first or last one."""
    selector, last = context.register(branch.selector), len(branch.branches) - 1
    if number == 0:
        return code("{} <= 0", selector)
    return code("{} {} {}", selector, ">=" if number == last else "==", number)


def emit_sides(context: Context, loop: LoopUTask, branch: BranchUTask, trip: Name, emit: Emit) -> None:
    """The loop as above. `trip`: of the variable that counts trips; `emit` emits a region."""
    writer, trips = context.writer, cast(int, loop.trip_count)
    first, last = _beside(loop, branch)
    context.needs.add("refill")
    with alone(context):
        for number, side in enumerate(branch.branches):
            with writer.block():
                writer.line("ck_begin_trips(unit);")
                writer.var(writer.index, trip, "-1")
                writer.var("bool", _GOING, "false")
                with writer.block("for (;;)"):
                    writer.let("bool", _TAKES, code("!{} && {} < {}", _GOING, trip, trips))
                    with writer.block(code("if (ck_many_rest({}) && ck_some({}))", _GOING, _TAKES)):
                        writer.line("ck_take_trips(unit, {}, {}, &{});", _TAKES, trips, trip)
                        with writer.block(code("if ({} && {} < {})", _TAKES, trip, trips)):
                            emit(first)
                            writer.set(_GOING, takes(context, branch, number))
                        writer.line("continue;")
                    writer.line("if (!ck_some({})) break;", _GOING)
                    with writer.block(code("if ({})", _GOING)):
                        emit(side)
                        emit_transfer(context, side.results, branch.outputs)
                        emit(last)
                        writer.set(_GOING, "false")
                writer.line("ck_end_trips();")


@dataclass(frozen=True, slots=True)
class Refilled:
    """Emits a nest of loops as above. `names`: of the variables that count their trips, or None; `emit` emits
    a region."""

    context: Context
    loops: tuple[LoopUTask, ...]
    names: Sequence[Name | None]
    emit: Emit

    def write(self) -> None:
        writer, trip, trips = self.context.writer, self._trip, self._trips
        self.context.needs.add("refill")
        with alone(self.context), writer.block():
            writer.line("ck_begin_trips(unit);")
            writer.var(writer.index, trip, "-1")
            writer.var("bool", _GOING, "false")
            for name in filter(None, self.names[1:]):
                writer.var(writer.index, name, "0")
            if self._deep:
                writer.var("i32", _AT, "0")
            begins, turns, ends = map(self._written, (self._begins, self._turns, self._ends))
            with writer.block("for (;;)"):
                with writer.block(code("if (ck_many_rest({}))", _GOING)):
                    writer.let("bool", _ENDS, code("!{} && {} < {}", _GOING, trip, trips))
                    writer.nodes += ends
                    taken = code("ck_take_trips(unit, {}, {}, &{})", _TAKES, trips, trip)
                    writer.line("if (!{}) break;", taken)
                    writer.nodes += begins
                writer.nodes += turns
            writer.line("ck_end_trips();")

    def _written(self, write: Callable[[], None]) -> list[Node]:
        """The text of a part, written in the order of the program: what is behind a loop uses registers of
        what is before it."""
        nodes = self.context.writer.nodes
        before = len(nodes)
        write()
        found = nodes[before:]
        del nodes[before:]
        return found

    @property
    def _trip(self) -> Name:
        return cast(Name, self.names[0])

    @property
    def _trips(self) -> int:
        return cast(int, self.loops[0].trip_count)

    @property
    def _deep(self) -> bool:
        return len(self.loops) > 2

    def _ends(self) -> None:
        """Writes the statements behind the loops that lanes have ended, from the innermost on."""
        writer, trip = self.context.writer, self._trip
        writer.var("bool", _TAKES, _ENDS)
        if self._deep:
            writer.var("i32", _INSIDE, "-1")
        for number in range(len(self.loops) - 2, -1, -1):
            here = [code("{} && {} >= 0", _ENDS, trip)]
            here += [code("{} == {} && {} < 0", _AT, number + 1, _INSIDE)] if self._deep else []
            with writer.block(code("if ({})", joined(" && ", here))):
                outer = self.loops[number]
                self.emit(_beside(outer, self.loops[number + 1])[1])
                if number:
                    emit_transfer(self.context, outer.body.results, outer.carried)
                    if outer.condition is None:
                        writer.line("{} += 1;", cast(Name, self.names[number]))
                    self._test(number)
        if self._deep:
            writer.line("{} = {} && ({} < 0 || {} < 0);", _TAKES, _ENDS, trip, _INSIDE)

    def _test(self, number: int) -> None:
        """Goes on with a loop, or tells that it has ended."""
        writer, lives = self.context.writer, self._lives(number)
        writer.line("if ({}) {} = {}; else {} = {};", lives, _INSIDE, number, _AT, number)

    def _lives(self, number: int) -> Expression:
        loop = self.loops[number]
        if loop.condition is None:
            return code("{} < {}", cast(Name, self.names[number]), cast(int, loop.trip_count))
        self.emit(loop.condition)
        return code("{}", self.context.register(loop.condition.results[0]))

    def _begins(self) -> None:
        """Writes the statements before the loops that lanes begin, from the outermost on."""
        writer, trip, trips = self.context.writer, self._trip, self._trips
        if self._deep:
            writer.line("if ({} && {} < {}) {} = 0;", _TAKES, trip, trips, _INSIDE)
        for number, inner in enumerate(self.loops[1:], 1):
            here = code("{} && {} < {}", _TAKES, trip, trips)
            if self._deep:
                here = code("{} == {}", _INSIDE, number - 1)
            with writer.block(code("if ({})", here)):
                self.emit(_beside(self.loops[number - 1], inner)[0])
                emit_transfer(self.context, inner.initial, inner.carried)
                if (name := self.names[number]) is not None:
                    writer.line("{} = 0;", name)
                if number < len(self.loops) - 1:
                    self._test(number)
                    continue
                if self._deep:
                    writer.line("{} = {};", _AT, number)
                writer.set(_GOING, self._lives(number))

    def _turns(self) -> None:
        """A few iterations of the innermost loop: the less they compute, the more are worth a vote."""
        inner, writer = self.loops[-1], self.context.writer
        turns = ELEMENTS.turns(_operations(inner.body, inner.condition))
        head = code("if ({})", _GOING)
        if turns > 1:
            head = code("for (i32 turn = 0; turn < {} && {}; turn += 1)", turns, _GOING)
        with writer.block(head):
            self.emit(inner.body)
            emit_transfer(self.context, inner.body.results, inner.carried)
            writer.set(_GOING, self._lives(len(self.loops) - 1))
