"""Makes the lengths of sequences launch parameters: the program then has the same text for many lengths.

The length of a sequence is the trip count of a loop and the size of the axes along which the loop goes
(`analysis.lengths`). This pass turns both into sizes (`utask.sizes`), and what the shapes of operators make
of them.

A pass that decides something by a length changes the text for that length, which is then compiled.

On a GPU, `known_lengths` makes them numbers again at the end, in programs that would pay for them. A kernel
reads a launch parameter from the bank of constants, which takes no register. A function of its own gets it in
one: with the places of arrays that follow from a length they take so many that loops run slower (emulated, a
step of ten LSTM layers at batch 64 takes 6 % longer). The same is done if some long loop has no launch
parameter for its number of trips: where passes have divided a sequence into strips, or never knew how far
loops go, the text hardly serves another length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from jax_cocktail.analysis.lengths import axes_of_loops
from jax_cocktail.cost.kernel import outlines_loops
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.utask.ir import (
    Attribute,
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    defined_in,
    walk,
)
from jax_cocktail.utask.sizes import Parameter, Quotient, Size, at, is_general, parameter
from jax_cocktail.utask.substitute import replaced
from jax_cocktail.utask.types import Shape, Value

_OF_OPERAND = ("starts", "slice_sizes")  # attributes with a number for each axis of the first operand
_OF_RESULT = ("low", "high")  # and of the result


def launch_parameters(program: UProgram) -> UProgram:
    """Returns its argument if it has no long loop."""
    least = PROGRAM.parameter_trips
    trips = [s.trip_count for s in walk(program.entry) if isinstance(s, LoopUTask)]
    axes = axes_of_loops(program, least) if trips else {}
    axes = {axis: n for axis, n in axes.items() if not is_general(n)}
    lengths = {n for n in (*trips, *axes.values()) if n is not None and n >= least and not is_general(n)}
    if not lengths:
        return program
    marks = Marks({n: parameter(n) for n in lengths}, axes)
    return replace(program, entry=marks.entry(program.entry))


def known_lengths(program: UProgram, most_loops: int) -> UProgram:
    """Returns its argument if it has at most so many lane loops, and long loops of which each has a launch
    parameter for its number of trips; or if it has no launch parameter."""
    loops = (s for s in walk(program.entry) if isinstance(s, LoopUTask) and not s.parallel)
    long = [n for n in (loop.trip_count for loop in loops) if n and n >= PROGRAM.parameter_trips]
    lengths = (n for value in defined_in(program.entry) for n in value.type.shape)
    sized = bool(long) and all(isinstance(n, Size) for n in long)
    if sized and not outlines_loops(program, most_loops):
        return program
    if not any(isinstance(n, Size) for n in (*long, *lengths)):
        return program
    return replace(program, entry=Marks({}, {}).entry(program.entry))


@dataclass(frozen=True, slots=True)
class Marks:
    """The values of a program with sizes for ints, and ints for other sizes, but for general ones. `sizes`:
    the launch parameters by value; `axes`: those along which loops go; `given`: the values of general ones
    that the program has so far."""

    sizes: Mapping[int, Size]
    axes: Mapping[tuple[Value, int], int]
    given: Mapping[Parameter, int] = field(default_factory=dict)
    values: dict[Value, Value] = field(default_factory=dict)

    def entry(self, region: Region) -> Region:
        for value in region.parameters:
            self._define(value, self._shape(value, ()))
        return self._region(region)

    def _define(self, value: Value, shape: Shape) -> None:
        self.values[value] = Value(value.id, replace(value.type, shape=shape))

    def _like(self, values: Sequence[Value], others: Sequence[Value]) -> None:
        for value, other in zip(values, others, strict=True):
            self._define(value, self._of([other])[0].type.shape)

    def _of(self, values: Iterable[Value]) -> tuple[Value, ...]:
        return replaced(values, self.values)

    def _region(self, region: Region) -> Region:
        body = tuple(self._statement(statement) for statement in region.body)
        return Region(self._of(region.parameters), body, self._of(region.results))

    def _statement(self, statement: Statement) -> Statement:
        if isinstance(statement, UOperator):
            return self._operator(statement)
        if isinstance(statement, StitchedUTask):
            members = tuple(map(self._operator, statement.members))
            inputs, outputs = self._of(statement.inputs), self._of(statement.outputs)
            return replace(statement, members=members, inputs=inputs, outputs=outputs)
        if isinstance(statement, BranchUTask):
            branches = tuple(map(self._region, statement.branches))
            self._like(statement.outputs, statement.branches[0].results)
            (selector,), outputs = self._of([statement.selector]), self._of(statement.outputs)
            return replace(statement, selector=selector, branches=branches, outputs=outputs)
        self._like(statement.outputs, statement.initial)
        return self._loop(statement)

    def _loop(self, loop: LoopUTask) -> LoopUTask:
        condition, trips = loop.condition, loop.trip_count
        self._like(loop.carried, loop.initial)
        if condition is not None:
            self._like(condition.parameters, loop.initial)
            condition = self._region(condition)
        return replace(
            loop,
            initial=self._of(loop.initial),
            outputs=self._of(loop.outputs),
            condition=condition,
            body=self._region(loop.body),
            trip_count=None if trips is None else self._trips(trips),
        )

    def _trips(self, trips: int) -> int:
        if is_general(trips):
            return trips
        return int(trips) if self.given else self.sizes.get(trips, int(trips))

    def _operator(self, operator: UOperator) -> UOperator:
        inputs = self._of(operator.inputs)
        given = [value.type.shape for value in inputs]
        for value in operator.outputs:
            shape = self._shape(value, given)
            self._define(value, self._reshaped(given[0], shape) if operator.kind == "reshape" else shape)
        numbers = ((name, _number(value)) for name, value in operator.attributes)
        outputs = self._of(operator.outputs)
        shapes = dict.fromkeys(_OF_OPERAND, given[0]) if given else {}
        shapes |= dict.fromkeys(_OF_RESULT, outputs[0].type.shape)
        named = ((n, self._along(shapes[n], v, n != "slice_sizes") if n in shapes else v) for n, v in numbers)
        return replace(operator, inputs=inputs, outputs=outputs, attributes=tuple(named))

    def _shape(self, value: Value, given: Sequence[Shape]) -> Shape:
        """The shape of a value: launch parameters, what is a little longer or shorter, and other sizes that
        operands have."""
        sizes = [n for each in given for n in each if isinstance(n, Size)]
        known = {m: n for n in sizes if (m := at(n, self.given)) not in self.sizes}
        return tuple(
            self._length(n) if (value, d) in self.axes else n if is_general(n) else known.get(n, int(n))
            for d, n in enumerate(value.type.shape)
        )

    def _length(self, number: int) -> int:
        near = min(self.sizes, key=lambda n: abs(n - number))
        return self.sizes[near] + (number - near)

    def _along(self, shape: Shape, value: Attribute, places: bool) -> Attribute:
        """Numbers for axes, of which some are launch parameters. `places`: where something begins."""
        if not isinstance(value, tuple) or len(value) != len(shape):
            return value
        return tuple(self._counted(d, n, places) for d, n in zip(shape, value, strict=True))

    def _counted(self, length: int, number: Attribute, place: bool) -> Attribute:
        """A number along an axis. A place in its second half is so far from the end, whatever the length."""
        if not isinstance(number, int) or not isinstance(length, Size):
            return number
        if is_general(number):
            return number
        if number in self.sizes:
            return self.sizes[number]
        now = at(length, self.given)
        return length + (number - now) if place and 2 * number > now else number

    def _reshaped(self, source: Shape, target: Shape) -> Shape:
        """The target of a reshape: of the axes that some axes become, one may follow from the others."""
        found, rest, block, first = list(target), list(source), 1, 0
        numbers = [at(n, self.given) for n in target]
        for d in range(len(target) if 0 not in source else 0):
            while rest and at(block, self.given) < prod(numbers[first : d + 1]):
                block *= rest.pop(0)
            if at(block, self.given) == prod(numbers[first : d + 1]):
                _complete(found, range(first, d + 1), block)
                block, first = 1, d + 1
        return tuple(found)


def _number(value: Attribute) -> Attribute:
    if isinstance(value, tuple):
        return tuple(map(_number, value))
    return int(value) if isinstance(value, Size) and not value.is_general else value


def _complete(shape: list[int], axes: range, total: int) -> None:
    """Gives the first of the axes that can have it the size that the others leave over of `total`."""
    if not isinstance(total, Size) or any(isinstance(shape[d], Size) for d in axes):
        return
    for d in axes:
        size = total // prod(shape[e] for e in axes if e != d)
        if isinstance(size, Size) and not any(isinstance(a, Quotient) for p, _ in size.terms for a in p):
            shape[d] = size
            return
