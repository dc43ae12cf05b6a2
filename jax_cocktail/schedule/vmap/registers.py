"""Takes the arrays of one batch element apart into numbers, each of which lives in a register.

What a thread runs by itself has no lanes to share an array with, and its registers have no addresses. So an
array that statements make becomes one value for each of its elements; operators that only move elements
disappear. Arrays from outside stay in memory: their elements are read where they are used. A carried array
that is too large for registers also stays there, if each trip of its loop writes a few elements: it is then
updated in the element's own part of the result, of which only the latest state can be read. Other arrays
that are too large for registers lie in the memory that each thread has for itself (see `local_arrays`).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from typing import TypeAlias, TypeVar, cast

import numpy as np

from jax_cocktail.device.tuning import PROGRAM, ElementTuning
from jax_cocktail.schedule.vmap.cut import Uncuttable
from jax_cocktail.schedule.vmap.held import (
    Computed,
    Held,
    Local,
    Memory,
    Place,
    Registers,
    Start,
    single,
)
from jax_cocktail.schedule.vmap.local_arrays import (
    copied,
    filled,
    flattened,
    indexable,
    is_free,
    new_array,
    read,
    shaped,
)
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    definitions,
    free_values,
    is_a,
    reads,
)
from jax_cocktail.utask.operators import ELEMENTWISE
from jax_cocktail.utask.sizes import size_in, sized
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import TensorType, Value

_Kept = TypeVar("_Kept", Place, Local)


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
        self.naming: dict[int, list[Value]] = {}  # values that lie in an array of the thread, by its number
        self.last: dict[Value, float] = {}  # the last statement of the region at hand that reads a value
        self.now = 0  # the number of the statement at hand

    # -- values ------------------------------------------------------------------------------------------
    def of(self, value: Value) -> Held:
        """Memory or registers that hold a value; one from outside lies in memory, or in a register."""
        if value not in self.held:
            rank = value.type.rank
            whole = Memory(value, (0,) * rank, tuple(range(rank)), value.type.shape)
            return self.loaded(whole) if value.type.is_scalar else whole
        held = self.held[value]
        if isinstance(held, Local):
            self.latest(held)
        return held

    def registers(self, value: Value) -> Registers:
        """The elements of a value, loaded if need be."""
        held = self.of(value)
        if isinstance(held, np.ndarray):
            return held
        if isinstance(held, Place):
            raise Uncuttable("a large array of an element is read whole")
        found = self.loaded(held)
        if not isinstance(held, Local):
            self.held[value] = found
        return found

    def one(self, value: Value) -> Value:
        """The register of a value with one element."""
        return cast(Value, self.registers(value).reshape(-1)[0])

    def loaded(self, part: Memory | Local | Computed) -> Registers:
        found = self.empty(part.shape)
        for place in np.ndindex(found.shape):
            found[place] = self._element(part, place) if isinstance(part, Memory) else read(self, part, place)
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
        return self.constant(sized(np.asarray(number, dtype).tobytes(), number), dtype)

    def constant(self, data: bytes, dtype: str) -> Value:
        key = data, size_in(data), dtype
        if key not in self.known:
            self.known[key] = self.build.emit("constant", (), dtype, data=data)
        return self.known[key]

    # -- large arrays ------------------------------------------------------------------------------------
    def latest(self, part: _Kept) -> _Kept:
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
    def statements(self, body: Sequence[Statement], results: Sequence[Value]) -> None:
        """Appends the statements to those of the builder. `results`: values that are read behind them."""
        outer = self.last, self.now
        self.last = {v: k for k, statement in enumerate(body) for v in reads(statement)}
        self.last |= dict.fromkeys(results, inf)
        for self.now, statement in enumerate(body):
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
        self.last, self.now = outer

    def _operator(self, operator: UOperator) -> None:
        if operator.kind in ELEMENTWISE:
            self.keep(operator.output, self._each(operator))
        elif operator.kind in self.forms:
            found = self.forms[operator.kind](self, operator)
            every = found if isinstance(found, tuple) else (found,)
            for value, held in zip(operator.outputs, every, strict=True):
                self.keep(value, held)
        else:
            raise Uncuttable(f"{operator.kind} has no form in registers")

    def keep(self, value: Value, held: Held) -> None:
        """Notes what holds a value. The few elements of a part of an array are loaded before it changes."""
        if isinstance(held, Local) and value.type.size <= self.limits.numbers:
            held = self.loaded(held)
        if isinstance(held, Local):
            self.naming.setdefault(held.number, []).append(value)
        self.held[value] = held

    def _each(self, operator: UOperator) -> Held:
        """An elementwise operator for each element: by a loop if there are many, in the array of an operand
        if nobody reads it afterwards."""
        shape, dtype = operator.output.type.shape, operator.output.type.dtype
        if operator.output.type.size <= self.limits.numbers:
            operands = [self.registers(v) for v in operator.inputs]
            found = self.empty(shape)
            for place in np.ndindex(found.shape):
                found[place] = self.again(operator, [cast(Value, operand[place]) for operand in operands])
            return found
        held = [indexable(self, self.of(v)) for v in operator.inputs]
        cost = operator.facts.cost + sum(each.cost for each in held if isinstance(each, Computed))

        def element(at: Sequence[Start]) -> Value:
            return self.again(operator, [read(self, each, at) for each in held])

        if cost <= PROGRAM.hoisted_flops and all(isinstance(each, Computed) for each in held):
            return Computed(element, dtype, shape, cost)
        local = [each for each in held if isinstance(each, Local)]
        numbers = [each.number for each in local]
        once = (each for each in local if numbers.count(each.number) == 1)
        fits = (each for each in once if self.results[each.number].type.dtype == dtype)
        into = next((each for each in fits if is_free(self, each)), None)
        flat = [flattened(each) for each in held]
        if None not in flat:
            held, shape = cast("list[Held]", flat), (operator.output.type.size,)
            into = cast("Local | None", into and flattened(into))
        return shaped(filled(self, dtype, shape, element, into), operator.output.type.shape)

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
        self.statements(region.body, region.results)
        results = ends(region.results)
        inner = Region(tuple(parameters), tuple(self.build.out), tuple(results))
        self.build, self.known, self.updatable = outer, known, before
        self.results, self.versions = places
        self.held = self.held.parents
        return inner

    def _loop(self, loop: LoopUTask) -> None:
        starts = list[Held]()
        inside = {v for region in loop.regions for v in free_values(region)}
        for value in loop.initial:
            starts.append(self._start(value, starts, inside))
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

    def _start(self, value: Value, others: Sequence[Held], inside: Collection[Value]) -> Held:
        """The place of a carry, with its initial value. `others`: those of carries in front of it; `inside`:
        values that the loop reads beside its carries."""
        held = self.of(value)
        if isinstance(held, Place):
            return self.latest(held)
        if value.type.size <= self.limits.numbers:
            return self.registers(value)
        taken = {other.number for other in others if isinstance(other, Local)}
        if isinstance(held, Local) and held.number not in taken and is_free(self, held, inside):
            return held
        return copied(self, held)

    def _branch(self, branch: BranchUTask) -> None:
        selector = self.one(branch.selector)
        kept = list[Held]()
        for k in range(len(branch.outputs)):
            kept.append(self._held_by(branch, k, kept))
        layout = _Layout(kept, self)
        places, values = layout.places, layout.values
        regions = tuple(self._inside(region, (), {}, values, places) for region in branch.branches)
        outputs, ends = layout.parameters(branch.outputs)
        self.held |= ends
        self.build.out.append(
            replace(branch, selector=selector, branches=regions, outputs=tuple(outputs), stage=None)
        )

    def _held_by(self, branch: BranchUTask, k: int, others: Sequence[Held]) -> Held:
        """Registers for result k of a branch, or the place of a large array that a side hands on. `others`:
        those of the results in front of it."""
        type_ = branch.outputs[k].type
        taken = {other.number for other in others if isinstance(other, Local)}
        for region in branch.branches:
            held = self.held.get(_updated(region, region.results[k]))
            if isinstance(held, Place):
                return held
            fits = isinstance(held, Local) and held.number not in taken and held.shape == type_.shape
            if isinstance(held, Local) and fits and is_free(self, held):
                return held
        if type_.size > self.limits.numbers:
            return new_array(self, type_.dtype, type_.shape)
        return self.empty(type_.shape)


def _updated(region: Region, value: Value) -> Value:
    """The array that a region hands on as a value with some elements replaced."""
    made = definitions(region)
    while is_a(maker := made.get(value), "dynamic_update_slice", "scatter"):
        value = maker.inputs[0]
    return value


class _Layout:
    """The values with one element that the values become which a loop carries, or a branch gives: their
    elements in order. In the place of those that lie in memory, the arrays with them come first."""

    def __init__(self, held: Sequence[Held], apart: Apart) -> None:
        self.held, self.apart = held, apart
        self.places = sorted({h.number for h in held if isinstance(h, Place | Local)})

    def flat(self, held: Sequence[Held]) -> list[Value]:
        """The values, from what holds them."""
        found = [self.apart.results[k] for k in self.places]
        for each in held:
            found += list(each.reshape(-1)) if isinstance(each, np.ndarray) else []
        return found

    def values(self, values: Sequence[Value]) -> list[Value]:
        """The results of a region, with arrays where they are kept."""
        apart, held, moves = self.apart, list[Held](), list[tuple[Held, Local]]()
        for value, kept in zip(values, self.held, strict=True):
            now = apart.of(value)
            if isinstance(kept, Local):
                if not (isinstance(now, Local) and now.number == kept.number and now.is_whole):
                    moves.append((now, kept))
                held.append(kept)
                continue
            places = isinstance(kept, Place), isinstance(now, Place)
            if any(places) and not (all(places) and kept == now):
                raise Uncuttable("a large array of an element is not updated in place")
            held.append(apart.latest(now) if isinstance(now, Place) else apart.registers(value))
        written = {target.number for _, target in moves}
        sources = [
            copied(apart, source) if isinstance(source, Local) and source.number in written else source
            for source, _ in moves
        ]
        for source, (_, target) in zip(sources, moves, strict=True):
            copied(apart, source, target)
        return self.flat(held)

    def parameters(self, values: Sequence[Value]) -> tuple[list[Value], dict[Value, Held]]:
        """Fresh values in the place of `values`, and what holds each of these then."""
        apart, held = self.apart, dict[Value, Held]()
        found = [apart.build.fresh.make(apart.results[k].type) for k in self.places]
        versions = {k: apart.renewed(k, value) for k, value in zip(self.places, found, strict=True)}
        for value, kept in zip(values, self.held, strict=True):
            if isinstance(kept, Place | Local):
                held[value] = replace(kept, version=versions[kept.number])
                if isinstance(kept, Local):
                    apart.naming.setdefault(kept.number, []).append(value)
                continue
            registers = apart.empty(value.type.shape)
            for place in np.ndindex(registers.shape):
                registers[place] = apart.build.fresh.make(TensorType(value.type.dtype))
            held[value] = registers
            found += list(registers.reshape(-1))
        return found, held


Form: TypeAlias = Callable[[Apart, UOperator], "Held | tuple[Held, ...]"]
_Ends: TypeAlias = Callable[[Sequence[Value]], Sequence[Value]]
