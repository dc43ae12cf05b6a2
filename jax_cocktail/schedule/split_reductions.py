"""Splits long reductions into parts that units, or the lanes of one unit, reduce side by side.

A reduction consumes its axes, so every unit would reduce all elements. This pass makes the parts an axis of
a value, which placement divides like any other (the task splitting of AStitch, ASPLOS'22, section 3.3):

    m = reduce(x)        ->        p = reduce(reshape(x, (parts, length)), axis 1)
                                   m = reduce(p)

The outer reduced axes become the parts; one of them may be cut into equal runs, and what these leave over is
reduced by itself. The division follows from the shape and the kind of machine alone, never from the number of
units, and the partial results are combined in a fixed order. 16-bit floats are reduced in f32 until the end,
and the sums of f32 parts in f64: they may be many.

Sums down the columns of a matrix are split however many there are: a core adds the rows of a part in f32
lanes, but many rows only one column after the other, in f64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import gcd, prod

from jax_cocktail.device.machine import Machine
from jax_cocktail.device.tuning import BLOCK_PARTIALS, CORE_PARTIALS, PROGRAM, PartialTuning
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import Statement, UOperator, UProgram, is_a
from jax_cocktail.utask.layout import divisors
from jax_cocktail.utask.rewrite import rewrite
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import FLOATS, TensorType, Value

Axes = tuple[int, ...]

COMBINES = {"sum": "add", "prod": "mul"}  # elementwise kinds; other reductions have the name of theirs


def split_reductions(program: UProgram, machine: Machine) -> UProgram:
    """Returns its argument if no reduction is long enough. Reductions of one array share its parts."""
    tuning = BLOCK_PARTIALS if machine.is_gpu else CORE_PARTIALS
    found = rewrite(program, partial(_change, fresh=FreshValues(program), tuning=tuning))
    return program if found is program else simplify(found)


def _change(statement: Statement, fresh: FreshValues, tuning: PartialTuning) -> Statement | list[Statement]:
    if not is_a(statement, "reduce"):
        return statement
    (x,), (result,), axes = statement.inputs, statement.outputs, statement.ints("axes")
    found = division(x.type, axes, tuning)
    if found is None:
        return statement
    b, op = Builder(fresh, statement.source), statement.text("op")
    wide = adds_narrow(op, x.type.dtype)
    total = _Splitter(b, op, tuning).total(b.convert(x, "float32") if wide else x, axes, found)
    if wide:
        b.define((result,), "convert", (total,))
        return b.out
    last = b.out.pop()
    assert isinstance(last, UOperator) and last.outputs == (total,)
    return [*b.out, replace(last, outputs=(result,))]


def adds_narrow(op: str, dtype: str) -> bool:
    """True if sums or products of this type would be rounded too often before the end."""
    return op in COMBINES and dtype in FLOATS and dtype.endswith("16")


@dataclass(frozen=True, slots=True)
class Division:
    """Each index of the axes `whole` is a part. So is each of `parts` runs of `axis`, if that is not None;
    the runs have `length` elements."""

    whole: tuple[int, ...]
    axis: int | None = None
    parts: int = 1
    length: int = 0

    def split(self, b: Builder, x: Value) -> Value:
        """The runs of `axis`, which becomes two axes: parts, elements."""
        assert self.axis is not None
        run, shape = run_of(b, x, self.axis, 0, self.parts * self.length), list(x.type.shape)
        shape[self.axis : self.axis + 1] = [self.parts, self.length]
        return b.reshape(run, shape)

    def parted(self, b: Builder, x: Value, axes: tuple[int, ...]) -> tuple[Value, Axes, Axes]:
        """The operand of a reduction of `axes` with an axis of parts, the axes that each part reduces, and
        those of the parts in the result of that."""
        outer, inner = list(self.whole), [d for d in axes if d not in self.whole]
        if (axis := self.axis) is not None:
            x = self.split(b, x)
            outer = [d + (d > axis) for d in outer] + [axis]
            inner = [d + (d >= axis) for d in inner]
        return x, tuple(inner), tuple(sorted(d - sum(i < d for i in inner) for d in outer))

    def rest(self, b: Builder, x: Value) -> Value | None:
        """What the runs leave over; None if that is nothing."""
        if self.axis is None or (done := self.parts * self.length) == x.type.shape[self.axis]:
            return None
        return run_of(b, x, self.axis, done, x.type.shape[self.axis] - done)


def division(x: TensorType, reduced: tuple[int, ...], tuning: PartialTuning) -> Division | None:
    """Of a reduction of `x`; None if it should stay as it is."""
    wanted, whole = _wanted(x, reduced, tuning), list[int]()
    axes = [d for d in sorted(reduced) if x.shape[d] != 1]
    for axis in axes if wanted > 1 else ():
        extent = x.shape[axis]
        if extent > tuning.spread * wanted or axis == axes[-1]:
            parts = _parts(extent, wanted, tuning)
            if extent >= 2 * parts:
                return Division(tuple(whole), axis, parts, extent // parts)
            break
        whole.append(axis)
        wanted = -(-wanted // extent)
        if wanted == 1:
            break
    return Division(tuple(whole)) if whole else None


def _parts(extent: int, wanted: int, tuning: PartialTuning) -> int:
    """The number of parts of an axis: equal ones, if there is such a number near the wanted one."""
    most = min(tuning.spread * wanted, extent // 2)
    even = [n for n in divisors(extent) if wanted <= n <= most]
    return min(even, key=lambda n: (-gcd(n, tuning.even), n), default=wanted)


def _wanted(x: TensorType, reduced: tuple[int, ...], tuning: PartialTuning) -> int:
    """The number of parts of one result element that would be best."""
    length = prod(x.shape[d] for d in reduced)
    if x.nbytes < tuning.bytes or length < 2:
        return 1
    if max(d for d, n in enumerate(x.shape) if n != 1) in reduced:
        rows, least, most = x.size // length, tuning.row_elements, length
    else:
        rows = prod(x.shape[: min(d for d in reduced if x.shape[d] != 1)])
        least, most = tuning.column_elements, tuning.column_most
    wanted = min(tuning.parts, length // least) if rows < tuning.parts else 1
    return max(wanted, -(-length // most))


@dataclass(frozen=True, slots=True)
class _Splitter:
    """Appends reductions by `op`."""

    b: Builder
    op: str
    tuning: PartialTuning

    def total(self, x: Value, axes: tuple[int, ...], parts: Division) -> Value:
        """The result of all parts, and of what they leave over."""
        found, rest = self._of_parts(x, axes, parts), parts.rest(self.b, x)
        if rest is None:
            return found
        return self.b.binary(COMBINES.get(self.op, self.op), found, self._reduce(rest, axes))

    def _of_parts(self, x: Value, axes: tuple[int, ...], found: Division) -> Value:
        x, inner, left = found.parted(self.b, x, axes)
        parts, dtype = self._reduce(x, inner), x.type.dtype
        if self.op == "sum" and dtype == "float32":
            parts = self.b.convert(parts, "float64")
        many = prod(parts.type.shape[d] for d in left) > PROGRAM.sum_block
        again = division(parts.type, left, self.tuning) if many else None
        total = self._reduce(parts, left) if again is None else self.total(parts, left, again)
        return self.b.convert(total, dtype)

    def _reduce(self, x: Value, axes: tuple[int, ...]) -> Value:
        return reduction(self.b, x, axes, self.op)


def reduction(b: Builder, x: Value, axes: Axes, op: str) -> Value:
    """Appends a reduction."""
    kept = [n for d, n in enumerate(x.type.shape) if d not in axes]
    return b.emit("reduce", (x,), x.type.dtype, kept, axes=axes, op=op)


def run_of(b: Builder, x: Value, axis: int, start: int, length: int) -> Value:
    """A run of one axis."""
    starts = [start if d == axis else 0 for d in range(x.type.rank)]
    return b.slice(x, starts, [length if d == axis else n for d, n in enumerate(x.type.shape)])
