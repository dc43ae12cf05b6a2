"""Products of concatenations, taken apart where only some parts are recurrent.

    concatenate(x, h) @ W      ->      x @ W[:k] + h @ W[k:]

A cell that is written with one matrix has its input projection on the cycle of its recurrence. Once apart,
the projection can be distributed (see `distribute`); the recurrent part stays. Narrow floats are summed as
float32 and rounded once, as the whole product was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import cast

from jax_cocktail.schedule.loops.distribution.division import components_of
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import TensorType, Value

NARROW = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class _Joined:
    """A dot; the side (0 or 1) of its operand that is a concatenation along a contracted axis; that axis; the
    same axis of the other operand."""

    dot: UOperator
    side: int
    parts: tuple[Value, ...]
    axis: int
    other_axis: int


def split_products(
    loop: LoopUTask, minimum_flops: int, fresh: FreshValues
) -> tuple[tuple[UOperator, ...], LoopUTask]:
    """Slices of weights for in front of the loop, and the loop with all such products taken apart."""
    found = _candidates(loop, minimum_flops)
    if not found:
        return (), loop
    before: list[UOperator] = []
    body: list[Statement] = []
    for statement in loop.body.body:
        joined = found.get(statement.outputs[0])
        body += (statement,) if joined is None else _apart(joined, before, fresh)
    inner = Region(loop.body.parameters, tuple(body), loop.body.results)
    return tuple(before), replace(loop, body=inner)


def _candidates(loop: LoopUTask, minimum_flops: int) -> dict[Value, _Joined]:
    """By their results, dots with fixed weights that are on a cycle which some part is not on."""
    body = loop.body.body
    if not any(isinstance(s, UOperator) and s.kind == "concatenate" for s in body):
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
    if not isinstance(statement, UOperator) or statement.kind != "dot":
        return None
    for side in (0, 1):
        node = node_of.get(statement.inputs[side], len(body))
        made = body[node] if node < len(body) else None
        if not isinstance(made, UOperator) or made.kind != "concatenate":
            continue
        names = ("lhs_contract", "rhs_contract")
        axes = [cast(tuple[int, ...], statement[name]) for name in names]
        axis = cast(int, made["dimension"])
        if statement.inputs[1 - side] in node_of or axis not in axes[side]:
            continue
        other = axes[1 - side][axes[side].index(axis)]
        return _Joined(statement, side, made.inputs, axis, other)
    return None


def _flops(joined: _Joined, recurrent: Sequence[bool]) -> int:
    """Of the largest part that leaves the cycle."""
    names = (("lhs_contract", "rhs_contract"), ("lhs_batch", "rhs_batch"))
    taken = {d for pair in names for d in cast(tuple[int, ...], joined.dot[pair[joined.side]])}
    free = [n for d, n in enumerate(joined.parts[0].type.shape) if d not in taken]
    columns = joined.dot.output.type.size // max(prod(free), 1)
    sizes = (p.type.size for p, r in zip(joined.parts, recurrent, strict=True) if not r)
    return 2 * columns * max(sizes, default=0)


def _apart(joined: _Joined, before: list[UOperator], fresh: FreshValues) -> list[UOperator]:
    dot = joined.dot
    result = dot.output.type
    wide = TensorType("float32" if result.dtype in NARROW else result.dtype, result.shape)
    out: list[UOperator] = []
    total: Value | None = None
    for part, own in zip(joined.parts, _weights(joined, before, fresh), strict=True):
        inputs = (part, own) if joined.side == 0 else (own, part)
        term = replace(dot, inputs=inputs, outputs=(fresh.make(wide),))
        out.append(term)
        if total is not None:
            term = UOperator("add", (total, term.output), (fresh.make(wide),), (), dot.source)
            out.append(term)
        total = term.output
    assert total is not None
    kind = "reshape" if wide == result else "convert"
    return [*out, UOperator(kind, (total,), (dot.output,), (), dot.source)]


def _weights(joined: _Joined, before: list[UOperator], fresh: FreshValues) -> list[Value]:
    """The slice of the other operand that belongs to each part."""
    weights, first, found = joined.dot.inputs[1 - joined.side], 0, []
    for part in joined.parts:
        shape, starts = list(weights.type.shape), [0] * weights.type.rank
        shape[joined.other_axis] = part.type.shape[joined.axis]
        starts[joined.other_axis] = first
        first += part.type.shape[joined.axis]
        value = fresh.make(TensorType(weights.type.dtype, tuple(shape)))
        attributes = (("starts", tuple(starts)), ("strides", (1,) * len(shape)))
        before.append(UOperator("slice", (weights,), (value,), attributes, joined.dot.source))
        found.append(value)
    return found
