"""Splits products of concatenations if only some parts are recurrent.

    concatenate(x, h) @ W      ->      x @ W[:k] + h @ W[k:]

A cell with a single weight matrix has its input projection on the cycle of its recurrence. The split lets the
projection be distributed (see `distribute`); the recurrent part stays. Narrow floats are summed as float32
and rounded once, as in the whole product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from jax_cocktail.schedule.loops.distribution.fission import components_of
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import LoopUTask, Statement, UOperator, is_a
from jax_cocktail.utask.rewrite import map_body
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import TensorType, Value

NARROW = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class _Joined:
    """A dot with the position (0 or 1) of the operand that is a concatenation along a contracted axis, that
    axis, and its counterpart in the other operand."""

    dot: UOperator
    side: int
    parts: tuple[Value, ...]
    axis: int
    other_axis: int


def split_products(
    loop: LoopUTask, minimum_flops: int, fresh: FreshValues
) -> tuple[tuple[Statement, ...], LoopUTask]:
    """Slices of the weights, to precede the loop, and the loop with all such products split."""
    found = _candidates(loop, minimum_flops)
    if not found:
        return (), loop
    before: list[Statement] = []

    def change(statement: Statement) -> Statement | list[Statement]:
        joined = found.get(statement.outputs[0])
        return statement if joined is None else _apart(joined, before, Builder(fresh, statement.source))

    body = map_body(loop.body, change)
    return tuple(before), replace(loop, body=body)


def _candidates(loop: LoopUTask, minimum_flops: int) -> dict[Value, _Joined]:
    """By result, the dots with fixed weights that are on a cycle although some part is not."""
    body = loop.body.body
    if not any(is_a(s, "concatenate") for s in body):
        return {}
    components, node_of = components_of(loop)
    component = {n: k for k, members in enumerate(components) for n in members}
    found: dict[Value, _Joined] = {}
    for n, statement in enumerate(body):
        joined = _joined(statement, body, node_of)
        if joined is None:
            continue
        own = component[n]
        recurrent = [p in node_of and component[node_of[p]] == own for p in joined.parts]
        if any(recurrent) and _flops(joined, recurrent) >= minimum_flops:
            found[joined.dot.output] = joined
    return found


def _joined(statement: Statement, body: Sequence[Statement], node_of: dict[Value, int]) -> _Joined | None:
    if not is_a(statement, "dot"):
        return None
    for side in (0, 1):
        node = node_of.get(statement.inputs[side], len(body))
        made = body[node] if node < len(body) else None
        if not is_a(made, "concatenate"):
            continue
        names = ("lhs_contract", "rhs_contract")
        axes = [statement.ints(name) for name in names]
        axis = made.number("dimension")
        if statement.inputs[1 - side] in node_of or axis not in axes[side]:
            continue
        other = axes[1 - side][axes[side].index(axis)]
        return _Joined(statement, side, made.inputs, axis, other)
    return None


def _flops(joined: _Joined, recurrent: Sequence[bool]) -> int:
    """The flops of the largest part that leaves the cycle."""
    names = (("lhs_contract", "rhs_contract"), ("lhs_batch", "rhs_batch"))
    taken = {d for pair in names for d in joined.dot.ints(pair[joined.side])}
    free = [n for d, n in enumerate(joined.parts[0].type.shape) if d not in taken]
    columns = joined.dot.output.type.size // max(prod(free), 1)
    sizes = (p.type.size for p, r in zip(joined.parts, recurrent, strict=True) if not r)
    return 2 * columns * max(sizes, default=0)


def _apart(joined: _Joined, before: list[Statement], b: Builder) -> list[Statement]:
    dot = joined.dot
    result = dot.output.type
    wide = TensorType("float32" if result.dtype in NARROW else result.dtype, result.shape)
    total: Value | None = None
    for part, own in zip(joined.parts, _weights(joined, b.to(before)), strict=True):
        inputs = (part, own) if joined.side == 0 else (own, part)
        term = b.emit("dot", inputs, wide, **dict(dot.attributes))
        total = term if total is None else b.binary("add", total, term)
    assert total is not None
    b.define(dot.outputs, "reshape" if wide == result else "convert", (total,))
    return b.out


def _weights(joined: _Joined, b: Builder) -> list[Value]:
    """For each part its slice of the other operand."""
    weights, first, found = joined.dot.inputs[1 - joined.side], 0, []
    for part in joined.parts:
        shape, starts = list(weights.type.shape), [0] * weights.type.rank
        shape[joined.other_axis] = part.type.shape[joined.axis]
        starts[joined.other_axis] = first
        first += part.type.shape[joined.axis]
        found.append(b.slice(weights, starts, shape))
    return found
