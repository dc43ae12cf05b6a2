"""Differentiates a task: a forward task that writes a tape, a linear task that reads it, and its transpose.

The tape is the rows of the forward task (`recursion.task`): for each call, under its number, the residuals of
the linear part. Callees are numbered before they are called, so a tape holds the call tree, and the backward
pass is a recursion over it. Values that all calls share are never on the tape.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.extend.core as jex

from jax_cocktail.primitives.jaxprs import constants, open_jaxpr
from jax_cocktail.recursion.layout import Layout, Moving, operands_of, results_of
from jax_cocktail.recursion.segments import Segment, added, picked, pull, push, trace_body
from jax_cocktail.recursion.structure import Var, structure
from jax_cocktail.recursion.task import (
    NUMBER,
    TOKEN,
    Aval,
    Function,
    Linear,
    Numbering,
    Task,
    affordable,
    aval_of,
    evaluate,
    floats,
    is_float,
    once,
    split,
    zeros,
)

TAPE_BYTES = 16 << 20  # if `max_calls` is not given
MOST_TAPED = 1 << 16


class Kind(enum.Enum):
    """The origin of an operand or result of a derived task."""

    PRIMAL = "an operand of the task"
    TANGENT = "the tangent of an operand"
    NUMBER = "one: one more than the number of the first call"
    RESULT = "a result of the task, or its cotangent"
    TAPE = "rows that the forward task made"


Source = tuple[Kind, int]


@dataclass(frozen=True, slots=True)
class Parts:
    """A linearised task: `forward` computes its results and the tape, `linear` the tangents of
    `linear_results` (positions among the results)."""

    forward: Task
    linear: Task
    forward_results: tuple[Source, ...]
    linear_operands: tuple[Source, ...]
    linear_results: tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class _Traced:
    """A function with its tape. `residuals`: positions of parameters or of rows on the tape."""

    function: Function
    jaxpr: Any
    segments: tuple[Segment, ...]
    parameters: tuple[Var, ...]
    results: tuple[Any, ...]
    residuals: tuple[Source, ...]
    tape: tuple[Aval, ...]


@once
def linearise(task: Task, active: tuple[bool, ...]) -> Parts:
    """Linearises a task. `active`: the operands with tangents, among them all differentiable arguments."""
    _, environment, rows, _ = task.split_operands(active)
    own_rows = split(rows, *(len(f.rows) for f in task.functions))
    traced = [_trace(task, f, environment, r) for f, r in zip(task.functions, own_rows, strict=False)]
    numbering = Numbering.GIVEN if task.numbers else Numbering.FRESH
    if not task.max_calls:
        tapes = [a for t in traced for a in t.tape]
        task = replace(task, max_calls=affordable(tapes, TAPE_BYTES, MOST_TAPED))
    forward_task = replace(
        task,
        numbering=numbering,
        linear=None,
        functions=tuple(
            replace(t.function, body=t.jaxpr, row_results=(*t.function.row_results, *t.tape)) for t in traced
        ),
    )
    layouts = _layouts(task, traced, environment, own_rows)
    return Parts(
        forward_task,
        _linear_task(task, [_Linear(task, *x) for x in zip(traced, layouts, strict=True)]),
        tuple(_forward_results(task, traced)),
        _operands(task, traced, layouts).flat,
        tuple(k for k, aval in enumerate(task.results) if is_float(aval)),
    )


def _trace(task: Task, function: Function, environment: Sequence[bool], rows: Sequence[bool]) -> _Traced:
    """Traces a function with its residuals as further row results."""
    body = structure(function.body, opens_loops=False)
    start = 1 + task.numbers
    flags = [True, *[False] * task.numbers, *environment, *rows, *map(is_float, function.arguments)]
    active = frozenset(v for v, flag in zip(body.parameters, flags, strict=True) if flag)
    found = trace_body(body, active)
    opened = open_jaxpr(found.jaxpr)
    place = {v: k for k, v in enumerate(opened.invars)}
    residuals: list[Source] = []
    kept: list[int] = []  # results that are stored on the tape
    no_tape = range(1, start + len(environment) + len(rows))
    for k in range(len(body.results), len(opened.outvars)):
        atom = opened.outvars[k]
        position = -1 if isinstance(atom, jex.Literal) else place.get(atom, -1)
        if position in no_tape:
            residuals.append((Kind.PRIMAL, position))
        else:
            residuals.append((Kind.TAPE, len(kept)))
            kept.append(k)
    count = 1 + len(task.accumulated) + len(function.row_results)
    order = [*range(count), *kept, *range(count, len(body.results))]
    tape = tuple(aval_of(opened.outvars[k].aval) for k in kept)
    chosen = _picked(found.jaxpr, order, [v.aval for v in body.parameters])
    results = tuple(v if v in found.active else None for v in body.results)
    return _Traced(function, chosen, found.segments, body.parameters, results, tuple(residuals), tape)


def _picked(jaxpr: Any, order: Sequence[int], avals: Sequence[Aval]) -> Any:
    """The jaxpr with its results reduced to these."""

    def run(*operands: Any) -> list[Any]:
        found = evaluate(jaxpr, constants(jaxpr), operands)
        return [found[k] for k in order]

    return jax.make_jaxpr(run)(*avals)


def _layouts(
    task: Task, traced: Sequence[_Traced], environment: Sequence[bool], rows: Sequence[Sequence[bool]]
) -> list[Layout[Source]]:
    """The origins of the operands of each function of the linear task, as positions of its own parameters.
    `environment`, `rows`: flags for operands with tangents."""
    start = 1 + task.numbers
    first_row = start + len(environment)
    known = {k for t in traced for kind, k in t.residuals if kind is Kind.PRIMAL}
    moving = [start + k for k, flag in enumerate(environment) if flag]
    found = []
    for t, flags in zip(traced, rows, strict=False):
        first = first_row + len(flags)
        own = {k for kind, k in t.residuals if kind is Kind.PRIMAL and k >= first_row}
        layout = Layout(
            (Kind.PRIMAL, 1) if task.numbers else (Kind.NUMBER, 0),
            _from(Kind.PRIMAL, [k for k in range(start, first_row) if k in known]),
            (_from(Kind.PRIMAL, sorted(own)) + _from(Kind.TAPE, range(len(t.tape))),),
            Moving(
                (Kind.TANGENT, 0),
                _from(Kind.TANGENT, moving),
                (_from(Kind.TANGENT, [first_row + k for k, flag in enumerate(flags) if flag]),),
                _from(Kind.TANGENT, [first + k for k in floats(t.function.arguments)]),
            ),
        )
        found.append(layout)
    return found


def _from(kind: Kind, positions: Sequence[int]) -> tuple[Source, ...]:
    return tuple((kind, k) for k in positions)


def _operands(task: Task, traced: Sequence[_Traced], layouts: Sequence[Layout[Source]]) -> Layout[Source]:
    """The origins of the linear task's operands: those of its functions, concatenated."""
    rows, moving_rows, row, tape = [], [], 0, 0
    for t, layout in zip(traced, layouts, strict=True):
        rows.append(tuple((kind, k + (tape if kind is Kind.TAPE else row)) for kind, k in layout.rows[0]))
        moving_rows.append(tuple((kind, k + row) for kind, k in layout.moving.rows[0]))
        row, tape = row + len(t.function.rows), tape + len(t.tape)
    entry = layouts[0]
    others = len(task.rows) - len(task.entry.rows)
    arguments = tuple((kind, k + others) for kind, k in entry.moving.arguments)
    return replace(
        entry,
        rows=tuple(rows),
        moving=replace(entry.moving, rows=tuple(moving_rows), arguments=arguments),
    )


def _forward_results(task: Task, traced: Sequence[_Traced]) -> list[Source]:
    results, tapes = itertools.count(), itertools.count()
    found: list[Source] = [(Kind.RESULT, next(results)) for _ in (TOKEN, *task.accumulated)]
    for t in traced:
        found += [(Kind.RESULT, next(results)) for _ in t.function.row_results]
        found += [(Kind.TAPE, next(tapes)) for _ in t.tape]
    return found + [(Kind.RESULT, next(results)) for _ in task.entry.results]


# -- the linear task and its transpose -----------------------------------------------------------------------
def _linear_task(task: Task, parts: Sequence[_Linear]) -> Task:
    operands, results = parts[0].operands, parts[0].results

    def pull() -> Task:
        return replace(
            pushed,
            functions=tuple(p.function(transposed=True) for p in parts),
            environment=operands.environment + results.environment,
            accumulated=operands.moving.environment,
            linear=_linear([p.results for p in parts], lambda: pushed),
        )

    pushed = Task(
        functions=tuple(p.function(transposed=False) for p in parts),
        environment=operands.environment + operands.moving.environment,
        accumulated=results.environment,
        numbering=Numbering.GIVEN,
        max_depth=task.max_depth,
        max_calls=task.max_calls,
        linear=_linear([p.operands.moving for p in parts], functools.cache(pull)),
    )
    return pushed


def _linear(moving: Sequence[Moving[Aval]], transposed: Callable[[], Task]) -> Linear:
    return Linear(len(moving[0].environment), tuple(len(m.rows[0]) for m in moving), transposed)


class _Linear:
    """One function of the linear task: the types of its operands and results."""

    def __init__(self, task: Task, traced: _Traced, sources: Layout[Source]) -> None:
        function = traced.function
        self.traced = traced
        self.residuals = [sources.constant.index(s) for s in traced.residuals]  # among constant operands
        self.inputs = [traced.parameters[k] for _, k in sources.moving.flat]
        self.operands = sources.each(self._aval)
        avals = (TOKEN, *task.accumulated, *function.row_results, *function.results)
        self.outputs = [v for v, a in zip(traced.results, avals, strict=True) if is_float(a)]
        self.results = Moving(
            TOKEN,
            _only_floats(task.accumulated),
            (_only_floats(function.row_results),),
            _only_floats(function.results),
        )

    def _aval(self, source: Source) -> Aval:
        kind, k = source
        if kind is Kind.NUMBER:
            return NUMBER
        return self.traced.tape[k] if kind is Kind.TAPE else self.traced.parameters[k].aval

    def function(self, transposed: bool) -> Function:
        """The body as a jaxpr. Transposition exchanges the linear operands and the results."""
        ins, outs = self.operands.moving, self.results
        ins, outs = (outs, ins) if transposed else (ins, outs)
        operands = replace(self.operands, moving=ins)
        run = self._pull if transposed else self._push

        def body(*values: Any) -> list[Any]:
            given = operands.filled(values)
            return run([given.constant[k] for k in self.residuals], given.moving.flat)

        own = self.traced.function
        return Function(
            own.name,
            jax.make_jaxpr(body)(*operands.flat),
            operands.rows[0] + ins.rows[0],
            ins.arguments,
            outs.rows[0],
            outs.arguments,
            own.source,
        )

    def _push(self, residuals: Sequence[Any], moves: Sequence[Any]) -> list[Any]:
        made = push(self.traced.segments, residuals, dict(zip(self.inputs, moves, strict=True)))
        results = zip(self.outputs, self.results.flat, strict=True)
        return [made[v] if v is not None and v in made else zeros(a) for v, a in results]

    def _pull(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        made = pull(self.traced.segments, residuals, added({}, self.outputs, cotangents))
        return picked(made, self.inputs)


def _only_floats(avals: Sequence[Aval]) -> tuple[Aval, ...]:
    return tuple(a for a in avals if is_float(a))


def transpose(task: Task) -> tuple[Task, tuple[Source, ...], tuple[int, ...]]:
    """The transpose of a linear task.

    Returns:
      The transposed task; the origins of its operands (operands of `task`, and cotangents of its results);
      and the operands of `task` whose cotangents are its results.
    """
    assert task.linear is not None
    operands, results = operands_of(task), results_of(task)
    sources: Layout[Source] = operands.each(lambda k: (Kind.PRIMAL, k))
    sources = replace(sources, moving=results.each(lambda k: (Kind.RESULT, k)))
    return task.linear.transposed(), sources.flat, operands.moving.flat
