"""Takes the arrays of one batch element apart into numbers, each of which lives in a register.

What a thread runs by itself has no lanes to share an array with, and its registers have no addresses. So an
array that statements make becomes one value for each of its elements; operators that only move elements
disappear. Arrays from outside stay in memory: their elements are read where they are used. A carried array
that is too large for registers also stays there, if each trip of its loop writes a few elements: it is then
updated in the element's own part of the result, of which only the latest state can be read.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np

from jax_cocktail.device.tuning import ElementTuning
from jax_cocktail.schedule.vmap.cut import Uncuttable
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator
from jax_cocktail.utask.operators import ELEMENTWISE
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import TensorType, Value

Start: TypeAlias = Value | int


@dataclass(frozen=True, slots=True)
class Memory:
    """A dense part of an array in memory that nothing writes meanwhile: from `starts` on, along every axis.
    `axes`: the axis of the array that each axis of the part is; None: it has one position."""

    array: Value
    starts: tuple[Start, ...]
    axes: tuple[int | None, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The own part of result `number`, which lies in memory and is updated there; `starts` as in `Memory`.
    `version`: the state of the array that it shows, which must be the latest: memory has no other."""

    number: int
    starts: tuple[Start, ...]
    shape: tuple[int, ...]
    version: int = field(default=0, compare=False)


Registers: TypeAlias = np.ndarray[Any, Any]  # of values with one element
Held: TypeAlias = "Registers | Memory | Place"


class Apart:
    """Rewrites statements so that every value which they make has one element.

    `forms`: what other operators than elementwise ones become (see `register_forms`); `results`: the arrays
    that hold the parts of `Place`, as they are by now. Raises Uncuttable.
    """

    def __init__(
        self,
        fresh: FreshValues,
        forms: Mapping[str, Form],
        limits: ElementTuning,
        results: Sequence[Value] = (),
    ) -> None:
        self.build, self.forms = Builder(fresh), forms
        self.limits, self.left = limits, limits.statements
        self.results = list(results)
        self.versions = [0] * len(self.results)  # the latest
        self.updatable = frozenset(range(len(self.results)))  # those that the region at hand hands on
        self._made = 0  # versions
        self.held: ChainMap[Value, Held] = ChainMap()  # by scope
        self.known: dict[object, Value] = {}  # constants in scope
        self.inside: dict[Value, int] = {}  # positions that are less than so much, and not negative

    # -- values ------------------------------------------------------------------------------------------
    def of(self, value: Value) -> Held:
        """Memory or registers that hold a value; one from outside lies in memory, or in a register."""
        if value not in self.held:
            rank = value.type.rank
            whole = Memory(value, (0,) * rank, tuple(range(rank)), value.type.shape)
            return self.loaded(whole) if value.type.is_scalar else whole
        return self.held[value]

    def registers(self, value: Value) -> Registers:
        """The elements of a value, loaded if need be."""
        held = self.of(value)
        if isinstance(held, np.ndarray):
            return held
        if isinstance(held, Place):
            raise Uncuttable("a large array of an element is read whole")
        self.held[value] = found = self.loaded(held)
        return found

    def one(self, value: Value) -> Value:
        """The register of a value with one element."""
        return cast(Value, self.registers(value).reshape(-1)[0])

    def loaded(self, part: Memory) -> Registers:
        found = self.empty(part.shape)
        for place in np.ndindex(found.shape):
            found[place] = self._element(part, place)
        return found

    def _element(self, part: Memory, place: Sequence[int]) -> Value:
        moved = {axis: k for axis, k in zip(part.axes, place, strict=True) if axis is not None}
        starts = [self.moved(start, moved.get(axis, 0)) for axis, start in enumerate(part.starts)]
        return self.at(part.array, starts)

    def at(self, array: Value, starts: Sequence[Start]) -> Value:
        """One element of an array in memory."""
        if array.type.is_scalar:
            return self.build.reshape(array, ())
        ones = (1,) * array.type.rank
        if all(isinstance(start, int) for start in starts):
            element = self.build.slice(array, cast("Sequence[int]", starts), ones)
        else:
            inputs = (array, *(self._index(start) for start in starts))
            element = self.build.emit("dynamic_slice", inputs, array.type.dtype, ones)
        return self.build.reshape(element, ())

    def moved(self, start: Start, by: int) -> Start:
        if isinstance(start, int):
            return start + by
        return self.build.binary("add", start, self.number(by, start.type.dtype)) if by else start

    def _index(self, start: Start) -> Value:
        return self.number(start, INDEX.dtype) if isinstance(start, int) else start

    def empty(self, shape: Sequence[int]) -> Registers:
        if prod(shape) > self.limits.numbers:
            raise Uncuttable(f"an array of {prod(shape)} numbers for each element does not fit in registers")
        return np.empty(tuple(shape), object)

    def number(self, number: object, dtype: str) -> Value:
        """A constant."""
        return self.constant(np.asarray(number, dtype).tobytes(), dtype)

    def constant(self, data: bytes, dtype: str) -> Value:
        if (data, dtype) not in self.known:
            self.known[data, dtype] = self.build.emit("constant", (), dtype, data=data)
        return self.known[data, dtype]

    # -- large arrays ------------------------------------------------------------------------------------
    def latest(self, part: Place) -> Place:
        """The part, which is read or updated now."""
        if part.version != self.versions[part.number]:
            raise Uncuttable("an older state of a large array of an element is read")
        return part

    def renewed(self, number: int, array: Value) -> int:
        """Goes on with another array for a result. Returns the version."""
        self._made += 1
        self.results[number], self.versions[number] = array, self._made
        return self._made

    def updated(self, part: Place) -> Place:
        """The part after an update of the array."""
        self.latest(part)
        if part.number not in self.updatable:
            raise Uncuttable("a large array of an element is updated where it is not handed on")
        return replace(part, version=self.renewed(part.number, self.results[part.number]))

    # -- statements --------------------------------------------------------------------------------------
    def statements(self, body: Sequence[Statement]) -> None:
        """Appends the statements to those of the builder."""
        for statement in body:
            self.build.source = statement.source
            before = len(self.build.out)
            if isinstance(statement, LoopUTask):
                self._loop(statement)
            elif isinstance(statement, BranchUTask):
                self._branch(statement)
            else:
                assert isinstance(statement, UOperator)
                self._operator(statement)
            self.left -= len(self.build.out) - before
            if self.left < 0:
                raise Uncuttable("the code for one element would be too long")

    def _operator(self, operator: UOperator) -> None:
        if operator.kind in ELEMENTWISE:
            operands = [self.registers(v) for v in operator.inputs]
            self.held[operator.output] = self.each(operator, operands)
        elif operator.kind in self.forms:
            found = self.forms[operator.kind](self, operator)
            held = found if isinstance(found, tuple) else (found,)
            self.held.update(zip(operator.outputs, held, strict=True))
        else:
            raise Uncuttable(f"{operator.kind} has no form in registers")

    def each(self, operator: UOperator, operands: Sequence[Registers]) -> Registers:
        """An elementwise operator for each element."""
        found = self.empty(operator.output.type.shape)
        for place in np.ndindex(found.shape):
            found[place] = self.again(operator, [cast(Value, operand[place]) for operand in operands])
        return found

    def again(self, operator: UOperator, inputs: Sequence[Value]) -> Value:
        """An operator on other operands, with one element."""
        output = self.build.fresh.make(TensorType(operator.output.type.dtype))
        self.build.out.append(replace(operator, inputs=tuple(inputs), outputs=(output,)))
        exact = operator.kind == "convert" and output.type.dtype in ("int32", "int64")
        if exact and inputs[0] in self.inside:
            self.inside[output] = self.inside[inputs[0]]
        return output

    # -- control flow ------------------------------------------------------------------------------------
    def _inside(
        self,
        region: Region,
        parameters: Sequence[Value],
        given: Mapping[Value, Held],
        ends: _Ends,
        updatable: Collection[int],
    ) -> Region:
        """A nested region, with the results that `ends` finds for it. `updatable`: the large arrays that it
        hands on."""
        outer, known, places = self.build, self.known, (list(self.results), list(self.versions))
        before, self.updatable = self.updatable, self.updatable.intersection(updatable)
        self.build, self.known = Builder(outer.fresh, outer.source), dict(known)
        self.held = self.held.new_child(dict(given))
        self.statements(region.body)
        results = ends(region.results)
        inner = Region(tuple(parameters), tuple(self.build.out), tuple(results))
        self.build, self.known, self.updatable = outer, known, before
        self.results, self.versions = places
        self.held = self.held.parents
        return inner

    def _loop(self, loop: LoopUTask) -> None:
        starts = [self.of(v) for v in loop.initial]
        starts = [self.loaded(s) if isinstance(s, Memory) else s for s in starts]
        for start in starts:
            if isinstance(start, Place):
                self.latest(start)
        layout = _Layout(starts, self)
        initial = layout.flat(starts)
        if len(initial) > self.limits.carried:
            raise Uncuttable(f"a loop carries {len(initial)} numbers for each element")
        index = [] if loop.index is None else [loop.index]
        condition = None
        if loop.condition is not None:
            tested, given = layout.parameters(loop.condition.parameters)
            condition = self._inside(
                loop.condition, tested, given, lambda results: [self.one(v) for v in results], ()
            )
        carried, given = layout.parameters(loop.carried)
        numbers = [self.build.fresh.make(v.type) for v in index]
        given |= {v: single(n) for v, n in zip(index, numbers, strict=True)}
        body = self._inside(loop.body, [*numbers, *carried], given, layout.values, layout.places)
        outputs, held = layout.parameters(loop.outputs)
        self.held |= held
        ends = tuple(initial), tuple(outputs)
        likely, source = loop.likely_trips, loop.source
        made = LoopUTask(*ends, body, condition, loop.trip_count, source, likely_trips=likely)
        self.build.out.append(made)

    def _branch(self, branch: BranchUTask) -> None:
        selector = self.one(branch.selector)
        layout = _Layout([self._held_by(branch, k) for k in range(len(branch.outputs))], self)
        places, values = layout.places, layout.values
        regions = tuple(self._inside(region, (), {}, values, places) for region in branch.branches)
        outputs, ends = layout.parameters(branch.outputs)
        self.held |= ends
        self.build.out.append(
            replace(branch, selector=selector, branches=regions, outputs=tuple(outputs), stage=None)
        )

    def _held_by(self, branch: BranchUTask, k: int) -> Held:
        """Registers for result k of a branch, or the place of a large array that a side hands on."""
        for region in branch.branches:
            held = self.held.get(region.results[k])
            if isinstance(held, Place):
                return held
        return self.empty(branch.outputs[k].type.shape)


class _Layout:
    """The values with one element that the values become which a loop carries, or a branch gives: their
    elements in order. In the place of those that lie in memory, the arrays with them come first."""

    def __init__(self, held: Sequence[Held], apart: Apart) -> None:
        self.held, self.apart = held, apart
        self.places = sorted({h.number for h in held if isinstance(h, Place)})

    def flat(self, held: Sequence[Held]) -> list[Value]:
        """The values, from what holds them."""
        found = [self.apart.results[k] for k in self.places]
        for each in held:
            found += [] if isinstance(each, Place) else list(cast(Registers, each).reshape(-1))
        return found

    def values(self, values: Sequence[Value]) -> list[Value]:
        """The results of a region."""
        apart, held = self.apart, list[Held]()
        for value, kept in zip(values, self.held, strict=True):
            now = apart.of(value)
            places = isinstance(kept, Place), isinstance(now, Place)
            if any(places) and not (all(places) and kept == now):
                raise Uncuttable("a large array of an element is not updated in place")
            if isinstance(now, Place):
                apart.latest(now)
            held.append(apart.registers(value) if isinstance(now, Memory) else now)
        return self.flat(held)

    def parameters(self, values: Sequence[Value]) -> tuple[list[Value], dict[Value, Held]]:
        """Fresh values in the place of `values`, and what holds each of these then."""
        apart, held = self.apart, dict[Value, Held]()
        found = [apart.build.fresh.make(apart.results[k].type) for k in self.places]
        versions = {k: apart.renewed(k, value) for k, value in zip(self.places, found, strict=True)}
        for value, kept in zip(values, self.held, strict=True):
            if isinstance(kept, Place):
                held[value] = replace(kept, version=versions[kept.number])
                continue
            registers = apart.empty(value.type.shape)
            for place in np.ndindex(registers.shape):
                registers[place] = apart.build.fresh.make(TensorType(value.type.dtype))
            held[value] = registers
            found += list(registers.reshape(-1))
        return found, held


Form: TypeAlias = Callable[[Apart, UOperator], "Held | tuple[Held, ...]"]
_Ends: TypeAlias = Callable[[Sequence[Value]], Sequence[Value]]


def single(value: Value) -> Registers:
    """A register as an array with one element of any shape of one."""
    found = np.empty((), object)
    found[()] = value
    return found
