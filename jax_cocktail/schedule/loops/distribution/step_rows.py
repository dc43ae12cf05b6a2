"""Finds arrays that a loop reads or writes row by row, from the first row or from the last.

A scan reads row t of its inputs in step t; a reversed one, and so the gradient of a scan, row n - 1 - t.
Either way the array itself is the value of all steps, and no copy is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from jax_cocktail.schedule.simplify.trip_counts import integer
from jax_cocktail.utask.ir import LoopUTask, Statement, UOperator, is_a, reads
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class Steps:
    """The range of a loop's iterations among all steps.

    `total`: steps of all strips together; 0: the loop has all. `base`: the first step of a strip; None: 0.
    `outside`: the constants before the loop, and operators on constants.
    """

    total: int = 0
    base: Value | None = None
    outside: Mapping[Value, UOperator] = field(default_factory=dict)

    def of(self, loop: LoopUTask) -> int:
        """The number of all steps."""
        return self.total or cast(int, loop.trip_count)


@dataclass(frozen=True, slots=True)
class Stack:
    """A carry, by number, that collects all steps of a value; `nodes`: the statements that write it."""

    carry: int
    value: Value
    nodes: frozenset[int]


class Rows:
    """The arrays that a body reads row by row; `backward`: most of them from the last row."""

    def __init__(self, loop: LoopUTask, steps: Steps) -> None:
        self.loop, self.steps = loop, steps
        self.made: dict[Value, Statement] = {v: s for s in loop.body.body for v in s.outputs}
        reads = [
            s.inputs[1] for s in loop.body.body if is_a(s, "dynamic_slice") and s.inputs[0] not in self.made
        ]
        first = [v for v in reads if self._is_step(v)]
        last = [v for v in reads if self._is_mirrored(v)]
        self.backward = len(last) > len(first)

    def array(self, value: Value) -> Value | None:
        """The array whose rows, in this order, are the steps of a value; it may have further rows."""
        row = self.made.get(value)
        while is_a(row, "reshape"):
            row = self.made.get(row.inputs[0])
        if not is_a(row, "dynamic_slice"):
            return None
        array, first, *_ = row.inputs
        shape = array.type.shape
        if not self._is_row(first) or array in self.made or array in self.loop.body.parameters:
            return None
        full = row.output.type.shape == (1, *shape[1:]) and shape[0] >= self.steps.of(self.loop)
        return array if full else None

    def stack(self, carry: int) -> Stack | None:
        """The value that step t writes to row t of a carry, in this order, if nothing else uses the carry."""
        array = self.loop.carried[carry]
        end = self.loop.body.results[carry]
        update = self.made.get(end)
        if not is_a(update, "dynamic_update_slice"):
            return None
        target, row, first, *_ = update.inputs
        shape = array.type.shape
        alone = target == array and self._readers(array) == self._readers(end) == 1
        if not alone or not self._is_row(first):
            return None
        if row.type.shape != (1, *shape[1:]) or shape[0] != self.steps.of(self.loop):
            return None
        nodes = [update]
        made = self.made.get(row)
        while is_a(made, "reshape") and self._readers(row) == 1:
            nodes.append(made)
            row = made.inputs[0]
            made = self.made.get(row)
        positions = {id(s): n for n, s in enumerate(self.loop.body.body)}
        return Stack(carry, row, frozenset(positions[id(s)] for s in nodes))

    def _readers(self, value: Value) -> int:
        inside = sum(value in reads(s) for s in self.loop.body.body)
        return inside + self.loop.body.results.count(value)

    def _is_row(self, value: Value) -> bool:
        return self._is_mirrored(value) if self.backward else self._is_step(value)

    def _is_step(self, value: Value) -> bool:
        """True if a value is the index of the step, counted over all strips; a while loop has none."""
        if self.steps.base is None:
            return value == self.loop.index
        made = self.made.get(value)
        here = (self.steps.base, self.loop.index)
        return is_a(made, "add") and made.inputs == here

    def _is_mirrored(self, value: Value) -> bool:
        """True if a value counts the steps down to 0."""
        made = self.made.get(value)
        if self.loop.index is None or not is_a(made, "sub"):
            return False
        last = integer(made.inputs[0], {**self.steps.outside, **self.made})
        return last == self.steps.of(self.loop) - 1 and self._is_step(made.inputs[1])
