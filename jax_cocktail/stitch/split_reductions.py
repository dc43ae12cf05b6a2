"""Splits long reductions into parts that units, or the lanes of one unit, reduce side by side.

A reduction consumes its axes, so every unit would reduce all elements. The outer reduced axes become parts
(see `stitch.splitting`); one of them may be cut into equal runs, and what these leave over is reduced by
itself.

Sums down the columns of a matrix are split however many there are: a core adds the rows of a part in f32
lanes, but many rows only one column after the other, in f64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

from jax_cocktail.device.machine import Machine
from jax_cocktail.device.tuning import BLOCK_PARTIALS, CORE_PARTIALS, PROGRAM, PartialTuning
from jax_cocktail.stitch.splitting import COMBINES, Axes, AxisSplit, adds_narrow, axis_split, reduction, split
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import UOperator, UProgram
from jax_cocktail.utask.types import Value


def split_reductions(program: UProgram, machine: Machine) -> UProgram:
    """Returns its argument if no reduction is long enough. Reductions of one array share its parts."""
    tuning = BLOCK_PARTIALS if machine.is_gpu else CORE_PARTIALS
    return split(program, ("reduce",), partial(_in_parts, tuning=tuning))


def _in_parts(b: Builder, operator: UOperator, tuning: PartialTuning) -> Value | None:
    (x,), axes, op = operator.inputs, operator.ints("axes"), operator.text("op")
    found = axis_split(x.type, axes, tuning)
    if found is None:
        return None
    splitter = _Splitter(b, op, tuning)
    if not adds_narrow(op, x.type.dtype):
        return splitter.total(x, axes, found)
    total = splitter.total(b.convert(x, "float32"), axes, found)
    b.define(operator.outputs, "convert", (total,))
    return operator.output


@dataclass(frozen=True, slots=True)
class _Splitter:
    """Appends reductions by `op`."""

    b: Builder
    op: str
    tuning: PartialTuning

    def total(self, x: Value, axes: Axes, parts: AxisSplit) -> Value:
        """The result of all parts, and of what they leave over."""
        found, rest = self._of_parts(x, axes, parts), parts.rest(self.b, x)
        if rest is None:
            return found
        return self.b.binary(COMBINES.get(self.op, self.op), found, reduction(self.b, rest, axes, self.op))

    def _of_parts(self, x: Value, axes: Axes, found: AxisSplit) -> Value:
        x, inner, left = found.parted(self.b, x, axes)
        parts, dtype = reduction(self.b, x, inner, self.op), x.type.dtype
        if self.op == "sum" and dtype == "float32":
            parts = self.b.convert(parts, "float64")
        many = prod(parts.type.shape[d] for d in left) > PROGRAM.sum_block
        again = axis_split(parts.type, left, self.tuning) if many else None
        total = reduction(self.b, parts, left, self.op) if again is None else self.total(parts, left, again)
        return self.b.convert(total, dtype)
