"""Runs the calls of one body in parallel if the call tree depends on data but sibling calls are independent.

If the branches of a body and the arguments of its calls do not depend on results of its calls, calls can be
found before any of them returns: breadth first from the root, with a queue. The oldest call computes only its
branch conditions and the arguments of its callees, which join the queue. As soon as `FRONTIER` calls wait,
the units run each of them to its end with a stack of its own. The calls taken from the queue are then
finished in reverse order from the results of their callees.

A single unit gains nothing, so a program planned for one unit has only the stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.recursion.blocks import Leave
from jax_cocktail.recursion.failure import DEPTH
from jax_cocktail.recursion.machine import StackMachine, StackPlan, State
from jax_cocktail.recursion.memory import put, put_rows, row, uninitialised
from jax_cocktail.recursion.paths import Path, independent_paths
from jax_cocktail.recursion.structure import Op, Var
from jax_cocktail.recursion.task import NUMBER, Numbering, row_bytes
from jax_cocktail.recursion.values import CallValues, follow
from jax_cocktail.utask.failure import FINE

FRONTIER = 64  # calls that run in parallel; a power of two
ROOM = 512  # capacity of the queue, taken calls included, if they are small
LEAST_ROOM = 2 * FRONTIER

Values = Mapping[Var, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Siblings:
    """A function whose calls can be found before they run. `paths`: the paths through it; `room`: the
    capacity of the queue, taken calls included."""

    plan: StackPlan
    paths: tuple[Path, ...]
    room: int

    @property
    def most(self) -> int:
        """The most calls that one call makes."""
        return max(len(path.calls) for path in self.paths)


def siblings_of(plan: StackPlan) -> Siblings | str:
    """Plans calls in parallel, or returns the reason why that is impossible."""
    task = plan.task
    if task.numbering is not Numbering.NONE or task.accumulated or task.rows or task.row_results:
        return "every call is recorded for derivatives"
    widest = max(row_bytes((a,)) for a in (NUMBER, *task.entry.arguments, *task.entry.results))
    calls = PROGRAM.replicated_bytes // widest  # every unit has its own copy of the queue
    room = min(ROOM, calls - FRONTIER)
    if room < min(ROOM, LEAST_ROOM):
        return "arguments or results are too large for a queue of calls"
    paths = independent_paths(plan)
    return paths if isinstance(paths, str) else Siblings(plan, paths, room)


def run_siblings(siblings: Siblings, operands: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Runs a task. Returns the status, and the results without the token."""
    search = _Search(siblings, operands)
    state = search.found()
    statuses, results = search.frontier(state)
    state["status"] = jnp.maximum(state["status"], statuses.max())
    return state["status"], [row(x, 0) for x in search.finished(state, results)]


class _Search:
    """Traces the search. State: for each of the `count` calls in the queue its `arguments`, `depth`, `path`
    and the position of its `first` callee; the calls from `head` on wait; `status`."""

    def __init__(self, siblings: Siblings, operands: Sequence[Any]) -> None:
        self.siblings, self.plan, self.operands = siblings, siblings.plan, operands
        _, self.environment, _, self.arguments = self.plan.task.split_operands(operands)
        self.tails = {id(self.plan.blocks[k].end) for k in self.plan.tails}

    # -- the queue ---------------------------------------------------------------------------------------
    def found(self) -> State:
        most, room = self.siblings.most, self.siblings.room

        def goes_on(state: State) -> Any:
            waiting = state["count"] - state["head"]
            enough = (waiting > FRONTIER - most + 1) | (state["count"] > room - most)
            return (waiting > 0) & ~enough & (state["status"] == FINE)

        found: State = lax.while_loop(goes_on, self._oldest, self._initial())
        return found

    def _initial(self) -> State:
        room = self.siblings.room
        depth, path, first = (uninitialised((room,), np.dtype("int32")) for _ in range(3))
        rows = [uninitialised((room, *x.shape), x.dtype) for x in self.arguments]
        return {
            "arguments": [put(x, 0, y) for x, y in zip(rows, self.arguments, strict=True)],
            "depth": put(depth, 0, jnp.int32(0)),
            "path": path,
            "first": first,
            "head": jnp.int32(0),
            "count": jnp.int32(1),
            "status": jnp.int32(FINE),
        }

    def _oldest(self, state: State) -> State:
        known, entry = self._known(state, state["head"]), self.plan.entries[0]
        found: State = follow(self.plan.blocks, entry, known, lambda end, known: None, self._left, state)
        return found

    def _known(self, state: State, at: Any, received: Values | None = None) -> _Known:
        own = zip(self.plan.arguments[0], state["arguments"], strict=True)
        return _Known(self, {v: row(x, at) for v, x in own} | dict(received or {}), {})

    def _left(
        self, end: Leave, choices: tuple[int, ...], known: _Known, calls: Sequence[None], state: State
    ) -> State:
        """The state after the call has reached the end of its path: its callees join the queue."""
        paths = self.siblings.paths
        number = next(k for k, p in enumerate(paths) if p.choices == choices)
        head, count, status = state["head"], state["count"], state["status"]
        rows, depths, own = state["arguments"], state["depth"], row(state["depth"], head)
        invokes = [invoke for invoke, _ in paths[number].calls]
        if invokes:  # one update for all: a second one would modify an array that is still read
            given = [[known.read(a) for a in invoke.call.inputs[1:]] for invoke in invokes]
            rows = [put_rows(x, count, jnp.stack(y)) for x, *y in zip(rows, *given, strict=True)]
            depth = jnp.stack([own if id(invoke) in self.tails else own + 1 for invoke in invokes])
            depths = put_rows(depths, count, depth)
            status = jnp.where(depth.max() >= self.plan.task.max_depth, DEPTH, status)
        return {
            "arguments": rows,
            "depth": depths,
            "path": put(state["path"], head, jnp.int32(number)),
            "first": put(state["first"], head, count),
            "head": head + 1,
            "count": count + len(invokes),
            "status": status,
        }

    # -- the waiting calls -------------------------------------------------------------------------------
    def frontier(self, state: State) -> tuple[Any, list[Any]]:
        """The statuses and results of the waiting calls, in the order of `_order`."""
        head = state["head"]
        head_operands = self.operands[: len(self.operands) - len(self.arguments)]

        def one(_: None, number: Any) -> tuple[None, Any]:
            at = head + number
            is_there = (at < state["count"]) & (state["status"] == FINE)
            at = jnp.where(is_there, at, 0)
            machine = StackMachine(self.plan, [*head_operands, *(row(x, at) for x in state["arguments"])])
            machine.base = row(state["depth"], at)
            ended = machine.final(top=jnp.where(is_there, machine.base, -1))
            return None, (ended["status"], ended["returned"][0])

        _, (statuses, results) = lax.scan(one, None, jnp.asarray(_order()))
        return statuses, results

    def finished(self, state: State, results: Sequence[Any]) -> list[Any]:
        """The results of all calls by position. After a failure nothing runs, since loops might not end."""
        places = np.argsort(_order())
        tables = []
        for x in results:
            table = uninitialised((self.siblings.room + FRONTIER, *x.shape[1:]), x.dtype)
            tables.append(put_rows(table, state["head"], x[places]))

        def finish(path: Path, at: Any, tables: list[Any]) -> list[Any]:
            first = row(state["first"], at)
            received: dict[Var, Any] = {}
            for k, (_, outputs) in enumerate(path.calls):
                received |= zip(outputs[1:], (row(x, first + k) for x in tables), strict=True)
            known = self._known(state, at, received).after(path.steps)
            values = [known.read(a) for a in path.results]
            return [put(x, at, y) for x, y in zip(tables, values, strict=True)]

        def last(carried: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
            at, tables = carried[0] - 1, carried[1]
            ways = [partial(finish, path) for path in self.siblings.paths]
            return at, lax.switch(row(state["path"], at), ways, at, tables)

        count = jnp.where(state["status"] == FINE, state["head"], 0)
        ended: tuple[Any, list[Any]] = lax.while_loop(lambda carried: carried[0] > 0, last, (count, tables))
        return ended[1]


def _order() -> np.ndarray[Any, Any]:
    """The order in which units take calls from the queue, in turn.

    Neighbours go to different units, and so do the first calls of all pairs and the second ones, because the
    first call of a body is often the larger one. (The inverse of the Gray code; its last bits are the
    Thue-Morse sequence.)
    """
    numbers = np.arange(FRONTIER, dtype=np.int32)
    shift = 1
    while shift < FRONTIER:
        numbers ^= numbers >> shift
        shift *= 2
    return numbers


class _Known(CallValues):
    """The known values of one call."""

    def __init__(self, search: _Search, values: dict[Var, Any], makers: Mapping[Var, Op]) -> None:
        super().__init__(values, makers)
        self.search = search

    def outside(self, v: Var) -> Any | None:
        shared = self.search.plan.shared
        return self.search.environment[shared[v]] if v in shared else None
