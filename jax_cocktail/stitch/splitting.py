"""Task splitting (AStitch, ASPLOS'22, section 3.3): the division of long axes into parts.

The parts become an axis of a value, which placement divides like any other:

    m = reduce(x)        ->        p = reduce(reshape(x, (parts, length)), axis 1)
                                   m = reduce(p)

They follow from the shape and the kind of machine alone, never from the number of units. The paper combines
them by atomics; here it is done in a fixed order. 16-bit floats are combined in f32 until the end, and the
sums of f32 parts in f64: they may be many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from jax_cocktail.device.tuning import PartialTuning
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import Statement, UOperator, UProgram, is_a
from jax_cocktail.utask.layout import divisors
from jax_cocktail.utask.rewrite import rewrite
from jax_cocktail.utask.sizes import is_general
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import FLOATS, TensorType, Value

Axes = tuple[int, ...]
InParts = Callable[[Builder, UOperator], Value | None]

COMBINES = {"sum": "add", "prod": "mul"}  # elementwise kinds; other reductions have the name of theirs


def split(program: UProgram, kinds: Sequence[str], in_parts: InParts) -> UProgram:
    """Replaces operators of these kinds; returns its argument if it replaces none. `in_parts` appends what
    computes the result of an operator, as that value or a new one, or returns None."""
    fresh = FreshValues(program)

    def change(statement: Statement) -> Statement | list[Statement]:
        if not is_a(statement, *kinds):
            return statement
        b = Builder(fresh, statement.source)
        value = in_parts(b, statement)
        if value is None:
            return statement
        last = b.out.pop()
        assert isinstance(last, UOperator) and last.outputs == (value,)
        assert value.type == statement.output.type
        return [*b.out, replace(last, outputs=statement.outputs)]

    found = rewrite(program, change)
    return program if found is program else simplify(found)


def adds_narrow(op: str, dtype: str) -> bool:
    """True if sums or products of this type would be rounded too often before the end."""
    return op in COMBINES and dtype in FLOATS and dtype.endswith("16")


@dataclass(frozen=True, slots=True)
class AxisSplit:
    """Each index of the axes `whole` is a part. So is each of `parts` runs of `axis`, if that is not None;
    the runs have `length` elements."""

    whole: Axes
    axis: int | None = None
    parts: int = 1
    length: int = 0

    def split(self, b: Builder, x: Value) -> Value:
        """The runs of `axis`, which becomes two axes: parts, elements."""
        assert self.axis is not None
        run, shape = run_of(b, x, self.axis, 0, self.parts * self.length), list(x.type.shape)
        shape[self.axis : self.axis + 1] = [self.parts, self.length]
        return b.reshape(run, shape)

    def parted(self, b: Builder, x: Value, axes: Axes) -> tuple[Value, Axes, Axes]:
        """The operand of a reduction of `axes` with an axis of parts, the axes that each part reduces, and
        those of the parts in the result of that."""
        outer, inner = list(self.whole), [d for d in axes if d not in self.whole]
        if (axis := self.axis) is not None:
            x = self.split(b, x)
            outer = [d + (d > axis) for d in outer] + [axis]
            inner = [d + (d >= axis) for d in inner]
        return x, tuple(inner), tuple(sorted(d - sum(i < d for i in inner) for d in outer))

    def rest(self, b: Builder, x: Value) -> Value | None:
        """The remainder after whole runs; None if there is none."""
        if self.axis is None or (done := self.parts * self.length) == x.type.shape[self.axis]:
            return None
        return run_of(b, x, self.axis, done, x.type.shape[self.axis] - done)


def axis_split(x: TensorType, reduced: Axes, tuning: PartialTuning) -> AxisSplit | None:
    """The parts of a reduction of `x`; None if it should stay as it is."""
    wanted, whole = _wanted(x, reduced, tuning), list[int]()
    axes = [d for d in sorted(reduced) if x.shape[d] != 1]
    for axis in axes if wanted > 1 else ():
        extent = x.shape[axis]
        if extent > tuning.spread * wanted or axis == axes[-1]:
            parts = _parts(extent, wanted, tuning)
            if extent >= 2 * parts:
                return AxisSplit(tuple(whole), axis, parts, extent // parts)
            break
        whole.append(axis)
        wanted = -(-wanted // extent)
        if wanted == 1:
            break
    return AxisSplit(tuple(whole)) if whole else None


def _parts(extent: int, wanted: int, tuning: PartialTuning) -> int:
    """The number of parts of an axis: equal ones, if there is such a number near the wanted one."""
    if is_general(extent):  # no number divides all lengths
        return wanted
    most = min(tuning.spread * wanted, extent // 2)
    even = [n for n in divisors(extent) if wanted <= n <= most]
    return min(even, key=lambda n: (-gcd(n, tuning.even), n), default=wanted)


def _wanted(x: TensorType, reduced: Axes, tuning: PartialTuning) -> int:
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
    wanted = max(wanted, -(-length // most))
    if is_general(wanted):  # what suits one length suits others about as long
        return 1 << (int(wanted).bit_length() - 1)
    return wanted


def reduction(b: Builder, x: Value, axes: Axes, op: str) -> Value:
    """Appends a reduction."""
    return b.emit("reduce", (x,), x.type.dtype, without(x, *axes), axes=axes, op=op)


def run_of(b: Builder, x: Value, axis: int, start: int, length: int) -> Value:
    """A run of one axis."""
    starts = [start if d == axis else 0 for d in range(x.type.rank)]
    return b.slice(x, starts, sized(x, axis, length))


def joined(b: Builder, runs: Sequence[Value], axis: int) -> Value:
    """Runs of one axis, one after the other."""
    shape = sized(runs[0], axis, sum(run.type.shape[axis] for run in runs))
    return b.emit("concatenate", runs, runs[0].type.dtype, shape, dimension=axis)


def sized(x: Value, axis: int, extent: int) -> list[int]:
    """The shape with another extent of one axis."""
    return [extent if d == axis else n for d, n in enumerate(x.type.shape)]


def without(x: Value, *axes: int) -> list[int]:
    """The shape without some axes."""
    return [n for d, n in enumerate(x.type.shape) if d not in axes]
