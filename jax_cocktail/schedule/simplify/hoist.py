"""Hoisting: moves loop-invariant work out of the loop.

Only work that is worth a buffer moves: anchors, expensive element operators, producers of an anchor's operand
(so that transposed weights are one view outside), and arrays that get one from the loop. Cheap invariant
element operators stay: they fuse into the body's lane loops at no cost. In the loops of a thread, reads move
as well: their results are registers, and a compiler does not move a load over a store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.schedule.simplify.unread_carries import unread_carries
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram, by_threads
from jax_cocktail.utask.operators import PARTIAL, PRODUCTS
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.rewrite import map_regions, rewrite, rewrite_region, with_body
from jax_cocktail.utask.types import Value


def hoist(program: UProgram, remark: Listener = nobody) -> UProgram:
    """Returns its argument if nothing moves. Inner loops are first: their work may leave outer loops too."""

    def change(statement: Statement) -> Statement | Sequence[Statement]:
        if by_threads(statement):
            inner = partial(_change, reads=True)
            statement = map_regions(statement, lambda region: rewrite_region(region, inner))
        return _change(statement, remark)

    return rewrite(program, change)


def _change(
    statement: Statement, remark: Listener = nobody, reads: bool = False
) -> Statement | Sequence[Statement]:
    return _loop(statement, remark, reads) if isinstance(statement, LoopUTask) else statement


def _loop(loop: LoopUTask, remark: Listener, reads: bool) -> list[Statement]:
    """Moves what is invariant out of a loop's body and condition, in front of the loop."""
    moved: list[UOperator] = []

    def leave(region: Region) -> Region:
        kept = unread_carries(loop).values() if region is loop.body else ()
        wanted = _wanted(region, _invariant(region), kept, reads)
        moved.extend(s for s in region.body if isinstance(s, UOperator) and s.outputs[0] in wanted)
        return with_body(region, (s for s in region.body if s.outputs[0] not in wanted))

    found = map_regions(loop, leave)
    if moved:
        what = ", ".join(f"{count} {kind}" for kind, count in Counter(m.kind for m in moved).items())
        remark(Remark("hoist", True, f"out of the loop: {what}", loop.source))
    return [*moved, found]


def _invariant(body: Region) -> dict[Value, UOperator]:
    """Operators, by first result, whose operands no iteration changes. An array that every iteration fills
    stays inside: outside, every iteration would have to copy it first."""
    varying = set(body.parameters)
    found: dict[Value, UOperator] = {}
    for statement in body.body:
        steady = varying.isdisjoint(statement.inputs)
        if isinstance(statement, UOperator) and steady and not statement.facts.distinct:
            found[statement.outputs[0]] = statement
        else:
            varying.update(statement.outputs)
    return found


def _wanted(
    body: Region, invariant: Mapping[Value, UOperator], kept: Iterable[Value], reads: bool
) -> set[Value]:
    """First results of the operators that leave: those worth it, the operands of these and of matmuls, and
    arrays that every trip would store again, only to be kept. `reads`: those that read memory, too."""
    made = {v: s for s in invariant.values() for v in s.outputs}
    wanted: set[Value] = set()

    def want(value: Value) -> None:
        operator = made.get(value)
        if operator is not None and operator.outputs[0] not in wanted:
            wanted.add(operator.outputs[0])
            for operand in operator.inputs:
                want(operand)

    for value in kept:
        if not value.type.is_scalar:
            want(value)
    for statement in body.body:
        if statement.outputs[0] in invariant and _is_worth(invariant[statement.outputs[0]], reads):
            want(statement.outputs[0])
        elif isinstance(statement, UOperator) and statement.kind in PRODUCTS:
            for operand in statement.inputs:
                if not operand.type.is_scalar:
                    want(operand)
    return wanted


def _is_worth(operator: UOperator, reads: bool) -> bool:
    if not operator.facts.total:  # a loop without iterations must not fail
        return False
    if reads and operator.kind in PARTIAL:
        return True
    return not operator.is_element or operator.facts.cost >= PROGRAM.hoisted_flops
