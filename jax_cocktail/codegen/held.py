"""Products whose matrix no iteration of a loop changes: the threads of a block keep it in registers.

A thread reads its part of the matrix when the product first runs, and again if the product gets another
matrix: where a unit has several parts of a parallel loop (`cocktail_gemv_held.h`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from jax_cocktail.codegen.context import Context
from jax_cocktail.codegen.contraction import holdable
from jax_cocktail.codegen.kernel import Declaration, Name
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    defined_in,
    is_parallel,
    operators_in,
    operators_of,
    regions_of,
)
from jax_cocktail.utask.types import Value


@contextmanager
def holding(context: Context, loop: LoopUTask) -> Iterator[None]:
    """Around a loop: declares what its products keep. Registers stay in the function that has them, so a
    program with outlined functions keeps nothing outside of roles."""
    before, bytes_before = dict(context.held), context.held_bytes
    brief = loop.trip_count is not None and loop.trip_count < BLOCK.held_trips
    in_line = context.outlines is None or (context.in_part and not context.part_depth)
    if context.target.holds and in_line and not loop.parallel and not brief:
        _declare(context, loop)
    yield
    context.held, context.held_bytes = before, bytes_before


def _declare(context: Context, loop: LoopUTask) -> None:
    numbers = _Numbers(context, loop)
    names = dict[Hashable, Name]()  # of what is kept: two copies of one product share it
    for operator in operators_in(loop.body):
        if operator.kind != "dot" or operator.output in context.held:
            continue
        product = holdable(context, operator)
        matrix = None if product is None else numbers.of(operator.inputs[0 if product.left else 1])
        if product is None or matrix is None:
            continue
        key = matrix, product.text
        if key not in names:
            if context.held_bytes + product.bytes > BLOCK.held_bytes:
                continue
            context.held_bytes += product.bytes
            names[key] = Name(f"k{operator.output.id}", outer=True)
            context.writer.add(Declaration(f"CkDotHeld<{product.text}>", names[key], const=False))
        context.held[operator.output] = names[key], product.text


class _Numbers:
    """Numbers of the values that no iteration of a loop changes; equal values have equal numbers."""

    def __init__(self, context: Context, loop: LoopUTask) -> None:
        self._inside = set(defined_in(loop))
        self._numbers = dict[Value, int]()
        self._known = dict[Hashable, int]()
        self._most_units = context.plan.most_units if context.has_units else 0
        self._visit(loop.body, in_part=context.part_depth > 0)

    def of(self, value: Value) -> int | None:
        """None: it may change."""
        return self._numbers.get(value) if value in self._inside else self._number(value)

    def _number(self, key: Hashable) -> int:
        return self._known.setdefault(key, len(self._known))

    def _visit(self, region: Region, *, in_part: bool) -> None:
        for statement in region.body:
            if is_parallel(statement) and not in_part:
                trips, index = statement.trip_count, statement.index
                if trips is not None and index is not None and trips <= self._most_units:
                    self._numbers[index] = self._number(("part", trips, statement.first))
            for nested in regions_of(statement):
                self._visit(nested, in_part=in_part or is_parallel(statement))
            for operator in operators_of(statement):
                operands = tuple(self.of(v) for v in operator.inputs)
                if None not in operands:
                    for position, output in enumerate(operator.outputs):
                        key = operator.kind, operator.attributes, operands, position
                        self._numbers[output] = self._number(key)
