"""Predication of branches around calls: both sides run, without the calls of the side not taken.

A function that may call each of many children has a path for every subset of them. Predication avoids this:
the sides of a branch run one after the other, a *guard* on each call decides whether it happens, sums
get zeros from the side not taken, and a select picks the results of the branch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_cocktail.primitives.jaxprs import equations_inside
from jax_cocktail.recursion.blocks import (
    MOVE,
    Accumulate,
    BasicBlock,
    Goto,
    Invoke,
    Keep,
    Step,
    Switch,
    successors,
)
from jax_cocktail.recursion.structure import Atom, Op, Var
from jax_cocktail.recursion.task import Aval

ENDLESS = frozenset({"while", "recursion"})  # primitives whose duration is unknown
COSTLY = ENDLESS | {"dot_general", "conv_general_dilated", "scan", "sort"}


@dataclass(frozen=True, slots=True)
class Branch:
    """A switch at the end of a block, the blocks of its straight-line sides, and their join."""

    at: int
    sides: tuple[tuple[int, ...], ...]
    join: int


def branches(blocks: Sequence[BasicBlock], function: int) -> list[Branch]:
    """The branches of a function whose sides are straight-line code and are safe to run when not taken."""
    found = [_branch(blocks, k) for k, block in enumerate(blocks) if block.function == function]
    return [branch for branch in found if branch is not None and not _has(blocks, branch, ENDLESS)]


def is_cheap(blocks: Sequence[BasicBlock], branch: Branch) -> bool:
    """True if running all sides costs little."""
    steps = [step for side in branch.sides for k in side for step in blocks[k].steps]
    return not any(isinstance(step, Keep) for step in steps) and not _has(blocks, branch, COSTLY)


def _branch(blocks: Sequence[BasicBlock], at: int) -> Branch | None:
    end = blocks[at].end
    if not isinstance(end, Switch):
        return None
    chains = [_chain(blocks, k) for k in end.blocks]
    join = next((k for k in chains[0] if all(k in chain for chain in chains)), None)
    if join is None:
        return None
    return Branch(at, tuple(tuple(chain[: chain.index(join)]) for chain in chains), join)


def _chain(blocks: Sequence[BasicBlock], at: int) -> list[int]:
    """The blocks that follow a block unconditionally, itself included."""
    found: list[int] = []
    while not blocks[at].is_header:
        found.append(at)
        end = blocks[at].end
        if not isinstance(end, Goto | Invoke):
            break
        (at,) = successors(end)
    return found


def _has(blocks: Sequence[BasicBlock], branch: Branch, names: frozenset[str]) -> bool:
    steps = (step for side in branch.sides for k in side for step in blocks[k].steps)
    return any(isinstance(step, Op) and uses(step, names) for step in steps)


def uses(step: Op, names: Collection[str]) -> bool:
    """True if an operation is, or contains, one of these primitives."""
    return step.name in names or contains(step, names)


def contains(item: Any, names: Collection[str]) -> bool:
    """True if the jaxprs in an operation or equation use one of these primitives."""
    return any(e.primitive.name in names for e in equations_inside(item))


def guarded(blocks: Sequence[BasicBlock], found: Sequence[Branch]) -> tuple[BasicBlock, ...]:
    """The blocks with guards in place of these branches."""
    made = [replace(block, steps=list(block.steps)) for block in blocks]
    for branch in found:
        _straighten(made, branch)
    return tuple(made)


def _straighten(blocks: list[BasicBlock], branch: Branch) -> None:
    before = blocks[branch.at]
    assert isinstance(before.end, Switch)
    index, count = before.end.index, len(branch.sides)
    moves = [_last_move(blocks[side[-1]]) for side in branch.sides]
    outputs = moves[0].outputs if moves[0] is not None else ()
    if any(move is None or move.outputs != outputs for move in moves):
        outputs = ()  # the sides pass no values to the join
    sides: list[tuple[Var, ...]] = []
    for number, side in enumerate(branch.sides):
        guard = Var(Aval((), np.dtype("bool")))
        before.steps.append(Op(partial(_is_taken, number, count), (index,), (guard,)))
        own = tuple(Var(v.aval) for v in outputs)
        for k in side:
            _guard(blocks[k], guard, dict(zip(outputs, own, strict=True)))
        sides.append(own)
    starts = [*(side[0] for side in branch.sides), branch.join]
    before.end = Goto(starts[0])
    for side, following in zip(branch.sides, starts[1:], strict=True):
        blocks[side[-1]].end = Goto(following)
    last = blocks[branch.sides[-1][-1]]
    for v, values in zip(outputs, zip(*sides, strict=True), strict=True):
        last.steps.append(Op(partial(_select, count), (index, *values), (v,)))


def _last_move(block: BasicBlock) -> Op | None:
    last = block.steps[-1] if block.steps else None
    return last if isinstance(last, Op) and last.name == MOVE else None


def _guard(block: BasicBlock, guard: Var, names: dict[Var, Var]) -> None:
    """Disables a block's effects if its side is not taken. `names`: new names of its values for the join."""
    steps: list[Step] = []
    for step in block.steps:
        if isinstance(step, Op):
            outputs = tuple(names.get(v, v) for v in step.outputs)
            steps.append(step if outputs == step.outputs else replace(step, outputs=outputs))
            continue
        inputs = []
        for atom in step.inputs:
            inputs.append(Var(atom.aval))
            steps.append(Op(_or_zeros, (guard, atom), (inputs[-1],)))
        if isinstance(step, Accumulate):
            steps.append(Accumulate(step.target, inputs[0]))
        else:
            steps.append(replace(step, inputs=tuple(inputs)))
    if isinstance(block.end, Invoke):
        both: Atom = guard
        if block.end.guard is not None:
            both = Var(guard.aval)
            steps.append(Op(lambda x, y: [x & y], (guard, block.end.guard), (both,)))
        block.end = replace(block.end, guard=both)
    block.steps = steps


def _taken(count: int, index: Any) -> Any:
    """The side that JAX takes, with the index clamped."""
    return jnp.clip(index.astype(jnp.int32), 0, count - 1)


def _is_taken(number: int, count: int, index: Any) -> list[Any]:
    return [_taken(count, index) == number]


def _select(count: int, index: Any, *values: Any) -> list[Any]:
    taken, found = _taken(count, index), values[0]
    for number, value in enumerate(values[1:], start=1):
        found = jnp.where(taken == number, value, found)
    return [found]


def _or_zeros(guard: Any, value: Any) -> list[Any]:
    return [jnp.where(guard, value, jnp.zeros_like(value))]
