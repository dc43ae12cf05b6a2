"""Checks at the heads of loops, so that a call can be stopped while it runs (`cpu_src/runtime_stop.h`).

A loop whose number of trips is not known has one, and so has any other that may take long. What is short
stays as compilers like it: with a check, they neither unroll nor vectorise a loop. Such a loop is in one with
a check, or the program ends soon. The loop of a recursion leaves the check to its condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jax_cocktail.codegen.context import Context
from jax_cocktail.codegen.kernel import LEFT, Expression, Name, Spelled, spelled
from jax_cocktail.codegen.outline import Outer
from jax_cocktail.codegen.writer import code
from jax_cocktail.cost.work import Work, region_work, work
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, operators_in, walk
from jax_cocktail.utask.sizes import Size

_ALARM = Name("alarm", outer=True)
_NOT_COUNTED = "-1"
_MOST_TRIPS = 512  # from one check to the next
_MOST_WORK = 16 * PROGRAM.unchecked  # of these trips, a few milliseconds at most


def may_take_long(loop: LoopUTask) -> bool:
    """True for a loop that needs a check. Programs for many lengths have the same ones."""
    unknown = loop.trip_count is None or isinstance(loop.trip_count, Size)
    return unknown or work(loop).weight > PROGRAM.unchecked


def _is_one_trip(context: Context, loop: LoopUTask) -> bool:
    """True if each unit executes one trip, at whose head there is nothing to stop."""
    shared = loop.parallel and context.has_units and context.part_depth == 1  # in the body
    return shared and loop.trip_count is not None and loop.trip_count <= context.plan.most_units


@contextmanager
def trips(context: Context, loop: LoopUTask, condition: Callable[[], Spelled]) -> Iterator[None]:
    """The heads of a loop with a condition. `condition` emits it, and returns the statement that leaves the
    loop."""
    if not context.target.stop:
        with context.writer.block("for (;;)"):
            context.writer.add(condition())
            yield
    elif (top := _top_of_stack(context, loop)) is not None:
        with context.writer.block("for (;;)"):
            with context.writer.block(code("while (!ck_may_end({}, {}))", _alarm(context), top)):
                yield
            context.writer.add(condition())
            emit_check(context, loop, _NOT_COUNTED)
    else:
        with _counted(context, loop, condition):
            yield


@contextmanager
def _counted(context: Context, loop: LoopUTask, condition: Callable[[], Spelled]) -> Iterator[None]:
    writer, several = context.writer, checked_trips(context, loop)
    trip = Name(f"trip{len(context.loops)}", outer=True)
    context.names[trip] = Outer("i64")
    writer.set(trip, "0")
    with writer.block("for (;;)"):
        emit_check(context, loop, trip)
        if several == 1:
            writer.set(trip, code("{} + 1", trip))
            writer.add(condition())
            yield
            return
        with writer.block(code("for (i64 end = {} + {}; {} < end; ++{})", trip, several, trip, trip)):
            last = condition()
            writer.add(last)
            yield
        writer.add(last)


def _top_of_stack(context: Context, loop: LoopUTask) -> Expression | None:
    """The variable that is at least 0 while a recursion runs. To count its short steps, even in blocks, takes
    a tenth of its time. So one comparison tests both this variable and the alarm, and nothing counts. Other
    loops of branches with such a condition are served alike."""
    assert loop.condition is not None
    operators = [o for o in operators_in(loop.condition) if o.kind != "constant"]
    branches = any(isinstance(s, BranchUTask) for s in loop.body.body)
    if not branches or [o.kind for o in operators] != ["ge"]:
        return None
    top, least = operators[0].inputs
    zero = context.literal(bytes(4), "int32")
    is_top = top in loop.condition.parameters and top.type.dtype == "int32"
    return context.register(top) if is_top and context.registers.get(least) == zero else None


def checked_trips(context: Context, loop: LoopUTask) -> int:
    """The trips of a loop from one check to the next. Compilers keep what short trips carry in registers, but
    not across a check: it may call what they do not know."""
    regions = (loop.body,) if loop.condition is None else (loop.condition, loop.body)
    checked = bool(context.target.stop) and not loop.parallel and may_take_long(loop)
    if not checked or any(isinstance(s, LoopUTask) for region in regions for s in walk(region)):
        return 1
    weight = sum(map(region_work, regions), Work()).weight
    trips = int(min(max(_MOST_WORK / max(weight, 1.0), 1), _MOST_TRIPS))
    return 1 << (trips.bit_length() - 1) // 3 * 3  # programs for several sizes have the same, where they can


@contextmanager
def blocks(context: Context, loop: LoopUTask, name: Name, several: int) -> Iterator[None]:
    """The heads of a counted loop with a check before each block of so many trips. `name`: of the trip."""
    assert loop.trip_count is not None
    block, trips = Name(f"{name.text}_block", outer=True), spelled(loop.trip_count)
    context.names |= {name: Outer("i64"), block: Outer("i64")}
    with context.writer.block(code("for ({} = 0; {} < {}; {} += {})", block, block, trips, block, several)):
        emit_check(context, loop, block)
        end = code("({} - {} < {} ? {} : {} + {})", trips, block, several, trips, block, several)
        with context.writer.block(code("for ({} = {}; {} < {}; ++{})", name, block, name, end, name)):
            yield


def emit_check(context: Context, loop: LoopUTask, trip: Expression) -> None:
    """The unit leaves here if the call is stopped. `trip`: the number of trips so far."""
    if not context.target.stop or not may_take_long(loop) or _is_one_trip(context, loop):
        return
    number = len(context.loops)
    context.loops.append(loop.source)
    alarm = _alarm(context)
    context.writer.add(code(context.target.stop, alarm=alarm, loop=number, trip=trip, left=LEFT))


def _alarm(context: Context) -> Name:
    context.names[_ALARM] = Outer("const u64*", address="unit->alarm")
    context.needs.add("units")
    return _ALARM
