"""Orders the calls of a recursion before any of them runs, by decreasing height above the leaves.

The inspector is a task of its own: the function reduced to its branches and the integer arguments of its
calls. It records every call. A counting sort then orders the calls by height and path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail.recursion.blocks import MOVE, Invoke, Leave
from jax_cocktail.recursion.machine import StackMachine, planned
from jax_cocktail.recursion.memory import put, row, uninitialised
from jax_cocktail.recursion.paths import LevelPlan
from jax_cocktail.recursion.reference import reference_p
from jax_cocktail.recursion.structure import Var
from jax_cocktail.recursion.task import (
    NUMBER,
    TOKEN,
    Aval,
    Function,
    Numbering,
    Task,
    affordable,
    row_bytes,
    split,
)
from jax_cocktail.recursion.values import CallValues, follow

ROOM_BYTES = 16 << 20  # memory for the records of calls if `max_calls` is not given
MOST_ROOM = 1 << 14
MOST_BYTES = 1 << 30  # the limit if it is given but no tape is stored
ORDER_COLUMNS = 12  # numbers that the order stores per call, without those of its callees
NONE = -1  # the number and the height of a call that does not happen


@dataclass(frozen=True, slots=True)
class Axes:
    """The batch axes that a value has. Batch elements are numbered over all axes, the last one fastest, so
    that one axis can replace them."""

    sizes: tuple[int, ...]
    flags: tuple[bool, ...]

    @property
    def any(self) -> bool:
        return any(self.flags)

    @property
    def count(self) -> int:
        """The number of distinct values."""
        return math.prod(self.own)

    @property
    def own(self) -> tuple[int, ...]:
        return tuple(size for size, flag in zip(self.sizes, self.flags, strict=True) if flag)

    def place(self, element: Any) -> Any:
        """The index of a batch element's value."""
        if all(self.flags):
            return element
        found, inside, stride = jnp.zeros_like(element), 1, 1
        for size, flag in zip(self.sizes[::-1], self.flags[::-1], strict=True):
            if flag:
                own = lax.rem(lax.div(element, jnp.int32(inside)), jnp.int32(size))
                found, stride = found + own * stride, stride * size
            inside *= size
        return found

    def row(self, value: Any, element: Any) -> Any:
        """The value of a batch element."""
        return row(value, self.place(element)) if self.any else value

    def joined(self, value: Any) -> Any:
        """Merges these axes of a value into one."""
        rest = value.shape[len(self.own) :]
        return value.reshape(self.count, *rest) if len(self.own) > 1 else value

    def spread(self, value: Any) -> Any:
        """Broadcasts a value with these axes to every batch element."""
        if self.any and all(self.flags):
            return self.joined(value)
        rest = value.shape[len(self.own) :]
        shape = (*self.sizes, *rest)
        own = [k for k, flag in enumerate(self.flags) if flag]
        every = lax.broadcast_in_dim(value, shape, (*own, *range(len(self.sizes), len(shape))))
        return every.reshape(math.prod(self.sizes), *rest) if len(self.sizes) != 1 else every

    def split(self, values: Any) -> Any:
        """The inverse of `joined`."""
        return values.reshape(*self.own, *values.shape[1:]) if len(self.own) > 1 else values

    def summed(self, every: Any) -> Any:
        """Reduces the values of all batch elements to these axes, by summing over the others."""
        apart = every if len(self.sizes) == 1 else every.reshape(*self.sizes, *every.shape[1:])
        missing = tuple(k for k, flag in enumerate(self.flags) if not flag)
        return apart.sum(axis=missing, dtype=apart.dtype) if missing else apart


@dataclass(frozen=True, eq=False, slots=True)
class Forest:
    """The operands of one recursion for every batch element.

    `size`: the number of batch elements; `environment`: values with their batch axes (all other operands have
    all axes); `results`: the axes of the task's results, without the token.
    """

    size: int
    environment: tuple[tuple[Any, Axes], ...]
    rows: tuple[Any, ...]
    numbers: tuple[Any, ...]
    arguments: tuple[Any, ...]
    results: tuple[Axes, ...]

    def own(self, element: Any) -> list[Any]:
        """The environment of a batch element."""
        return [axes.row(x, element) for x, axes in self.environment]


@dataclass(frozen=True, eq=False, slots=True)
class Order:
    """The calls of all batch elements by position.

    There are `count` calls in arrays of length `room`. Each has the kind of its `path`, its `element` (batch
    element) and `number`; the `begin` and `end` of its run, whose calls have one height and kind; `integers`,
    its integer arguments; and `calls`, the positions of its callees (`room`: no call). `roots`: the positions
    of the first calls. `status`: an error if there was no room.

    From `stop` to the end of a run, its last call is repeated so that few groups cover the run. Its results
    are then written several times, but it counts once.
    """

    room: int
    count: Any
    status: Any
    path: Any
    begin: Any
    stop: Any
    end: Any
    element: Any
    number: Any
    integers: tuple[Any, ...]
    calls: tuple[Any, ...]
    roots: Any


def order_calls(levels: LevelPlan, forest: Forest, widths: Sequence[int]) -> Order:
    """Walks and sorts the calls. `widths`: the sizes of the groups that will run them, ascending from 1."""
    task = levels.plan.task
    room = room_of(levels, forest.size)
    inspector = _inspector(levels, room)
    arguments = [forest.arguments[k] for k in levels.integers.positions[0]]

    def walk(element: Any, state: Any) -> Any:
        rows, count, status, roots = state
        tables = [row(x, element) for x in forest.rows]
        told = [row(x, element) for x in forest.numbers]
        told += _inspector_arguments(levels, 0, [row(x, element) for x in arguments])
        operands = [jnp.zeros((), TOKEN.dtype), *forest.own(element), *tables, element, *told]
        machine = StackMachine(planned(inspector), operands)
        machine.number = count
        walked = machine.final(rows=rows, calls=count + 1)
        status = jnp.maximum(status, walked["status"])
        if task.numbering is Numbering.FRESH:  # the room is shared, but each batch element has its own limit
            too_many = walked["calls"] - count > task.max_calls
            status = jnp.maximum(status, too_many.astype(status.dtype))
        for number in forest.numbers:  # negative: this batch element makes no call
            status = jnp.maximum(status, (row(number, element) < 0).astype(status.dtype))
        return walked["rows"], walked["calls"], status, put(roots, element, count)

    rows = [uninitialised((room, *a.shape), a.dtype) for a in inspector.row_results]
    start = (rows, jnp.int32(0), jnp.int32(0), uninitialised((forest.size,), np.dtype("int32")))
    rows, count, status, roots = _loop(jnp.int32(forest.size), walk, start)
    (height, path, element), calls, own = split(rows, 3, levels.most_calls)
    first = roots[element[:room]]
    numbers = own[:1] if task.numbers else [jnp.arange(room, dtype=jnp.int32) - first]
    seen = (height, path, calls, [element, *numbers, *own[task.numbers :]])
    return _sorted(levels, (room, count, status, roots), seen, widths)


def room_of(levels: LevelPlan, elements: int) -> int:
    """The number of calls that can be ordered."""
    task = levels.plan.task
    types = (*levels.results.types, *levels.integers.types, *levels.floats.types)
    if not task.max_calls:
        return affordable(types, ROOM_BYTES, MOST_ROOM)
    if task.numbering is not Numbering.NONE:  # the sums of a batch element have room for all its calls' terms
        return task.max_calls * elements
    places = (NUMBER,) * (ORDER_COLUMNS + 2 * levels.most_calls)
    return min(task.max_calls * elements, max(MOST_BYTES // (2 * row_bytes((*types, *places))), 1))


def _inspector(levels: LevelPlan, room: int) -> Task:
    """The inspector: one function for all functions of the task. If there are several, it takes a number."""
    plan = levels.plan
    task = plan.task
    stacked = tuple(Aval((task.max_calls, *row.shape), row.dtype) for row in task.rows)
    environment = (*task.environment, *stacked, NUMBER)
    numbers = (NUMBER,) * task.numbers
    kept = (*numbers, *levels.integers.types)
    arguments = (*numbers, *(NUMBER for _ in _which(levels, 0)), *levels.integers.types)
    rows = (NUMBER,) * (3 + levels.most_calls) + kept

    def body(token: Any, *operands: Any) -> list[Any]:
        return _Walk(levels, token, operands).result()

    jaxpr = jax.make_jaxpr(body)(TOKEN, *environment, *arguments)
    name, source = f"{task.entry.name}, its calls", task.entry.source
    function = Function(name, jaxpr, (), arguments, rows, (NUMBER,), source)
    return Task((function,), environment, (), Numbering.FRESH, task.max_depth, room)


def _which(levels: LevelPlan, function: int) -> list[Any]:
    return [jnp.int32(function)] if len(levels.plan.entries) > 1 else []


def _inspector_arguments(levels: LevelPlan, function: int, values: Sequence[Any]) -> list[Any]:
    """The inspector's arguments for a call: the function's number, and the integer arguments in columns."""
    own = dict(zip(levels.integers.places[function], values, strict=True))
    columns = enumerate(levels.integers.types)
    return [
        *_which(levels, function),
        *(own[k] if k in own else jnp.zeros(a.shape, a.dtype) for k, a in columns),
    ]


class _Walk:
    """Traces the inspector's body."""

    def __init__(self, levels: LevelPlan, token: Any, operands: Sequence[Any]) -> None:
        plan = levels.plan
        shared, tables, (element, *own) = split(operands, len(plan.task.environment), len(plan.task.rows))
        self.levels, self.plan, self.token, self.element = levels, plan, token, element
        self.shared, self.tables = shared, tables
        self.numbers, self.which, self.integers = split(own, plan.task.numbers, len(_which(levels, 0)))

    def result(self) -> list[Any]:
        sides = [partial(self._function, k) for k in range(len(self.plan.entries))]
        height, path, *calls = lax.switch(self.which[0], sides) if self.which else sides[0]()
        return [self.token, height, path, self.element, *calls, *self.numbers, *self.integers, height]

    def _function(self, function: int) -> list[Any]:
        plan, columns = self.plan, self.levels.integers
        own = plan.arguments[function]
        pairs = zip(columns.positions[function], columns.places[function], strict=True)
        values = {own[k]: self.integers[place] for k, place in pairs}
        values |= zip(plan.numbers[function : function + 1], self.numbers, strict=False)
        found = follow(plan.blocks, plan.entries[function], _Seen(self, values), self._call, self._leave)
        return list(found)

    def _leave(
        self, end: Leave, choices: tuple[int, ...], seen: _Seen, calls: Sequence[tuple[Any, Any]]
    ) -> list[Any]:
        """The height, the kind of path and the callees' numbers."""
        paths = enumerate(self.levels.paths)
        path = next(k for k, p in paths if p.function == end.function and p.choices == choices)
        height = jnp.int32(0)
        for _, below in calls:
            height = jnp.maximum(height, below + 1)
        numbers = [number for number, _ in calls] + [jnp.int32(0)] * (self.levels.most_calls - len(calls))
        return [height, jnp.int32(self.levels.kinds[path]), *numbers]

    def _call(self, end: Invoke, seen: _Seen) -> tuple[Any, Any]:
        """The inspector's number of a call, and its height."""
        numbers = self.plan.task.numbers
        _, *inputs = end.call.inputs
        passed, callee = inputs[numbers:], end.call.function
        if end.guard is not None:
            made, guard = replace(end, guard=None), seen.read(end.guard)
            none = (jnp.int32(NONE), jnp.int32(NONE))
            return tuple(lax.cond(guard, lambda: self._call(made, seen.after()), lambda: none))
        integers = [seen.read(passed[k]) for k in self.levels.integers.positions[callee]]
        _, number, height = reference_p.bind(
            self.token,
            *map(seen.read, inputs[:numbers]),
            *_inspector_arguments(self.levels, callee, integers),
            function=0,
            numbering=Numbering.FRESH,
            results=(NUMBER,),
        )
        return number, height


class _Seen(CallValues):
    """The known values of a call during the walk through its blocks."""

    def __init__(self, walk: _Walk, values: dict[Var, Any]) -> None:
        super().__init__(values, {})
        self.walk = walk

    def outside(self, v: Var) -> Any | None:
        walk, plan = self.walk, self.walk.plan
        if v in plan.shared:
            return walk.shared[plan.shared[v]]
        return row(walk.tables[plan.rows[v]], self.read(plan.number_of(v))) if v in plan.rows else None

    def _make(self, v: Var) -> None:
        step = self.makers.get(v)
        if step is not None and step.name == MOVE:  # other values of the same move may be unknown
            self.values[v] = self.read(step.inputs[step.outputs.index(v)])
        else:
            super()._make(v)


# -- sorting -------------------------------------------------------------------------------------------------
def _sorted(
    levels: LevelPlan, walked: tuple[Any, ...], seen: tuple[Any, ...], widths: Sequence[int]
) -> Order:
    room, count, status, roots = walked
    height, path, calls, own = seen
    kinds = len(levels.bodies)
    size = (levels.plan.task.max_depth + 1) * kinds
    elements = jnp.int32(roots.shape[0])
    top = _loop(elements, lambda k, most: jnp.maximum(most, row(height, row(roots, k))), jnp.int32(0))
    top = jnp.minimum(top, levels.plan.task.max_depth)  # an incomplete walk leaves arbitrary heights
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

    def place_of(call: Any) -> Any:
        if not levels.has_guards:
            return row(positions, call)
        return jnp.where(call == NONE, room, row(positions, jnp.maximum(call, 0)))

    def tell(c: Any, tables: Any) -> Any:
        k = key(c)
        begin, stop, end = row(starts, k), row(starts, k) + row(sizes, k), row(starts, k + 1)
        known = (row(path, c), begin, stop, end, *(row(x, c) for x in own))
        values = (*known, *(place_of(row(x, c)) for x in calls))
        at = row(positions, c)

        def write(n: Any, tables: Any) -> Any:
            return [put(x, at + n, y) for x, y in zip(tables, values, strict=True)]

        return _loop(jnp.where(at == stop - 1, end - at, 1), write, tables)

    types = [*[NUMBER] * 4, *(Aval(x.shape[1:], x.dtype) for x in own), *[NUMBER] * len(calls)]
    tables = _loop(count, tell, [uninitialised((room, *a.shape), a.dtype) for a in types])
    ends = _loop(elements, lambda k, x: put(x, k, row(positions, row(roots, k))), roots)
    (kind, begin, stop, end), (element, number, *integers), below = split(tables, 4, len(own))
    return Order(
        room, total, status, kind, begin, stop, end, element, number, tuple(integers), tuple(below), ends
    )


def _runs(
    count: Any, keys: Any, size: int, key: Callable[[Any], Any], widths: Sequence[int]
) -> tuple[Any, Any, Any]:
    """The start of each key's run, with the end of the last one; the sizes of the runs; the total length."""
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
    """The total size of the groups that run `size` calls, less than twice the size.

    The remainder of a run goes into one larger group if that is more than half full, because a group reads
    the weights once.
    """
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
