"""Bodies of recursive functions as basic blocks: straight-line code between calls, branches and loops.

Live-variable analysis finds the values that a block needs from earlier blocks; a call's frame holds only
these. Sums over all calls are updated where their terms are computed, so a side of a branch without a term
adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail.recursion.structure import (
    Atom,
    Call,
    Cond,
    Item,
    Op,
    Repeat,
    Structure,
    Var,
    reads,
)
from jax_cocktail.recursion.task import Aval, zeros

MOVE = "move"


@dataclass(frozen=True, eq=False, slots=True)
class Accumulate:
    """Adds a value to the sum number `target`."""

    target: int
    value: Var

    @property
    def inputs(self) -> tuple[Atom, ...]:
        return (self.value,)


@dataclass(frozen=True, eq=False, slots=True)
class AddInto:
    """Updates the sum number `target` by `run`: (sum, *inputs) -> sum. `run_in_row` updates one row of many
    such sums: (sums, row, *inputs) -> sums."""

    target: int
    run: Callable[..., Any]
    run_in_row: Callable[..., Any]
    inputs: tuple[Atom, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Keep:
    """Stores the factors of a product that is added to a sum later (`recursion.sums`)."""

    site: int
    inputs: tuple[Atom, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Goto:
    block: int

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return ()


@dataclass(frozen=True, eq=False, slots=True)
class Switch:
    index: Atom
    blocks: tuple[int, ...]

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return (self.index,)


@dataclass(frozen=True, eq=False, slots=True)
class Invoke:
    """Calls a function and resumes at `block`, whose `received` are the results. `guard`: the condition of
    the call (`recursion.guards`)."""

    call: Call
    block: int
    guard: Atom | None = None

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return self.call.inputs[1:]  # without the token


@dataclass(frozen=True, eq=False, slots=True)
class Leave:
    """Returns from a function."""

    function: int
    results: tuple[Atom, ...]

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return self.results


Step = Op | Accumulate | AddInto | Keep
End = Goto | Switch | Invoke | Leave


@dataclass(eq=False, slots=True)
class BasicBlock:
    """A basic block. `received`: results of the preceding call; `is_header`: a back edge ends here."""

    function: int
    steps: list[Step] = field(default_factory=list)
    end: End | None = None
    received: tuple[Var, ...] = ()
    is_header: bool = False


def blocks_of(bodies: Sequence[Structure], accumulated: int) -> tuple[list[BasicBlock], list[int]]:
    """The blocks of all functions, and the entry block of each. The results of a body are its token,
    `accumulated` terms of sums, and the results of the function."""
    builder = _Builder()
    entries = []
    for number, body in enumerate(bodies):
        entries.append(builder.new(number))
        _, *rest = body.results
        terms, results = rest[:accumulated], rest[accumulated:]
        sinks = _sinks(body, terms, results)
        last = builder.items(body, entries[-1], sinks)
        for target, term in enumerate(terms):
            if isinstance(term, Var) and term not in sinks:
                builder.blocks[last].steps.append(Accumulate(target, term))
        builder.blocks[last].end = Leave(number, tuple(results))
    return builder.blocks, entries


def _sinks(body: Structure, terms: Sequence[Atom], results: Sequence[Atom]) -> dict[Var, int]:
    """Terms that the body computes and nothing else reads -> their sum."""
    made = {v for item in body.items for v in item.outputs}
    used = {v for item in body.items for v in reads(item)} | {v for v in results if isinstance(v, Var)}
    found = [(v, k) for k, v in enumerate(terms) if isinstance(v, Var) and v in made and v not in used]
    return {v: k for v, k in found if sum(w is v for w in terms) == 1}


class _Builder:
    def __init__(self) -> None:
        self.blocks: list[BasicBlock] = []

    def new(self, function: int) -> int:
        self.blocks.append(BasicBlock(function))
        return len(self.blocks) - 1

    def items(self, body: Structure, at: int, sinks: Mapping[Var, int]) -> int:
        """Appends items to block `at` and returns the block in which they end."""
        sinks = _through_sums(body, sinks)
        for item in body.items:
            at = self._item(item, at, sinks)
            if isinstance(item, Op | Call):
                steps = self.blocks[at].steps
                is_zero = isinstance(item, Op) and item.is_zero
                steps += [Accumulate(sinks[v], v) for v in item.outputs if v in sinks and not is_zero]
        return at

    def _item(self, item: Item, at: int, sinks: Mapping[Var, int]) -> int:
        if isinstance(item, Op):
            self.blocks[at].steps.append(item)
            return at
        function = self.blocks[at].function
        if isinstance(item, Call):
            after = self.new(function)
            self.blocks[after].received = item.outputs
            self.blocks[at].end = Invoke(item, after)
            return after
        if isinstance(item, Cond):
            return self._cond(item, at, sinks)
        return self._while(item, at) if item.condition is not None else self._scan(item, at)

    def _cond(self, item: Cond, at: int, sinks: Mapping[Var, int]) -> int:
        function = self.blocks[at].function
        starts = tuple(self.new(function) for _ in item.sides)
        self.blocks[at].end = Switch(item.index, starts)
        join = self.new(function)
        moved = [k for k, v in enumerate(item.outputs) if v not in sinks]
        summed = [(k, sinks[v]) for k, v in enumerate(item.outputs) if v in sinks]
        for start, side in zip(starts, item.sides, strict=True):
            terms = {}
            kept = [side.results[k] for k in moved]
            inner = _sinks(side, [side.results[k] for k, _ in summed], kept)
            for v, place in inner.items():
                terms[v] = summed[place][1]
            last = self.items(side, start, terms)
            for k, target in summed:
                value = side.results[k]
                if isinstance(value, Var) and value not in terms:
                    self.blocks[last].steps.append(Accumulate(target, value))
            self._move(last, kept, [item.outputs[k] for k in moved])
            self.blocks[last].end = Goto(join)
        return join

    def _move(self, at: int, values: Sequence[Atom], to: Sequence[Var]) -> None:
        if to:
            self.blocks[at].steps.append(Op(lambda *x: x, tuple(values), tuple(to), MOVE))

    # -- loops -------------------------------------------------------------------------------------------
    def _while(self, item: Repeat, at: int) -> int:
        assert item.condition is not None
        function = self.blocks[at].function
        carried, tested = item.body.parameters, item.condition.parameters
        self._move(at, item.carried, carried)
        header = self._header(at)
        self._move(header, carried, tested)
        test = self.items(item.condition, header, {})
        start, after = self.new(function), self.new(function)
        self.blocks[test].end = Switch(item.condition.results[0], (after, start))
        last = self.items(item.body, start, {})
        self._move(last, item.body.results, carried)
        self.blocks[last].end = Goto(header)
        self._move(after, carried, item.outputs)
        return after

    def _header(self, at: int) -> int:
        header = self.new(self.blocks[at].function)
        self.blocks[header].is_header = True
        self.blocks[at].end = Goto(header)
        return header

    def _scan(self, item: Repeat, at: int) -> int:
        """Turns a scan into a loop over a counter that reads and writes rows."""
        function, count = self.blocks[at].function, len(item.carried)
        trip = Var(Aval((), np.dtype("int32")))
        carried, rows = item.body.parameters[:count], item.body.parameters[count:]
        stacks = tuple(Var(v.aval) for v in item.outputs[count:])
        self._move(at, item.carried, carried)
        self._make(at, lambda: [jnp.int32(0)], (), (trip,))
        self._make(at, lambda: [zeros(v.aval) for v in stacks], (), stacks)
        header = self._header(at)
        start, after = self.new(function), self.new(function)
        more = Var(Aval((), np.dtype("bool")))
        self._make(header, lambda i: [i < item.length], (trip,), (more,))
        self.blocks[header].end = Switch(more, (after, start))
        last_row = item.length - 1

        def place(i: Any) -> Any:
            return last_row - i if item.reverse else i

        for x, row in zip(item.stacked, rows, strict=True):
            self._make(
                start, lambda x, i: [lax.dynamic_index_in_dim(x, place(i), keepdims=False)], (x, trip), (row,)
            )
        last = self.items(item.body, start, {})
        for stack, y in zip(stacks, item.body.results[count:], strict=True):
            self._make(
                last,
                lambda s, y, i: [lax.dynamic_update_index_in_dim(s, y, place(i), 0)],
                (stack, y, trip),
                (stack,),
            )
        self._move(last, item.body.results[:count], carried)
        self._make(last, lambda i: [i + 1], (trip,), (trip,))
        self.blocks[last].end = Goto(header)
        self._move(after, (*carried, *stacks), item.outputs)
        return after

    def _make(
        self, at: int, run: Callable[..., Sequence[Any]], inputs: Sequence[Atom], outputs: Sequence[Var]
    ) -> None:
        if outputs:
            self.blocks[at].steps.append(Op(run, tuple(inputs), tuple(outputs)))


def _through_sums(body: Structure, sinks: Mapping[Var, int]) -> dict[Var, int]:
    """Replaces a term that is a sum of two values by these values, if nothing else reads them."""
    found = dict(sinks)
    used: dict[Var, int] = {}
    for item in body.items:
        for v in reads(item):
            used[v] = used.get(v, 0) + 1
    for atom in body.results:
        if isinstance(atom, Var) and atom not in sinks:
            used[atom] = used.get(atom, 0) + 1
    made = {v for item in body.items for v in item.outputs}
    for item in reversed(body.items):
        if not isinstance(item, Op) or item.name not in ("add", "add_any") or item.outputs[0] not in found:
            continue
        values = [v for v in item.inputs if isinstance(v, Var)]
        if len(values) == 2 and all(v in made and used[v] == 1 for v in values):
            target = found.pop(item.outputs[0])
            found |= dict.fromkeys(values, target)
    return found


# -- live variables ------------------------------------------------------------------------------------------
def successors(end: End) -> tuple[int, ...]:
    """The blocks that may follow."""
    if isinstance(end, Switch):
        return end.blocks
    return (end.block,) if isinstance(end, Goto | Invoke) else ()


def live_variables(blocks: Sequence[BasicBlock]) -> list[set[Var]]:
    """The variables that are live at the start of each block. Dead steps are removed."""
    live: list[set[Var]] = [set() for _ in blocks]
    changed = True
    while changed:
        changed = False
        for k in reversed(range(len(blocks))):
            needed = _live_before(blocks[k], live)
            if needed != live[k]:
                live[k], changed = needed, True
    for block in blocks:
        block.steps = _needed_steps(block, live)
    return live


def _live_after(block: BasicBlock, live: Sequence[set[Var]]) -> set[Var]:
    assert block.end is not None
    needed = {v for v in block.end.atoms if isinstance(v, Var)}
    for successor in successors(block.end):
        needed |= live[successor]
    return needed


def _live_before(block: BasicBlock, live: Sequence[set[Var]]) -> set[Var]:
    needed = _live_after(block, live)
    for step in reversed(block.steps):
        _step_back(step, needed)
    return needed - set(block.received)


def _step_back(step: Step, needed: set[Var]) -> Step | None:
    """The live part of a step, if any; updates `needed` to the variables that are live before it."""
    if isinstance(step, Op):
        if needed.isdisjoint(step.outputs):
            return None
        if step.name == MOVE:
            pairs = [(a, v) for a, v in zip(step.inputs, step.outputs, strict=True) if v in needed]
            step = replace(step, inputs=tuple(a for a, _ in pairs), outputs=tuple(v for _, v in pairs))
        needed.difference_update(step.outputs)
    needed.update(v for v in step.inputs if isinstance(v, Var))
    return step


def _needed_steps(block: BasicBlock, live: Sequence[set[Var]]) -> list[Step]:
    needed = _live_after(block, live)
    kept = [_step_back(step, needed) for step in reversed(block.steps)]
    return [step for step in reversed(kept) if step is not None]


def only_returns(blocks: Sequence[BasicBlock], at: int, values: Sequence[Var]) -> bool:
    """True if the code from block `at` on only returns `values`."""
    names: dict[Var, Atom] = {v: v for v in values}
    while True:
        block = blocks[at]
        for step in block.steps:
            if not isinstance(step, Op) or step.name != MOVE:
                return False
            names |= {
                v: names.get(a, a) if isinstance(a, Var) else a
                for a, v in zip(step.inputs, step.outputs, strict=True)
            }
        if isinstance(block.end, Leave):
            found = [names.get(a, a) if isinstance(a, Var) else a for a in block.end.results]
            return len(found) == len(values) and all(a is v for a, v in zip(found, values, strict=True))
        if not isinstance(block.end, Goto) or blocks[block.end.block].is_header:
            return False
        at = block.end.block
