"""The stack machine: runs a recursion as a loop with an explicit stack and a branch over resume points.

A call's frame holds only the values that are live across its own calls, and a return label (as in COCKTAILER,
section 3.3). Values that all calls share are stored outside the frames. A call in tail position reuses its
caller's frame, so tail recursion becomes iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from jax_cocktail.recursion.blocks import (
    Accumulate,
    BasicBlock,
    Goto,
    Invoke,
    Keep,
    Leave,
    Switch,
    blocks_of,
    live_variables,
    only_returns,
    successors,
)
from jax_cocktail.recursion.failure import CALLS, DEPTH
from jax_cocktail.recursion.memory import put, replaced, row, uninitialised
from jax_cocktail.recursion.structure import (
    SHORT,
    Atom,
    Call,
    Const,
    Op,
    Structure,
    Var,
    structure,
)
from jax_cocktail.recursion.sums import Site, capacity, product, rewrite, with_products
from jax_cocktail.recursion.task import Aval, Numbering, Task, once, ranges, row_bytes, split, zeros
from jax_cocktail.recursion.unroll import LEVELS, MOST_FRAME_BYTES, Unrolled, unroll
from jax_cocktail.recursion.values import CallValues
from jax_cocktail.utask.failure import FINE

SMALL = 12  # a block of at most this many steps is duplicated at each predecessor
MOST_REPEATED = 128  # the same for a block with all its successors

State = dict[str, Any]


@dataclass(frozen=True, eq=False, slots=True)
class StackPlan:
    """The blocks of a task and the storage of its variables.

    `points`: resume points of the loop, block -> label; `slots`: variable -> place in a frame; `shared`:
    variable -> operand of the environment; `rows`: variable -> array that it is a row of; `levels`: the
    number of levels of calls per frame.
    """

    task: Task
    blocks: tuple[BasicBlock, ...]
    live: tuple[frozenset[Var], ...]
    entries: tuple[int, ...]
    points: dict[int, int]
    slots: dict[Var, int]
    shared: dict[Var, int]
    rows: dict[Var, int]
    numbers: tuple[Var, ...]
    arguments: tuple[tuple[Var, ...], ...]
    tails: frozenset[int]
    sites: tuple[Site, ...]
    levels: int = 1

    @property
    def depth(self) -> int:
        """The maximum number of frames."""
        return self.task.max_depth // self.levels

    @property
    def row_ranges(self) -> tuple[range, ...]:
        """The range of rows of each function."""
        return ranges(len(f.rows) for f in self.task.functions)

    def number_of(self, v: Var) -> Var:
        """The variable with the row number of `v`, which is a row."""
        ranges = zip(self.numbers, self.row_ranges, strict=True)
        return next(number for number, own in ranges if self.rows[v] in own)

    @property
    def frame(self) -> tuple[Aval, ...]:
        return tuple(v.aval for v in self.slots)

    @property
    def tail_calls(self) -> frozenset[Call]:
        ends = (self.blocks[k].end for k in self.tails)
        return frozenset(end.call for end in ends if isinstance(end, Invoke))


def bodies_of(task: Task, most_trips: int = SHORT) -> list[Structure]:
    return [_without_token(structure(f.body, True, most_trips)) for f in task.functions]


@once
def planned(task: Task, unrolled: bool = False, most_trips: int = SHORT) -> StackPlan:
    """Plans a task.

    `unrolled`: with several levels of calls per frame, if that is possible and pays; `most_trips`: the most
    iterations of an unrolled scan.
    """
    bodies = bodies_of(task, most_trips)
    plain = plan_of(task, bodies)
    found = unroll(task, bodies, plain.tail_calls, LEVELS) if unrolled else ""
    if isinstance(found, str):
        return plain
    plan = plan_of(task, found.bodies, found)
    return plan if row_bytes(plan.frame) <= MOST_FRAME_BYTES else plain


def plan_of(task: Task, bodies: Sequence[Structure], unrolled: Unrolled | None = None) -> StackPlan:
    """Plans blocks, live variables and frames."""
    blocks, entries = blocks_of(bodies, len(task.accumulated))
    shared: dict[Var, int] = {}
    rows: dict[Var, int] = {}
    numbers, arguments = [], []
    row_ranges = ranges(len(f.rows) for f in task.functions)
    for body, row_range in zip(bodies, row_ranges, strict=True):
        sizes = (1 + task.numbers, len(task.environment), len(row_range))
        head, environment, own_rows, own = split(body.parameters, *sizes)
        numbers.append(head[1] if task.numbers else Var(Aval((), jnp.int32)))
        shared |= {v: k for k, v in enumerate(environment)}
        rows |= zip(own_rows, row_range, strict=True)
        arguments.append(tuple(own))
    may_keep = bool(task.max_calls) and task.numbering is not Numbering.NONE
    live_variables(blocks)  # removes dead steps, which are no uses
    sites = rewrite(blocks, may_keep)
    live = [
        _refined(names, block.function, task, numbers[block.function], shared, rows)
        for names, block in zip(live_variables(blocks), blocks, strict=True)
    ]
    tails = frozenset(_tails(task, blocks, unrolled))
    points = _points(blocks, entries, tails)
    position = order_of(blocks)
    kept = dict.fromkeys(v for k in points for v in sorted(live[k], key=position))
    return StackPlan(
        task,
        tuple(blocks),
        tuple(live),
        tuple(entries),
        {k: n for n, k in enumerate(points)},
        {v: n for n, v in enumerate(kept)},
        shared,
        rows,
        tuple(numbers),
        tuple(arguments),
        tails,
        sites,
        LEVELS + 1 if unrolled else 1,
    )


def _refined(
    live: set[Var], function: int, task: Task, number: Var, shared: Mapping[Var, int], rows: Mapping[Var, int]
) -> frozenset[Var]:
    """The live variables that a frame must hold: without shared values and rows, but with the row number."""
    found = {v for v in live if v not in shared and v not in rows}
    numbered = task.numbering is Numbering.FRESH or task.functions[function].row_results
    if numbered or any(v in rows for v in live):
        found.add(number)
    return frozenset(found)


def _tails(task: Task, blocks: Sequence[BasicBlock], unrolled: Unrolled | None) -> Iterator[int]:
    """The blocks that end in a tail call."""
    if task.numbering is not Numbering.NONE:
        return
    for k, block in enumerate(blocks):
        if isinstance(block.end, Invoke) and (unrolled is None or block.end.call in unrolled.tails):
            caller, callee = task.functions[block.function], task.functions[block.end.call.function]
            received = blocks[block.end.block].received[1:]
            if caller.key == callee.key and only_returns(blocks, block.end.block, received):
                yield k


def _points(blocks: Sequence[BasicBlock], entries: Sequence[int], tails: Collection[int]) -> list[int]:
    """The resume points: entries of functions, blocks after calls, loop headers, and blocks with several
    predecessors that are too long to duplicate."""
    reached = [0] * len(blocks)
    after = set()
    for k, block in enumerate(blocks):
        assert block.end is not None
        if isinstance(block.end, Invoke):
            after |= set() if k in tails else {block.end.block}
        else:
            for successor in successors(block.end):
                reached[successor] += 1
    long = {k for k, n in enumerate(reached) if n > 1 and len(blocks[k].steps) > SMALL}
    headers = {k for k, block in enumerate(blocks) if block.is_header}
    found = list(dict.fromkeys([*entries, *sorted(after | headers | long)]))
    return found + _repeated(blocks, reached, found)


def _repeated(blocks: Sequence[BasicBlock], reached: Sequence[int], points: Sequence[int]) -> list[int]:
    """Further resume points after many branches, where duplication would multiply all following blocks."""
    further: list[int] = []
    sizes = dict.fromkeys(points, 0)

    def size(k: int) -> int:
        """The number of steps duplicated at each predecessor of the block."""
        if k not in sizes:
            end = blocks[k].end
            following = () if end is None or isinstance(end, Invoke) else successors(end)
            sizes[k] = len(blocks[k].steps) + sum(size(n) for n in following)
            if reached[k] > 1 and sizes[k] > MOST_REPEATED:
                further.append(k)
                sizes[k] = 0
        return sizes[k]

    for k in points:
        end = blocks[k].end
        for following in () if end is None or isinstance(end, Invoke) else successors(end):
            size(following)
    return further


def order_of(blocks: Sequence[BasicBlock]) -> Callable[[Var], int]:
    """A sort key that puts variables in program order."""
    order: dict[Atom, int] = {}
    for block in blocks:
        for step in block.steps:
            for atom in step.inputs:
                order.setdefault(atom, len(order))
        assert block.end is not None
        for atom in (*block.end.atoms, *block.received):
            order.setdefault(atom, len(order))
    return lambda v: order.get(v, -1)


def _without_token(body: Structure) -> Structure:
    """The body with a constant as token: the machine does not need it."""
    return Structure(body.parameters, body.items, (Const(0.0, body.parameters[0].aval), *body.results[1:]))


# -- the loop ------------------------------------------------------------------------------------------------
def run_machine(task: Task, operands: Sequence[Any], unrolled: bool = False) -> tuple[Any, list[Any]]:
    """Runs a task with JAX's own loop and branch. Returns the status, and the results without the token.

    `unrolled`: use several levels of calls per frame if possible.
    """
    plan = planned(task, unrolled)
    state = StackMachine(plan, operands).final()
    kept = zip(plan.sites, state["kept"], state["counts"], strict=True)
    sums = with_products(state["sums"], plan.blocks, plan.sites, [product(*x) for x in kept])
    return state["status"], [*sums, *state["rows"], *state["returned"][0]]


class StackMachine:
    """Traces the pieces of the stack machine.

    State: `label` and `top` of the stack (-1: done), `frames` and return `labels` by depth, the values last
    `returned`, the `number` of the call that returned, the count of `calls`, `sums`, the factors `kept` for
    them with their `counts`, `rows`, `status`.
    """

    def __init__(self, plan: StackPlan, operands: Sequence[Any]) -> None:
        self.plan = plan
        head, self.environment, self.rows, self.arguments = plan.task.split_operands(operands)
        #: the number of active calls around the first one, or None; they count as depth
        self.base: Any = None
        self.number = head[1] - 1 if plan.task.numbers else jnp.int32(0)
        self.registers: dict[Any, int] = {}
        self.returned: list[tuple[Aval, ...]] = []
        for function in plan.task.functions:
            if function.key not in self.registers:
                self.registers[function.key] = len(self.returned)
                self.returned.append(function.results)

    def initial(self) -> State:
        task, plan = self.plan.task, self.plan
        depth, slots = plan.depth, plan.slots
        base, end = (0, 0) if self.base is None else (self.base, len(plan.points))
        frames = [uninitialised((depth, *a.shape), a.dtype) for a in plan.frame]
        first = dict(zip(plan.arguments[0], self.arguments, strict=True)) | {plan.numbers[0]: self.number}
        for v, x in first.items():
            if v in slots:
                frames[slots[v]] = put(frames[slots[v]], base, x)
        return {
            "label": jnp.int32(0),
            "top": jnp.where(self.number >= 0, 0, -1).astype(jnp.int32) if task.numbers else jnp.int32(0),
            "frames": frames,
            "labels": put(uninitialised((depth,), jnp.int32), base, jnp.int32(end)),
            "returned": [[*map(zeros, avals)] for avals in self.returned],
            "number": jnp.int32(0),
            "calls": jnp.int32(1),
            "sums": [*map(zeros, task.accumulated)],
            "rows": [uninitialised((task.max_calls, *a.shape), a.dtype) for a in task.row_results],
            "kept": [
                [uninitialised((capacity(task.max_calls), *a.shape), a.dtype) for a in site.factors]
                for site in plan.sites
            ],
            "counts": [jnp.int32(0) for _ in plan.sites],
            "status": jnp.int32(FINE),
        }

    def final(self, **initial: Any) -> State:
        """The state after the last call has returned. `initial`: initial values other than the default."""
        points: list[Callable[[State], State]] = [partial(self.go_on, k) for k in self.plan.points]
        if self.base is not None:  # the return label of the first call; a test of `top` would slow every step
            points.append(lambda state: state | {"top": jnp.int32(-1)})
        state: State = lax.while_loop(
            lambda state: state["top"] >= 0,
            lambda state: lax.switch(state["label"], points, state),
            self.initial() | initial,
        )
        return state

    def go_on(self, at: int, state: State) -> State:
        """Runs from one resume point to the next."""
        block = self.plan.blocks[at]
        local: dict[Var, Any] = {}
        if block.received:
            invoked = next(b.end for b in self.plan.blocks if isinstance(b.end, Invoke) and b.end.block == at)
            callee = self.plan.task.functions[invoked.call.function]
            values = [jnp.zeros((), jnp.float32)]
            values += [state["number"]] if self.plan.task.numbering is Numbering.FRESH else []
            values += state["returned"][self.registers[callee.key]]
            local = dict(zip(block.received, values, strict=True))
        return self.block(at, _FrameValues(self, state, local))

    def block(self, at: int, frame: _FrameValues) -> State:
        block = self.plan.blocks[at]
        for step in block.steps:
            values = [frame.read(a) for a in step.inputs]
            if isinstance(step, Op):
                frame.define(step.outputs, step.run(*values))
            elif isinstance(step, Keep):
                self.keep(step.site, values, frame)
            else:
                old = frame.state["sums"][step.target]
                new = old + values[0] if isinstance(step, Accumulate) else step.run(old, *values)
                frame.set(sums=replaced(frame.state["sums"], step.target, new))
        end = block.end
        if isinstance(end, Leave):
            return self.leave(end, frame)
        if isinstance(end, Invoke):
            return self.tail_call(end, frame) if at in self.plan.tails else self.call(end, frame)
        if isinstance(end, Goto):
            return self.go_to(end.block, frame)
        assert isinstance(end, Switch)
        index = frame.read(end.index).astype(jnp.int32)
        state: State = lax.switch(index, [partial(self._side, b, frame) for b in end.blocks])
        return state

    def keep(self, site: int, factors: Sequence[Any], frame: _FrameValues) -> None:
        kept, counts = frame.state["kept"], frame.state["counts"]
        rows = [put(x, counts[site], y) for x, y in zip(kept[site], factors, strict=True)]
        frame.set(kept=replaced(kept, site, rows), counts=replaced(counts, site, counts[site] + 1))

    def _side(self, at: int, frame: _FrameValues) -> State:
        return self.go_to(at, frame.copy())

    def go_to(self, at: int, frame: _FrameValues) -> State:
        if at not in self.plan.points:
            return self.block(at, frame)
        frame.store(self.plan.live[at])
        frame.set(label=jnp.int32(self.plan.points[at]))
        return frame.state

    def call(self, end: Invoke, frame: _FrameValues) -> State:
        plan, task, state = self.plan, self.plan.task, frame.state
        top = state["top"] + 1
        arguments = self._arguments(end, frame)
        frame.store(plan.live[end.block] - set(plan.blocks[end.block].received))
        full = top >= plan.depth
        status = jnp.where(full, DEPTH, state["status"])
        if task.numbering is Numbering.FRESH:
            many = state["calls"] >= task.max_calls
            full, status = full | many, jnp.where(many, CALLS, status)
            frame.set(calls=state["calls"] + 1)
        frame.set(
            frames=self._passed(frame.state["frames"], arguments, top),
            labels=put(state["labels"], top, jnp.int32(plan.points[end.block])),
            label=jnp.int32(plan.points[plan.entries[end.call.function]]),
            top=jnp.where(full, -1, top),  # a test of the status, which is fine before, would slow every call
            status=status,
        )
        return frame.state

    def tail_call(self, end: Invoke, frame: _FrameValues) -> State:
        plan = self.plan
        arguments = self._arguments(end, frame)
        frame.set(
            frames=self._passed(frame.state["frames"], arguments, frame.state["top"]),
            label=jnp.int32(plan.points[plan.entries[end.call.function]]),
        )
        return frame.state

    def _arguments(self, end: Invoke, frame: _FrameValues) -> dict[Var, Any]:
        """The values of the callee's parameters, including its number."""
        plan, callee = self.plan, end.call.function
        _, *inputs = end.call.inputs
        given = inputs[: plan.task.numbers]
        values = {v: frame.read(a) for v, a in zip(plan.arguments[callee], inputs[len(given) :], strict=True)}
        number = frame.read(given[0]) if given else frame.state["calls"]
        return values | {plan.numbers[callee]: number}

    def _passed(self, frames: list[Any], arguments: Mapping[Var, Any], at: Any) -> list[Any]:
        for v, x in arguments.items():
            if v in self.plan.slots:
                frames = replaced(frames, self.plan.slots[v], put(frames[self.plan.slots[v]], at, x))
        return frames

    def leave(self, end: Leave, frame: _FrameValues) -> State:
        task, state = self.plan.task, frame.state
        function = task.functions[end.function]
        own = ranges(len(f.row_results) for f in task.functions)[end.function]
        kept, results = split([frame.read(a) for a in end.results], len(own))
        number, rows = self.plan.numbers[end.function], state["rows"]
        for k, value in zip(own, kept, strict=True):
            rows = replaced(rows, k, put(rows[k], frame.read(number), value))
        if task.numbering is Numbering.FRESH:
            frame.set(number=frame.read(number))
        returned = replaced(state["returned"], self.registers[function.key], results)
        frame.set(
            returned=returned, rows=rows, label=row(state["labels"], state["top"]), top=state["top"] - 1
        )
        return frame.state


class _FrameValues(CallValues):
    """The current call: values computed since the last resume point, and values read from the stack."""

    def __init__(self, machine: StackMachine, state: State, received: dict[Var, Any]) -> None:
        super().__init__(received, {})
        self.machine, self.state, self.new = machine, state, set(received)

    def copy(self) -> _FrameValues:
        other = self.after()
        other.new = set(self.new)
        return other

    def set(self, **changes: Any) -> None:
        self.state = self.state | changes

    def define(self, variables: Sequence[Var], values: Sequence[Any]) -> None:
        self.values |= zip(variables, values, strict=True)
        self.new.update(variables)

    def outside(self, v: Var) -> Any | None:
        machine, plan = self.machine, self.machine.plan
        if v in plan.shared:
            return machine.environment[plan.shared[v]]
        if v in plan.rows:
            return row(machine.rows[plan.rows[v]], self.read(plan.number_of(v)))
        return row(self.state["frames"][plan.slots[v]], self.state["top"]) if v in plan.slots else None

    def store(self, live: Collection[Var]) -> None:
        """Writes new values that are live later into the frame."""
        frames, slots = self.state["frames"], self.machine.plan.slots
        for v in sorted((v for v in live if v in self.new), key=slots.__getitem__):
            frames = replaced(frames, slots[v], put(frames[slots[v]], self.state["top"], self.values[v]))
        self.set(frames=frames)
        self.new.clear()
