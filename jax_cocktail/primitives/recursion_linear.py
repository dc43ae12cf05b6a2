"""Differentiating a task: one that keeps a tape, one that is linear and reads it, and the transpose of that.

The tape is the rows of the first (`recursion_task`): what the linear part needs of every call, under the
call's number. Children are numbered before they are called, so a tape holds the call tree, and the backward
pass is a recursion over it. What all calls share is never on the tape.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from jax_cocktail.primitives.jaxprs import constants, open_jaxpr
from jax_cocktail.primitives.recursion_plan import Stage, Traced, forward, pull, push
from jax_cocktail.primitives.recursion_structure import Var, structure
from jax_cocktail.primitives.recursion_task import (
    NUMBER,
    TOKEN,
    Aval,
    Function,
    Linear,
    Numbering,
    Task,
    aval_of,
    evaluate,
    floats,
    is_float,
    row_bytes,
    split,
)

TAPE_BYTES = 16 << 20  # if the user does not say how many calls there are
MOST_TAPED = 1 << 16


class Kind(enum.Enum):
    """Where an operand or result of a derived task comes from."""

    PRIMAL = "an operand of the task"
    TANGENT = "the tangent of an operand"
    NUMBER = "one: one more than the number of the first call"
    RESULT = "a result of the task, or its cotangent"
    TAPE = "rows that the forward task made"


Source = tuple[Kind, int]


@dataclass(frozen=True, slots=True)
class Parts:
    """A task in two: `forward` makes its results and the tape, `linear` the tangents of `linear_results`
    (positions among the results)."""

    forward: Task
    linear: Task
    forward_results: tuple[Source, ...]
    linear_operands: tuple[Source, ...]
    linear_results: tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class _Traced:
    """A function with its tape. `residuals`: for each one ("environment" | "row" | "number", position) or
    ("tape", n)."""

    function: Function
    jaxpr: Any
    plan: tuple[Stage, ...]
    parameters: tuple[Var, ...]
    results: tuple[Any, ...]
    residuals: tuple[tuple[str, int], ...]
    tape: tuple[Aval, ...]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which operands of every sort the linear task has: positions in the task's own, constant then moving."""

    environment: tuple[int, ...]
    moving_environment: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    moving_rows: tuple[tuple[int, ...], ...]


def linear_operands(task: Task) -> tuple[bool, ...]:
    """Which operands of a linear task it is linear in."""
    assert task.linear is not None
    count = task.linear.environment
    found = [True] + [False] * task.numbers
    found += [k >= len(task.environment) - count for k in range(len(task.environment))]
    for function, moving in zip(task.functions, task.linear.rows, strict=True):
        found += [k >= len(function.rows) - moving for k in range(len(function.rows))]
    return (*found, *(True for _ in task.entry.arguments))


@functools.lru_cache(maxsize=128)
def linearise(task: Task, active: tuple[bool, ...]) -> Parts:
    """`active`: which operands of the task have tangents; of arguments, all that can."""
    _, environment, rows, _ = task.split_operands(active)
    own_rows = split(rows, *(len(f.rows) for f in task.functions))
    traced = [_trace(task, f, environment, r) for f, r in zip(task.functions, own_rows, strict=False)]
    numbering = Numbering.GIVEN if task.numbers else Numbering.FRESH
    if not task.max_calls:
        tapes = [a for t in traced for a in t.tape]
        task = replace(task, max_calls=max(min(TAPE_BYTES // max(row_bytes(tapes), 1), MOST_TAPED), 1))
    forward_task = replace(
        task,
        numbering=numbering,
        linear=None,
        functions=tuple(
            replace(t.function, body=t.jaxpr, row_results=(*t.function.row_results, *t.tape)) for t in traced
        ),
    )
    layout = _layout(task, traced, environment, own_rows)
    linear_task = _linear_task(task, traced, layout)
    return Parts(
        forward_task,
        linear_task,
        tuple(_forward_results(task, traced)),
        tuple(_linear_operands(task, traced, layout)),
        tuple(k for k, aval in enumerate(task.results) if is_float(aval)),
    )


def _trace(task: Task, function: Function, environment: Sequence[bool], rows: Sequence[bool]) -> _Traced:
    """The function with its residuals as further row results."""
    body = structure(function.body, opens_loops=False)
    start = 1 + task.numbers
    flags = [True, *[False] * task.numbers, *environment, *rows, *map(is_float, function.arguments)]
    active = frozenset(v for v, flag in zip(body.parameters, flags, strict=True) if flag)
    cell: list[Traced] = []

    def run(*operands: Any) -> list[Any]:
        found = forward(body, dict(zip(body.parameters, operands, strict=True)), active)
        cell.append(found.without_values())
        return found.results + found.residuals

    jaxpr = jax.make_jaxpr(run)(*(v.aval for v in body.parameters))
    traced, opened = cell[-1], open_jaxpr(jaxpr)
    place = {v: k for k, v in enumerate(opened.invars)}
    residuals: list[tuple[str, int]] = []
    kept: list[int] = []  # results that go on the tape
    first_row = start + len(environment)
    for k in range(len(traced.results), len(opened.outvars)):
        atom = opened.outvars[k]
        position = -1 if isinstance(atom, jex.Literal) else place.get(atom, -1)
        if 1 <= position < start:
            residuals.append(("number", 0))
        elif start <= position < first_row:
            residuals.append(("environment", position - start))
        elif first_row <= position < first_row + len(rows):
            residuals.append(("row", position - first_row))
        else:
            residuals.append(("tape", len(kept)))
            kept.append(k)
    count = 1 + len(task.accumulated) + len(function.row_results)
    order = [*range(count), *kept, *range(count, len(traced.results))]
    tape = tuple(aval_of(opened.outvars[k].aval) for k in kept)
    chosen = _picked(jaxpr, order, [v.aval for v in body.parameters])
    results = tuple(v if v in traced.active else None for v in body.results)
    return _Traced(function, chosen, traced.plan, body.parameters, results, tuple(residuals), tape)


def _picked(jaxpr: Any, order: Sequence[int], avals: Sequence[Aval]) -> Any:
    """The jaxpr with these of its results."""

    def run(*operands: Any) -> list[Any]:
        found = evaluate(jaxpr, constants(jaxpr), operands)
        return [found[k] for k in order]

    return jax.make_jaxpr(run)(*avals)


def _layout(
    task: Task, traced: Sequence[_Traced], environment: Sequence[bool], rows: Sequence[Sequence[bool]]
) -> _Layout:
    used = {k for t in traced for kind, k in t.residuals if kind == "environment"}
    return _Layout(
        tuple(sorted(used)),
        tuple(k for k, flag in enumerate(environment) if flag),
        tuple(tuple(sorted({k for kind, k in t.residuals if kind == "row"})) for t in traced),
        tuple(tuple(k for k, flag in enumerate(r) if flag) for r, _ in zip(rows, traced, strict=False)),
    )


def _forward_results(task: Task, traced: Sequence[_Traced]) -> list[Source]:
    found: list[Source] = [(Kind.RESULT, k) for k in range(1 + len(task.accumulated))]
    tapes = 0
    for t in traced:
        found += [(Kind.RESULT, len(found) - tapes + k) for k in range(len(t.function.row_results))]
        found += [(Kind.TAPE, tapes + k) for k in range(len(t.tape))]
        tapes += len(t.tape)
    start = len(found) - tapes
    return found + [(Kind.RESULT, start + k) for k in range(len(task.entry.results))]


def _linear_operands(task: Task, traced: Sequence[_Traced], layout: _Layout) -> list[Source]:
    start = 1 + task.numbers
    found: list[Source] = [(Kind.TANGENT, 0), (Kind.PRIMAL, 1) if task.numbers else (Kind.NUMBER, 0)]
    found += [(Kind.PRIMAL, start + k) for k in layout.environment]
    found += [(Kind.TANGENT, start + k) for k in layout.moving_environment]
    row, tape = start + len(task.environment), 0
    for t, constant, moving in zip(traced, layout.rows, layout.moving_rows, strict=True):
        found += [(Kind.PRIMAL, row + k) for k in constant]
        found += [(Kind.TAPE, tape + k) for k in range(len(t.tape))]
        found += [(Kind.TANGENT, row + k) for k in moving]
        row, tape = row + len(t.function.rows), tape + len(t.tape)
    return found + [(Kind.TANGENT, row + k) for k in floats(task.entry.arguments)]


# -- the linear task and its transpose -----------------------------------------------------------------------
def _linear_task(task: Task, traced: Sequence[_Traced], layout: _Layout) -> Task:
    parts = [_Linear(task, t, layout, n) for n, t in enumerate(traced)]
    constant = tuple(task.environment[k] for k in layout.environment)
    moving = tuple(task.environment[k] for k in layout.moving_environment)
    accumulated = tuple(a for a in task.accumulated if is_float(a))
    tapes = tuple(len(p.moving_rows) for p in parts), tuple(len(p.float_rows) for p in parts)

    def pull() -> Task:
        return replace(
            pushed,
            functions=tuple(p.function(transposed=True) for p in parts),
            environment=(*constant, *accumulated),
            accumulated=moving,
            linear=Linear(len(accumulated), tapes[1], lambda: pushed),
        )

    pushed = Task(
        functions=tuple(p.function(transposed=False) for p in parts),
        environment=(*constant, *moving),
        accumulated=accumulated,
        numbering=Numbering.GIVEN,
        max_depth=task.max_depth,
        max_calls=task.max_calls,
        linear=Linear(len(moving), tapes[0], functools.cache(pull)),
    )
    return pushed


class _Linear:
    """One function of the linear task: operands and results of every sort, constant ones first."""

    def __init__(self, task: Task, traced: _Traced, layout: _Layout, number: int) -> None:
        function = traced.function
        self.traced = traced
        self.constant = tuple(task.environment[k] for k in layout.environment)
        self.places = layout.environment
        self.moving = tuple(task.environment[k] for k in layout.moving_environment)
        self.row_places = layout.rows[number]
        self.rows = (*(function.rows[k] for k in self.row_places), *traced.tape)
        self.moving_rows = tuple(function.rows[k] for k in layout.moving_rows[number])
        self.arguments = tuple(function.arguments[k] for k in floats(function.arguments))
        self.accumulated = tuple(a for a in task.accumulated if is_float(a))
        self.float_rows = tuple(a for a in function.row_results if is_float(a))
        self.results = tuple(a for a in function.results if is_float(a))
        self.inputs = self._inputs(task, layout, number)
        avals = (TOKEN, *task.accumulated, *function.row_results, *function.results)
        self.outputs = tuple(v for v, a in zip(traced.results, avals, strict=True) if is_float(a))

    def _inputs(self, task: Task, layout: _Layout, number: int) -> tuple[Var, ...]:
        """The parameters that move, in the order of the linear operands."""
        first, environment, rows, arguments = split(
            self.traced.parameters, 1 + task.numbers, len(task.environment), len(self.traced.function.rows)
        )
        return (
            first[0],
            *(environment[k] for k in layout.moving_environment),
            *(rows[k] for k in layout.moving_rows[number]),
            *(arguments[k] for k in floats(self.traced.function.arguments)),
        )

    def residuals(self, number: Any, environment: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        tape = rows[len(self.row_places) :]
        found = []
        for kind, k in self.traced.residuals:
            if kind == "tape":
                found.append(tape[k])
            elif kind == "row":
                found.append(rows[self.row_places.index(k)])
            else:
                found.append(number if kind == "number" else environment[self.places.index(k)])
        return found

    def function(self, transposed: bool) -> Function:
        """The body as a jaxpr. Transposed, moving operands and results change places."""
        ins = (self.moving, self.moving_rows, self.arguments)
        outs = (self.accumulated, self.float_rows, self.results)
        ins, outs = (outs, ins) if transposed else (ins, outs)
        run = self._pull if transposed else self._push

        def body(token: Any, number: Any, *operands: Any) -> list[Any]:
            constant, environment, rows, moving_rows, arguments = split(
                operands, len(self.constant), len(ins[0]), len(self.rows), len(ins[1])
            )
            known = self.residuals(number, constant, rows)
            return run(known, [token, *environment, *moving_rows, *arguments])

        avals = (TOKEN, NUMBER, *self.constant, *ins[0], *self.rows, *ins[1], *ins[2])
        own = self.traced.function
        return Function(
            own.name,
            jax.make_jaxpr(body)(*avals),
            (*self.rows, *ins[1]),
            ins[2],
            outs[1],
            outs[2],
            own.source,
        )

    def _push(self, residuals: Sequence[Any], moves: Sequence[Any]) -> list[Any]:
        made = push(self.traced.plan, residuals, dict(zip(self.inputs, moves, strict=True)))
        avals = (TOKEN, *self.accumulated, *self.float_rows, *self.results)
        return [
            made[v] if v is not None and v in made else jnp.zeros(a.shape, a.dtype)
            for v, a in zip(self.outputs, avals, strict=True)
        ]

    def _pull(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        start: dict[Var, Any] = {}
        for v, ct in zip(self.outputs, cotangents, strict=True):
            if v is not None:
                start[v] = start[v] + ct if v in start else ct
        made = pull(self.traced.plan, residuals, start)
        return [made[v] if v in made else jnp.zeros(v.aval.shape, v.aval.dtype) for v in self.inputs]


def transpose(task: Task) -> tuple[Task, tuple[Source, ...], tuple[int, ...]]:
    """The transpose of a linear task, where its operands come from (the task's operands, and cotangents of
    its results), and of which operands its results are the cotangents."""
    assert task.linear is not None
    partner = task.linear.transposed()
    is_linear = linear_operands(task)
    first, environment, rows, arguments = task.split_operands(range(len(is_linear)))
    results = task.split_results(range(len(task.results)))
    sources: list[Source] = [(Kind.RESULT, 0), (Kind.PRIMAL, 1)]
    sources += [(Kind.PRIMAL, k) for k in environment if not is_linear[k]]
    sources += [(Kind.RESULT, k) for k in results[1]]
    row, row_result = iter(rows), iter(results[2])
    for function in task.functions:
        own = [next(row) for _ in function.rows]
        sources += [(Kind.PRIMAL, k) for k in own if not is_linear[k]]
        sources += [(Kind.RESULT, next(row_result)) for _ in function.row_results]
    sources += [(Kind.RESULT, k) for k in results[3]]
    targets = [first[0]] + [k for k in (*environment, *rows, *arguments) if is_linear[k]]
    return partner, tuple(sources), tuple(targets)
