"""The calls of a recursion in order, before any of them runs: the highest above its leaves first.

The inspector is a task of its own: the function with nothing left of it but the choices and the integer
arguments of calls, which keeps what it sees of every call. Then the calls are sorted by height and path, by
counting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail.primitives.recursion_blocks import Goto, Invoke, Leave, Switch
from jax_cocktail.primitives.recursion_machine import Machine, planned
from jax_cocktail.primitives.recursion_memory import put, row, uninitialised
from jax_cocktail.primitives.recursion_paths import Levels
from jax_cocktail.primitives.recursion_reference import reference_p
from jax_cocktail.primitives.recursion_structure import Atom, Const, Op, Var
from jax_cocktail.primitives.recursion_task import (
    NUMBER,
    TOKEN,
    Aval,
    Function,
    Numbering,
    Task,
    row_bytes,
    split,
)

ROOM_BYTES = 16 << 20  # for what is kept of calls
MOST_ROOM = 1 << 14


@dataclass(frozen=True, eq=False, slots=True)
class Forest:
    """The operands of one recursion for every lane. `size`: lanes; `environment`: values, and whether they
    have an axis of lanes; all else has one. `sums`: which of them are taken for every lane."""

    size: int
    environment: tuple[tuple[Any, bool], ...]
    rows: tuple[Any, ...]
    numbers: tuple[Any, ...]
    arguments: tuple[Any, ...]
    sums: tuple[bool, ...]

    def own(self, lane: Any) -> list[Any]:
        """The environment of a lane."""
        return [row(x, lane) if has_lanes else x for x, has_lanes in self.environment]


@dataclass(frozen=True, eq=False, slots=True)
class Order:
    """Calls of all lanes by position: `count` of them, in arrays of length `room`; `path`, `lane` and
    `number` of each; `begin` and `end` of its run of calls that are alike; `integers`: integer arguments;
    `calls`: positions of its calls; `roots`: positions of the first calls. `status`: whether there was
    room.

    From `stop` to the end of a run its last call is repeated, so that few groups cover the run: what it
    returns is written twice, but it counts once.
    """

    room: int
    count: Any
    status: Any
    path: Any
    begin: Any
    stop: Any
    end: Any
    lane: Any
    number: Any
    integers: tuple[Any, ...]
    calls: tuple[Any, ...]
    roots: Any


def order_calls(levels: Levels, forest: Forest, widths: Sequence[int]) -> Order:
    """Walks the calls and sorts them. `widths`: of the groups that they will run in, ascending from 1."""
    task = levels.plan.task
    room = room_of(levels, forest.size)
    inspector = _inspector(levels, room)
    arguments = [forest.arguments[k] for k in levels.integers]

    def walk(lane: Any, state: Any) -> Any:
        rows, count, status, roots = state
        tables = [row(x, lane) for x in forest.rows]
        told = [row(x, lane) for x in (*forest.numbers, *arguments)]
        operands = [jnp.zeros((), TOKEN.dtype), *forest.own(lane), *tables, lane, *told]
        machine = Machine(planned(inspector), operands)
        machine.number = count
        walked = machine.final(rows=rows, calls=count + 1)
        status = jnp.maximum(status, walked["status"])
        if task.numbering is Numbering.FRESH:  # the room is for all lanes, and each has its own limit
            too_many = walked["calls"] - count > task.max_calls
            status = jnp.maximum(status, too_many.astype(status.dtype))
        for number in forest.numbers:  # negative: this lane has nothing to do
            status = jnp.maximum(status, (row(number, lane) < 0).astype(status.dtype))
        return walked["rows"], walked["calls"], status, put(roots, lane, count)

    rows = [uninitialised((room, *a.shape), a.dtype) for a in inspector.row_results]
    start = (rows, jnp.int32(0), jnp.int32(0), uninitialised((forest.size,), np.dtype("int32")))
    rows, count, status, roots = _loop(jnp.int32(forest.size), walk, start)
    (height, path, lane), calls, own = split(rows, 3, _most_calls(levels))
    first = roots[lane[:room]]
    numbers = own[:1] if task.numbers else [jnp.arange(room, dtype=jnp.int32) - first]
    seen = (height, path, calls, [lane, *numbers, *own[task.numbers :]])
    return _sorted(levels, (room, count, status, roots), seen, widths)


def _most_calls(levels: Levels) -> int:
    return max(len(path.calls) for path in levels.paths)


def room_of(levels: Levels, lanes: int) -> int:
    """How many calls can be ordered."""
    task = levels.plan.task
    if task.max_calls:
        return task.max_calls * lanes
    kept = row_bytes((*task.entry.results, *task.entry.arguments))
    return max(min(ROOM_BYTES // max(kept, 1), MOST_ROOM), 1)


def _inspector(levels: Levels, room: int) -> Task:
    plan = levels.plan
    task = plan.task
    stacked = tuple(Aval((task.max_calls, *row.shape), row.dtype) for row in task.rows)
    environment = (*task.environment, *stacked, NUMBER)
    arguments = tuple(plan.arguments[0][k].aval for k in levels.integers)
    arguments = ((NUMBER,) * task.numbers) + arguments
    rows = (NUMBER,) * (3 + _most_calls(levels)) + arguments

    def body(token: Any, *operands: Any) -> list[Any]:
        return _Walk(levels, token, operands).result()

    jaxpr = jax.make_jaxpr(body)(TOKEN, *environment, *arguments)
    name, source = f"{task.entry.name}, its calls", task.entry.source
    function = Function(name, jaxpr, (), arguments, rows, (NUMBER,), source)
    return Task((function,), environment, (), Numbering.FRESH, task.max_depth, room)


class _Walk:
    """Traces the inspector's body."""

    def __init__(self, levels: Levels, token: Any, operands: Sequence[Any]) -> None:
        plan = levels.plan
        shared, tables, (lane, *own) = split(operands, len(plan.task.environment), len(plan.task.rows))
        self.levels, self.plan, self.token, self.lane = levels, plan, token, lane
        self.own, self.shared, self.tables = own, shared, tables
        numbers = plan.task.numbers
        values = {plan.arguments[0][k]: x for k, x in zip(levels.integers, own[numbers:], strict=True)}
        values |= {plan.numbers[0]: own[0]} if numbers else {}
        self.values: dict[Var, Any] = values
        self.makers: dict[Var, Op] = {}

    def result(self) -> list[Any]:
        height, path, *calls = self._visit(self.plan.entries[0], (), self.values, self.makers, [])
        return [self.token, height, path, self.lane, *calls, *self.own, height]

    def _visit(
        self,
        at: int,
        choices: tuple[int, ...],
        values: dict[Var, Any],
        makers: dict[Var, Op],
        calls: list[tuple[Any, Any]],
    ) -> list[Any]:
        """Height, path, numbers of the calls."""
        block = self.plan.blocks[at]
        makers = makers | {v: s for s in block.steps if isinstance(s, Op) for v in s.outputs}
        end = block.end
        if isinstance(end, Leave):
            return self._leave(choices, calls)
        if isinstance(end, Goto):
            return self._visit(end.block, choices, values, makers, calls)
        if isinstance(end, Invoke):
            called = self._call(end, values, makers)
            return self._visit(end.block, choices, values, makers, [*calls, called])
        assert isinstance(end, Switch)
        index = self._read(end.index, values, makers).astype(jnp.int32)

        def side(number: int, block: int) -> Callable[[], list[Any]]:
            return lambda: self._visit(block, (*choices, number), dict(values), makers, calls)

        return list(lax.switch(index, [side(n, b) for n, b in enumerate(end.blocks)]))

    def _leave(self, choices: tuple[int, ...], calls: Sequence[tuple[Any, Any]]) -> list[Any]:
        path = next(k for k, p in enumerate(self.levels.paths) if p.choices == choices)
        height = jnp.int32(0)
        for _, below in calls:
            height = jnp.maximum(height, below + 1)
        numbers = [number for number, _ in calls] + [jnp.int32(0)] * (_most_calls(self.levels) - len(calls))
        return [height, jnp.int32(path), *numbers]

    def _call(self, end: Invoke, values: dict[Var, Any], makers: dict[Var, Op]) -> tuple[Any, Any]:
        """The number of a call in the inspector, and its height."""
        numbers = self.plan.task.numbers
        _, *inputs = end.call.inputs
        passed = inputs[numbers:]
        told = [*inputs[:numbers], *(passed[k] for k in self.levels.integers)]
        _, number, height = reference_p.bind(
            self.token,
            *(self._read(a, values, makers) for a in told),
            function=0,
            numbering=Numbering.FRESH,
            results=(NUMBER,),
        )
        return number, height

    def _read(self, atom: Atom, values: dict[Var, Any], makers: dict[Var, Op]) -> Any:
        if isinstance(atom, Const):
            return jnp.asarray(atom.value, atom.aval.dtype)
        if atom in values:
            return values[atom]
        plan = self.plan
        if atom in plan.shared:
            values[atom] = self.shared[plan.shared[atom]]
        elif atom in plan.rows:
            number = values[plan.numbers[0]]
            values[atom] = row(self.tables[plan.rows[atom]], number)
        else:
            step = makers[atom]
            made = step.run(*(self._read(a, values, makers) for a in step.inputs))
            values |= zip(step.outputs, made, strict=True)
        return values[atom]


# -- sorting -------------------------------------------------------------------------------------------------
def _sorted(levels: Levels, walked: tuple[Any, ...], seen: tuple[Any, ...], widths: Sequence[int]) -> Order:
    room, count, status, roots = walked
    height, path, calls, own = seen
    kinds = len(levels.paths)
    size = (levels.plan.task.max_depth + 1) * kinds
    lanes = jnp.int32(roots.shape[0])
    top = _loop(lanes, lambda k, most: jnp.maximum(most, row(height, row(roots, k))), jnp.int32(0))
    top = jnp.minimum(top, levels.plan.task.max_depth)  # what was not walked to its end may be anything
    room *= 2  # `padded` is less than twice as much

    def key(call: Any) -> Any:
        return (top - row(height, call)) * kinds + row(path, call)

    starts, sizes, total = _runs(count, (top + 1) * kinds, size, key, widths)

    def place(c: Any, state: Any) -> Any:
        following, positions = state
        k = key(c)
        at = row(following, k)
        return put(following, k, at + 1), put(positions, c, at)

    none = uninitialised((room,), np.dtype("int32"))
    _, positions = _loop(count, place, (starts, none))

    def tell(c: Any, tables: Any) -> Any:
        k = key(c)
        begin, stop, end = row(starts, k), row(starts, k) + row(sizes, k), row(starts, k + 1)
        known = (row(path, c), begin, stop, end, *(row(x, c) for x in own))
        values = (*known, *(row(positions, row(x, c)) for x in calls))
        at = row(positions, c)

        def write(n: Any, tables: Any) -> Any:
            return [put(x, at + n, y) for x, y in zip(tables, values, strict=True)]

        return _loop(jnp.where(at == stop - 1, end - at, 1), write, tables)

    types = [np.dtype("int32")] * 4 + [x.dtype for x in own] + [np.dtype("int32")] * len(calls)
    tables = _loop(count, tell, [uninitialised((room,), dtype) for dtype in types])
    ends = _loop(lanes, lambda k, x: put(x, k, row(positions, row(roots, k))), roots)
    (kind, begin, stop, end), (lane, number, *integers), below = split(tables, 4, len(own))
    return Order(
        room, total, status, kind, begin, stop, end, lane, number, tuple(integers), tuple(below), ends
    )


def _runs(
    count: Any, keys: Any, size: int, key: Callable[[Any], Any], widths: Sequence[int]
) -> tuple[Any, Any, Any]:
    """Where the calls of every key begin, and behind the last; how many there are; how far they go in all."""
    empty = uninitialised((size + 1,), np.dtype("int32"))
    sizes = _loop(keys, lambda k, x: put(x, k, jnp.int32(0)), empty)
    sizes = _loop(count, lambda c, x: put(x, key(c), row(x, key(c)) + 1), sizes)

    def start(k: Any, state: Any) -> Any:
        starts, first = state
        first += padded(row(sizes, k), widths)
        return put(starts, k + 1, first), first

    starts, total = _loop(keys, start, (put(empty, 0, jnp.int32(0)), jnp.int32(0)))
    return starts, sizes, total


def padded(size: Any, widths: Sequence[int]) -> Any:
    """How many calls the groups hold that run `size` of them: the rest of a run goes into one group more if
    that is more than half full, since a group reads its weights once. Less than twice the size."""
    whole, rest = jnp.int32(0), size
    for width in reversed(widths):
        whole += rest // width * width
        rest = rest % width
        fills = 2 * rest > width
        whole += jnp.where(fills, width, 0)
        rest = jnp.where(fills, 0, rest)
    return whole


def _loop(count: Any, step: Callable[[Any, Any], Any], start: Any) -> Any:
    state = (jnp.int32(0), start)
    return lax.while_loop(lambda s: s[0] < count, lambda s: (s[0] + 1, step(*s)), state)[1]
