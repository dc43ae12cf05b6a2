"""CPU seconds of planning, pass by pass, and programs of any length to show how they grow. Needs no jax."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from jax_cocktail.codegen.machines import HOST
from jax_cocktail.compiler import emit
from jax_cocktail.device.machine import Machine
from jax_cocktail.schedule.sync.plan_tail import Planned
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.candidate import SINGLE, Candidate
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, UProgram, walk
from jax_cocktail.utask.types import Value

WEIGHTS = 4  # of a straight program
AXES = {"lhs_contract": (1,), "rhs_contract": (0,), "lhs_batch": (), "rhs_batch": ()}


@dataclass(frozen=True, slots=True)
class Passed:
    """What a pass took, in CPU seconds, and the statements before and after it. `emit`, the last one,
    verifies the result, writes the text and finds the program's identity."""

    name: str
    seconds: float
    before: int
    after: int


def statements_in(program: UProgram) -> int:
    """The number of statements, nested ones included."""
    return sum(1 for _ in walk(program.entry))


def planning_passes(
    program: UProgram, machine: Machine = HOST, candidate: Candidate = SINGLE
) -> tuple[Passed, ...]:
    """Every pass in order, verification included, up to the source text. Counting takes no time."""
    found, count = list[Passed](), statements_in(program)
    last = time.process_time()

    def note(name: str, after: UProgram) -> None:
        nonlocal count, last
        seconds, before, count = time.process_time() - last, count, statements_in(after)
        found.append(Passed(name, seconds, before, count))
        last = time.process_time()

    def observe(name: str, planned: Planned, _: float) -> None:
        note(name, planned.program)

    note("emit", emit(program, machine, (observe,), candidate).program)
    return tuple(found)


def planning_seconds(
    program: UProgram, machine: Machine = HOST, candidate: Candidate = SINGLE
) -> Counter[str]:
    """CPU seconds of every pass, and under "all" of everything up to the source text."""
    return totals(planning_passes(program, machine, candidate))


def totals(passed: tuple[Passed, ...]) -> Counter[str]:
    """The seconds by pass, and under "all" their sum."""
    found: Counter[str] = Counter()
    for each in passed:
        found[each.name] += each.seconds
        found["all"] += each.seconds
    return found


def straight(statements: int, size: int = 32) -> UProgram:
    """A program of about so many statements: layers of a product, an activation and a sum, in a line."""
    builder, shape = Builder(), (size, size)
    x, *weights = parameters = [builder.value("float32", shape) for _ in range(1 + WEIGHTS)]
    for number in range(statements // 3):
        product = builder.emit("dot", (x, weights[number % WEIGHTS]), "float32", shape, **AXES)
        x = builder.emit("add", (x, builder.emit("tanh", (product,), "float32", shape)), "float32", shape)
    return UProgram("straight", builder.finish(parameters, (x,)))


def branching(statements: int, cases: int = 64) -> UProgram:
    """A program of about so many statements in a loop over a branch of many cases, as recursions have: every
    case takes rows, multiplies them and writes the products back."""
    builder, size, rows = Builder(), 32, 16
    weights, table = parameters = [
        builder.value("float32", (size, size)),
        builder.value("float32", (cases * rows, size)),
    ]
    index, carried = builder.value("int64"), builder.value("float32", table.type.shape)
    with builder.region() as body:
        selector = builder.convert(index, "int32")
        regions = [
            _case(builder, statements // cases, number, (weights, carried), rows) for number in range(cases)
        ]
        (made,) = builder.like((carried,))
        body.append(BranchUTask(selector, tuple(regions), (made,)))
        inside = builder.finish((index, carried), (made,))
    (result,) = builder.like((table,))
    builder.out.append(LoopUTask((table,), (result,), inside, trip_count=cases))
    return UProgram("branching", builder.finish(parameters, (result,)))


def _case(builder: Builder, statements: int, number: int, operands: tuple[Value, Value], rows: int) -> Region:
    weights, table = operands
    shape = (rows, table.type.shape[1])
    with builder.region():
        at, zero = builder.constant(number * rows), builder.constant(0)
        x = builder.emit("dynamic_slice", (table, at, zero), "float32", shape)
        for _ in range(max((statements - 4) // 3, 1)):
            product = builder.emit("dot", (x, weights), "float32", shape, **AXES)
            x = builder.emit("add", (x, builder.emit("tanh", (product,), "float32", shape)), "float32", shape)
        made = builder.emit("dynamic_update_slice", (table, x, at, zero), table.type)
        return builder.finish((), (made,))
