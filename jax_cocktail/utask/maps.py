"""Index maps: the element of its operand that each element of a movement operator's result reads."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import NamedTuple

from jax_cocktail.utask.ir import UOperator, once
from jax_cocktail.utask.sizes import Size
from jax_cocktail.utask.types import Shape


class Position(NamedTuple):
    """The position along one axis of the operand: ``start + step * i`` for position i along `axis` of the
    result; 0 for all elements of the result if `axis` is None."""

    axis: int | None
    step: int = 1
    start: int = 0


@once
def positions(operator: UOperator) -> tuple[Position, ...]:
    """The position along each axis of the operand of an operator of a kind in `MAPPED`."""
    shape = operator.inputs[0].type.shape
    if operator.kind == "broadcast":
        axes = zip(operator.ints("dimensions"), shape, strict=True)
        return tuple(Position(axis if n != 1 else None) for axis, n in axes)
    if operator.kind == "transpose":
        return tuple(Position(operator.ints("permutation").index(d)) for d in range(len(shape)))
    if operator.kind == "slice":
        each = zip(operator.ints("strides"), operator.ints("starts"), strict=True)
        return tuple(Position(d, step, start) for d, (step, start) in enumerate(each))
    assert operator.kind == "reverse", operator.kind
    flipped = operator.ints("dimensions")
    return tuple(Position(d, -1, n - 1) if d in flipped else Position(d) for d, n in enumerate(shape))


Groups = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


def axis_groups(source: Shape, target: Shape) -> Groups:
    """Axes of both sides of a reshape that have as many elements together, as few as possible in each group;
    without unit axes. A group is a run of elements that keep their order. Raises ValueError if one side has
    more elements."""
    if any(isinstance(n, Size) for n in (*source, *target)):
        return _groups.__wrapped__(source, target)  # each program notes its own comparisons
    return _groups(source, target)


@lru_cache(maxsize=4096)
def _groups(source: Shape, target: Shape) -> Groups:
    left, right = (deque(d for d, n in enumerate(shape) if n != 1) for shape in (source, target))
    found = []
    while left and right:
        ins, outs = [left.popleft()], [right.popleft()]
        taken, made = source[ins[0]], target[outs[0]]
        while taken != made:
            if not (left if taken < made else right):
                raise ValueError(f"{source} and {target} have other numbers of elements")
            if taken < made:
                ins.append(left.popleft())
                taken *= source[ins[-1]]
            else:
                outs.append(right.popleft())
                made *= target[outs[-1]]
        found.append((tuple(ins), tuple(outs)))
    return tuple(found)
