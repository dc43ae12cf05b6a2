"""Independence of the trips of parallel loops: the slice of an array that each trip touches.

A trip of a parallel loop computes one part. Parts run side by side, so each may touch only its own block of
an array that another part writes (design, section 1.1: a slice ties only at offsets that are multiples of its
size). A block is a pair (axis, tile): part i owns the positions ``[i * tile, (i + 1) * tile)`` of that axis.
A part that is alone, such as the remainder after equal parts, owns any range that begins at a constant.
If a loop runs over a grid of parts, rows times columns, its index has digits, and a block has a run along one
axis for each digit; no two parts agree in all digits. The analysis follows starts computed from the index by
constants, views that keep the axis whole, and arrays carried through nested loops and branches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jax_cocktail.analysis.axes import rule
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    free_values,
    integer_of,
    once,
    operators_in,
)
from jax_cocktail.utask.operators import BARRIERS, RESHAPES, VIEWS
from jax_cocktail.utask.printer import print_statement
from jax_cocktail.utask.types import INTEGERS, ITEM_SIZE, Shape, Value

AxisTile = tuple[int, int]  # (axis, tile)
AxisRanges = tuple["AxisRange", ...]
Constants = Mapping[Value, int]

_NONE: Constants = {}
_KEEPS_SCALAR = RESHAPES | {"convert"}


@dataclass(frozen=True, slots=True, order=True)
class Digit:
    """A number that distinguishes parts of a loop: ``i // every % count`` for part i."""

    every: int
    count: int

    def of(self, part: int) -> int:
        return part // self.every % self.count


@dataclass(frozen=True, slots=True, order=True)
class AxisRange:
    """A range of an axis: a part whose digit is k touches the `size` positions from ``begin + k * size`` on.
    Only the range of a part that is alone begins elsewhere than at 0."""

    axis: int
    size: int
    digit: Digit
    begin: int = 0

    @property
    def end(self) -> int:
        """The first position after those of all parts."""
        return self.begin + self.size * self.digit.count


_NO_DIGIT = Digit(1, 0), 0


@once
def scalar_constants(region: Region) -> Constants:
    """The one-element integer constants in a region, at any depth: possible factors of an index."""
    constants = (operator for operator in operators_in(region) if operator.kind == "constant")
    return {o.output: number for o in constants if (number := integer_of(o)) is not None}


def parallel_fault(loop: LoopUTask, constants: Constants = _NONE) -> str:
    """The reason why the trips of `loop` are not independent, or "". `constants`: from outside the loop."""
    return _analysed(loop, constants).fault()


def own_slices(loop: LoopUTask, constants: Constants = _NONE) -> dict[int, AxisTile]:
    """For the position of each carried array, the block along one axis that a trip writes. Arrays without
    elements, arrays that no trip touches, and arrays written in blocks of two axes are missing."""
    tiles = tile_access(loop, constants)
    blocks = ((position, tiles.get(value)) for position, value in enumerate(loop.outputs))
    return {position: block for position, block in blocks if block is not None}


def tile_access(loop: LoopUTask, constants: Constants = _NONE) -> dict[Value, AxisTile | None]:
    """For every outside array, the own block along one axis that the body touches; None for any other access.
    Keys are those of `block_access`."""
    return {v: _along_one(runs) for v, runs in block_access(loop, constants).items()}


def block_access(loop: LoopUTask, constants: Constants = _NONE) -> dict[Value, AxisRanges | None]:
    """For every outside array, the own block that the body touches; None for any other access.

    Keys are the arrays that the body uses or carries (as `initial` and as `outputs`); an array of which it
    touches no element is missing.
    """
    walker = _analysed(loop, constants)
    found: dict[Value, AxisRanges | None] = {}

    def note(value: Value, shown: Value) -> None:
        if shown in walker.touched:
            block = walker.block(shown)
            found[value] = block if found.get(value, block) == block else None

    for value in free_values(loop.body):
        note(value, value)
    for initial, carried, output in zip(loop.initial, loop.carried, loop.outputs, strict=True):
        note(initial, carried)
        note(output, carried)
    return found


def _along_one(runs: AxisRanges | None) -> AxisTile | None:
    alone = runs is not None and len(runs) == 1 and not runs[0].begin
    return (runs[0].axis, runs[0].size) if runs is not None and alone else None


def _telling(runs: Iterable[AxisRange], trips: int) -> AxisRanges | None:
    """The fewest of a part's runs that together distinguish it from all other parts; None if none do."""
    ordered = sorted(runs)
    alone = next((run for run in ordered if run.digit.every == 1 and run.digit.count >= trips), None)
    if alone is not None:
        return (alone,)
    found: list[AxisRange] = []
    known = 1  # the digits found so far distinguish i from j if i % known != j % known
    while known < trips:
        run = next((r for r in ordered if r.digit.every == known and r.digit.count > 1), None)
        if run is None:
            return None
        found.append(run)
        known *= run.digit.count
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A value that shows an outside array or a part of it. `axes`: for each of its axes, the array's axis
    that it covers whole, or None; `whole`: it is the array itself, possibly updated."""

    array: Value
    axes: tuple[int | None, ...]
    whole: bool


def _analysed(loop: LoopUTask, constants: Constants) -> _Walker:
    """The analysis of a parallel loop, made once for its body: many passes and the verifier ask for it."""
    given = {value: constants[value] for value in free_values(loop.body) if value in constants}
    # A length that is a launch parameter equals its number, but blocks and digits remember where it is from.
    key = type(loop.trip_count), loop.trip_count, len(loop.initial), tuple(given.items())
    known = _analyses(loop.body)
    if key not in known:
        walker = _Walker(loop, given)
        walker.run(loop.body)
        known[key] = walker  # complete: another thread may ask for it, and this one may be interrupted
    return known[key]


@once
def _analyses(body: Region) -> dict[object, _Walker]:
    """The analyses of loops with this body, by all else that they depend on."""
    return {}


class _Walker:
    """One walk over a parallel body. `touched`: array -> runs that hold all touches so far, empty if they do
    not distinguish parts; `faults`: array -> the access that touches more, and its place."""

    def __init__(self, loop: LoopUTask, constants: Constants) -> None:
        self.carried = loop.carried  # not the loop: its body keeps what is found
        self.trips = loop.trip_count or 0
        self.constants = dict(constants)
        self.digits: dict[Value, tuple[Digit, int]] = {}  # scalars equal to a digit of the index times an int
        if loop.index is not None:
            self.digits[loop.index] = Digit(1, self.trips), 1
        self.quotients: dict[Value, tuple[Digit, int]] = {}  # scalars equal to a digit over an int
        self.ends: dict[Digit, int] = {}  # the digits are less where a branch on a quotient is walked
        self.seen: dict[Value, _Seen] = {}
        self.touched: dict[Value, set[AxisRange]] = {}
        self.faults: dict[Value, tuple[str, Statement | str]] = {}
        self.where: Statement | str = "its results"
        self.has_barrier = False

    def run(self, body: Region) -> None:
        for value in (*free_values(body), *self.carried):
            self._show(value)
        self._body(body)
        for carried, result in zip(self.carried, body.results, strict=True):
            origin = self.seen.get(result)
            if carried in self.seen and (origin is None or origin.array != carried or not origin.whole):
                self._refuse(carried, "does not hand on", located=False)
            if origin is not None and origin.array != carried:
                self._consume(result)

    def fault(self) -> str:
        scalars = [v for v in self.carried if v.type.is_scalar]
        if scalars:
            return f"a parallel loop carries {scalars[0]} of one element: its trips are not independent"
        if self.has_barrier:
            return "a barrier in a parallel loop: units have unequal numbers of trips and would wait for ever"
        for value in self.carried:
            if value in self.faults:
                what, where = self.faults[value]
                place = where if isinstance(where, str) else print_statement(where)
                what += f" (in {place})" if place else ""
                return f"a trip of a parallel loop {what} more than its own slice of {value}"
        return ""

    def block(self, value: Value) -> AxisRanges | None:
        """The own block that contains all touches of an array, if there is one."""
        runs = self.touched.get(value)
        return _telling(runs, self.trips) if runs else None

    # -- touches -----------------------------------------------------------------------------------------
    def _show(self, value: Value) -> None:
        if value.type.size > 1:
            self.seen[value] = _Seen(value, tuple(range(value.type.rank)), True)

    def _refuse(self, array: Value, what: str, located: bool = True) -> None:
        """`located`: the message names the statement."""
        self.touched[array] = set()
        self.faults.setdefault(array, (what, self.where if located else ""))

    def _consume(self, value: Value) -> None:
        """A use that may touch every element that the value shows."""
        origin = self.seen.get(value)
        if origin is not None:
            self._refuse(origin.array, "reads")

    def _touch(self, value: Value, starts: Sequence[Value | int], part: Shape, what: str) -> bool:
        """Notes a touch of a slice; False if the slice leaves the part's own block."""
        origin = self.seen[value]
        runs = set()
        for axis, start, size, whole in zip(origin.axes, starts, part, value.type.shape, strict=True):
            run = None if axis is None else self._run(axis, start, size, whole)
            if run is not None:
                runs.add(run)
        if not runs or _telling(runs, self.trips) is None:
            return False
        known = self.touched.get(origin.array)
        both = runs if known is None else known & runs
        if (both and _telling(both, self.trips) is not None) or (known is not None and not known):
            self.touched[origin.array] = both
        else:
            self._refuse(origin.array, what)
        return True

    def _run(self, axis: int, start: Value | int, size: int, whole: int) -> AxisRange | None:
        """The run of a slice along one axis."""
        constant = self.constants.get(start) if isinstance(start, Value) else start
        if constant is not None and self.trips == 1 and size < whole:
            return AxisRange(axis, size, Digit(1, 1), min(max(constant, 0), whole - size))
        digit, step = _NO_DIGIT if isinstance(start, int) else self.digits.get(start, _NO_DIGIT)
        last = self.ends.get(digit, digit.count) - 1
        inside = size <= step and step * max(last, 0) + size <= whole
        return AxisRange(axis, step, digit) if inside else None

    # -- statements --------------------------------------------------------------------------------------
    def _body(self, region: Region) -> None:
        for statement in region.body:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, StitchedUTask):
            for member in statement.members:
                self._statement(member)
        elif isinstance(statement, LoopUTask):
            self._nested_loop(statement)
        elif isinstance(statement, BranchUTask):
            self._branch(statement)
        else:
            self.where = statement
            self._operator(statement)

    def _operator(self, operator: UOperator) -> None:
        self.has_barrier |= operator.kind in BARRIERS
        number = integer_of(operator)
        if number is not None:
            self.constants[operator.output] = number
        elif len(operator.outputs) == 1 and operator.output.type.is_scalar:
            self._scalar(operator)
        if operator.kind == "dynamic_update_slice":
            self._update(operator)
        elif operator.kind in VIEWS and operator.inputs[0] in self.seen:
            self._view(operator)
        else:
            for value in operator.inputs:
                self._consume(value)

    def _scalar(self, operator: UOperator) -> None:
        """Follows the index and its digits through multiplication by constants and renaming, and finds digits
        where the index is divided by constants."""
        found = None
        if operator.kind in _KEEPS_SCALAR:
            found = self.digits.get(operator.inputs[0])
            if operator.inputs[0] in self.quotients:
                self.quotients[operator.output] = self.quotients[operator.inputs[0]]
        elif operator.kind == "mul":
            for x, y in (operator.inputs, operator.inputs[::-1]):
                if x in self.digits and y in self.constants:
                    digit, step = self.digits[x]
                    found = digit, step * self.constants[y]
        elif operator.kind in ("div", "rem"):
            found = self._divided(operator)
        if found is None:
            return
        digit, step = found
        if step > 0 and step * digit.count <= _greatest(operator.output.type.dtype):
            self.digits[operator.output] = found

    def _divided(self, operator: UOperator) -> tuple[Digit, int] | None:
        """The quotient or remainder of a digit by a constant that divides its number of values. Any other
        quotient only says where a branch leads."""
        x, y = operator.inputs
        digit, step = self.digits.get(x, _NO_DIGIT)
        by = self.constants.get(y, 0)
        if step != 1 or by < 1 or not digit.count:
            return None
        if digit.count % by:
            self.quotients |= {operator.output: (digit, by)} if operator.kind == "div" else {}
            return None
        if operator.kind == "rem":
            return Digit(digit.every, by), 1
        return Digit(digit.every * by, digit.count // by), 1

    def _view(self, operator: UOperator) -> None:
        source, result = operator.inputs[0], operator.output
        origin = self.seen[source]
        if not result.type.size:
            return
        starts = operator.inputs[1:] if operator.kind == "dynamic_slice" else _starts(operator)
        if starts and self._touch(source, starts, result.type.shape, "reads"):
            return
        axes = tuple(None if d is None else origin.axes[d] for d in _kept_axes(operator))
        if any(axis is not None for axis in axes):
            self.seen[result] = _Seen(origin.array, axes, False)
        else:
            self._consume(source)

    def _update(self, operator: UOperator) -> None:
        target, update, *starts = operator.inputs
        self._consume(update)
        origin = self.seen.get(target)
        if origin is None:
            return
        if origin.array not in self.carried or not origin.whole:
            self._consume(target)
            return
        if update.type.size and not self._touch(target, starts, update.type.shape, "writes"):
            self._refuse(origin.array, "writes")
        self.seen[operator.output] = origin

    # -- nested regions ----------------------------------------------------------------------------------
    def _carries(self, value: Value) -> bool:
        """True if the value is a carried array of the parallel loop, updated or not."""
        origin = self.seen.get(value)
        return origin is not None and origin.whole and origin.array in self.carried

    def _nested_loop(self, loop: LoopUTask) -> None:
        for initial, carried, tested in zip(loop.initial, loop.carried, loop.tested, strict=True):
            if self._carries(initial):
                self.seen[carried] = self.seen[tested] = self.seen[initial]
            else:
                self.where = "the carries of a nested loop"
                self._consume(initial)
        for region in loop.regions:
            self._body(region)
        for carried, result, output in zip(loop.carried, loop.body.results, loop.outputs, strict=True):
            self._join([carried, result], output)

    def _branch(self, branch: BranchUTask) -> None:
        """Walks all sides. A quotient as selector bounds its digit on every side but the last, which takes
        all larger ones."""
        outer = self.ends
        digit, by = self.quotients.get(branch.selector, _NO_DIGIT)
        for number, region in enumerate(branch.branches, 1):
            if by and number < len(branch.branches):
                self.ends = {**outer, digit: min(number * by, outer.get(digit, digit.count))}
            self._body(region)
            self.ends = outer
        for position, output in enumerate(branch.outputs):
            self._join([region.results[position] for region in branch.branches], output)

    def _join(self, values: Sequence[Value], output: Value) -> None:
        """The array carried on, if it is the same from every region; any other value is copied here."""
        origin = self.seen.get(values[0])
        if self._carries(values[0]) and all(self.seen.get(v) == origin for v in values):
            assert origin is not None
            self.seen[output] = origin
            return
        self.where = "the results of a nested region"
        for value in values:
            self._consume(value)


def _starts(operator: UOperator) -> tuple[int, ...]:
    """The positions where a slice of neighbours begins; none for other operators."""
    dense = operator.kind == "slice" and all(step == 1 for step in operator.ints("strides"))
    return operator.ints("starts") if dense else ()


def _greatest(dtype: str) -> int:
    return int(np.iinfo(dtype).max) if dtype in ITEM_SIZE and dtype in INTEGERS else 0


def _kept_axes(operator: UOperator) -> list[int | None]:
    """For each result axis of a view, the operand axis that it covers whole, or None."""
    source, result = operator.inputs[0].type.shape, operator.output.type.shape
    kept: list[int | None] = [None] * len(result)
    for tie in rule(operator).ties:
        (axis,), origin = tie.outputs, tie.inputs[0]
        if origin is not None and source[origin] == result[axis] and int(result[axis]) == int(tie.parts):
            kept[axis] = origin
    return kept
