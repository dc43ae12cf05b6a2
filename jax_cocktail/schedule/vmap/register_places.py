"""The operators that read and write small arrays of a batch element at positions which are computed: in
registers by comparing each position, in memory at once; see `registers`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import cast

import numpy as np

from jax_cocktail.schedule.vmap import local_arrays as local
from jax_cocktail.schedule.vmap.cut import Uncuttable
from jax_cocktail.schedule.vmap.held import Computed, Held, Local, Memory, Place, Registers, Start, single
from jax_cocktail.schedule.vmap.registers import Apart, Form
from jax_cocktail.utask.builder import INDEX
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import Value


def _clamped(apart: Apart, start: Value, most: int) -> Start:
    """A position, moved into 0 to `most`."""
    if not most:
        return 0
    if apart.inside.get(start, most + 2) <= most + 1:
        return apart.build.convert(start, INDEX.dtype)
    if start.type.dtype == "uint64":
        raise Uncuttable("positions in uint64")
    wide = apart.build.convert(start, INDEX.dtype)
    limits = apart.number(0, INDEX.dtype), apart.number(most, INDEX.dtype)
    return apart.build.emit("clamp", (limits[0], wide, limits[1]), INDEX)


def _equal(apart: Apart, start: Start, number: int) -> Value | bool:
    if isinstance(start, int):
        return start == number
    return apart.build.compare("eq", start, apart.number(number, start.type.dtype))


def _if_all(apart: Apart, tests: Sequence[Value | bool], value: Value, other: Value) -> Value:
    """`value` if all tests hold, else `other`."""
    if any(test is False for test in tests):
        return other
    found = [test for test in tests if isinstance(test, Value)]
    if not found:
        return value
    every = found[0]
    for test in found[1:]:
        every = apart.build.binary("and", every, test)
    return apart.build.select(every, value, other)


def _read(apart: Apart, held: Held, starts: Sequence[Start]) -> Value:
    """The element at a position in bounds."""
    if isinstance(held, Local | Computed):
        return local.read(apart, held, starts)
    if isinstance(held, np.ndarray):
        ranges = [[s] if isinstance(s, int) else range(n) for s, n in zip(starts, held.shape, strict=True)]
        places = list(product(*ranges))
        found = cast(Value, held[places[-1]])
        for place in places[:-1]:
            tests = [_equal(apart, s, k) for s, k in zip(starts, place, strict=True)]
            found = _if_all(apart, tests, cast(Value, held[place]), found)
        return found
    if isinstance(held, Place):
        whole = _moved(apart, apart.latest(held).starts, starts)
        return apart.at(apart.results[held.number], whole)
    return local.read(apart, held, starts)


def _begins(apart: Apart, starts: Sequence[Value], shape: Sequence[int], part: Sequence[int]) -> list[Start]:
    sizes = zip(starts, shape, part, strict=True)
    return [_clamped(apart, apart.one(start), n - size) for start, n, size in sizes]


def _moved(apart: Apart, begins: Sequence[Start], place: Sequence[Start]) -> list[Start]:
    """A place in a part, in the whole."""
    return [local.added(apart, begin, k) for begin, k in zip(begins, place, strict=True)]


def _dynamic_slice(apart: Apart, operator: UOperator) -> Held:
    source, *starts = operator.inputs
    held, shape = apart.of(source), operator.output.type.shape
    begins = _begins(apart, starts, source.type.shape, shape)
    if isinstance(held, Memory) and None not in held.axes:
        moved = list(held.starts)
        for axis, begin in zip(held.axes, begins, strict=True):
            moved[cast(int, axis)] = local.added(apart, moved[cast(int, axis)], begin)
        return Memory(held.array, tuple(moved), held.axes, shape)
    if isinstance(held, Computed):
        whole = held
        return replace(held, shape=shape, element=lambda at: whole.element(_moved(apart, begins, at)))
    if isinstance(held, Local):
        return replace(held, offset=local.moved_to(apart, held, begins), shape=shape)
    found = apart.empty(shape)
    for place in np.ndindex(found.shape):
        found[place] = _read(apart, held, _moved(apart, begins, place))
    return found


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of a gather or scatter in an array of this `shape`, of `sizes`. `along`: the axes of the
    result or of the updates that run along them; `hidden`: axes of the array that they lack; `batching`: axes
    of the array, each with its axis among those that are not `along`; `mapped`: the axis of each component of
    an index; `tests`: windows out of bounds count for nothing."""

    shape: Sequence[int]
    sizes: Sequence[int]
    along: Sequence[int]
    hidden: Collection[int]
    batching: Sequence[tuple[int, int]]
    mapped: Sequence[int]
    tests: bool

    def at(
        self, apart: Apart, indices: Held, place: Sequence[Start]
    ) -> tuple[list[Start], list[Value | bool]]:
        """The position in the array for a place of the result or of the updates, and its tests."""
        batch = [k for d, k in enumerate(place) if d not in self.along]
        window = iter([place[d] for d in self.along])
        at: list[Start] = [0 if d in self.hidden else next(window) for d in range(len(self.shape))]
        for d, b in self.batching:
            at[d] = batch[b]
        inside: list[Value | bool] = []
        for component, d in enumerate(self.mapped):
            start, limit = _read(apart, indices, (*batch, component)), self.shape[d] - self.sizes[d]
            if self.tests:
                inside += _within(apart, start, limit)
            at[d] = local.added(apart, at[d], _clamped(apart, start, limit))
        return at, inside


def _gather(apart: Apart, operator: UOperator) -> Held:
    """As `stablehlo.gather`; the index vector is the last axis of the indices."""
    operand, table = operator.inputs
    held, indices, shape = apart.of(operand), apart.of(table), operator.output.type.shape
    is_large = operator.output.type.size > apart.limits.numbers
    if is_large:
        held, indices = local.indexable(apart, held), local.indexable(apart, indices)
    else:
        indices = apart.registers(table)
    batching = operator.ints("operand_batching_dims")
    windows = _Windows(
        operand.type.shape,
        operator.ints("slice_sizes"),
        operator.ints("offset_dims"),
        {*operator.ints("collapsed_slice_dims"), *batching},
        tuple(zip(batching, operator.ints("start_indices_batching_dims"), strict=True)),
        operator.ints("start_index_map"),
        operator["mode"] == "fill",
    )
    dtype = operand.type.dtype
    filler = apart.constant(cast(bytes, operator["fill_value"]), dtype)

    def element(place: Sequence[Start]) -> Value:
        at, inside = windows.at(apart, indices, place)
        return _if_all(apart, inside, _read(apart, held, at), filler)

    if is_large:
        return local.filled(apart, dtype, shape, element)
    found = apart.empty(shape)
    for place in np.ndindex(found.shape):
        found[place] = element(place)
    return found


def _within(apart: Apart, start: Value, limit: int) -> list[Value | bool]:
    """The tests for a position in 0 to `limit`."""
    if start.type.dtype == "uint64":
        raise Uncuttable("positions in uint64")
    wide = apart.build.convert(start, INDEX.dtype)
    low, high = apart.number(0, INDEX.dtype), apart.number(limit, INDEX.dtype)
    return [apart.build.compare("ge", wide, low), apart.build.compare("le", wide, high)]


def _update(apart: Apart, operator: UOperator) -> Held:
    target, update, *starts = operator.inputs
    new = apart.registers(update) if update.type.size <= apart.limits.numbers else apart.of(update)
    begins = _begins(apart, starts, target.type.shape, update.type.shape)
    held = apart.of(target)
    if isinstance(held, Place):
        starts_of_part = tuple(_moved(apart, apart.latest(held).starts, begins))
        store(apart, Place(held.number, starts_of_part, update.type.shape), new)
        return apart.updated(held)
    if target.type.size > apart.limits.numbers:
        array = local.writable(apart, target, [update])
        _put_all(apart, array, begins, new)
        return local.renewed(apart, array)
    found = apart.registers(target).copy()
    assert isinstance(new, np.ndarray)
    for place in np.ndindex(new.shape):
        at = _moved(apart, begins, place)
        _put(apart, found, at, cast(Value, new[place]), [])
    return found


def _put_all(apart: Apart, array: Local, begins: Sequence[Start], new: Held) -> None:
    """Writes elements into a part of an array of the thread."""

    def put(place: Sequence[Start], value: Value) -> None:
        local.write(apart, array, _moved(apart, begins, place), value)

    if isinstance(new, np.ndarray):
        for place in np.ndindex(new.shape):
            put(place, cast(Value, new[place]))
        return
    source = local.indexable(apart, new)
    local.over(apart, source.shape, [array.number], lambda at: put(at, local.read(apart, source, at)))


def _put(
    apart: Apart, found: Registers, at: Sequence[Start], value: Value, tests: Sequence[Value | bool]
) -> None:
    """Sets the element at a position, if the tests hold too."""
    ranges = [[k] if isinstance(k, int) else range(n) for k, n in zip(at, found.shape, strict=True)]
    for place in product(*ranges):
        own = [*tests, *(_equal(apart, k, n) for k, n in zip(at, place, strict=True))]
        found[place] = _if_all(apart, own, value, cast(Value, found[place]))


def _scatter(apart: Apart, operator: UOperator) -> Held:
    """As `stablehlo.scatter`: updates in order; the index vector is the last axis of the indices."""
    operand, table, updates = operator.inputs
    shape, few = operand.type.shape, apart.limits.numbers
    is_large = operand.type.size > few and not isinstance(apart.of(operand), Place)
    indices = local.indexable(apart, apart.of(table)) if is_large else apart.registers(table)
    values = local.indexable(apart, apart.of(updates)) if is_large else apart.registers(updates)
    along, batching = operator.ints("update_window_dims"), operator.ints("operand_batching_dims")
    hidden = {*operator.ints("inserted_window_dims"), *batching}
    kept = iter([updates.type.shape[d] for d in along])
    windows = _Windows(
        shape,
        [1 if d in hidden else next(kept) for d in range(len(shape))],
        along,
        hidden,
        tuple(zip(batching, operator.ints("scatter_indices_batching_dims"), strict=True)),
        operator.ints("scatter_dims_to_operand_dims"),
        operator["mode"] != "clip",
    )
    held = apart.of(operand)
    if is_large:
        held = local.writable(apart, operand, [table, updates])
    elif not isinstance(held, Place):
        held = apart.registers(operand).copy()

    def combine(place: Sequence[Start]) -> None:
        at, inside = windows.at(apart, indices, place)
        _combine(apart, operator.text("op"), held, at, _read(apart, values, place), inside)

    if isinstance(held, Local):
        local.over(apart, updates.type.shape, [held.number], combine)
        return local.renewed(apart, held)
    for place in np.ndindex(updates.type.shape):
        combine(place)
    return apart.updated(held) if isinstance(held, Place) else held


def _combine(
    apart: Apart, op: str, held: Held, at: Sequence[Start], value: Value, tests: Sequence[Value | bool]
) -> None:
    """Updates the element at a position, if the tests hold."""
    if isinstance(held, np.ndarray):
        old = _read(apart, held, at) if op != "set" else value
        _put(apart, held, at, value if op == "set" else apart.build.binary(op, old, value), tests)
        return
    assert isinstance(held, Place | Local)
    if op != "set" or tests:
        old = _read(apart, held, at)
        new = value if op == "set" else apart.build.binary(op, old, value)
        value = _if_all(apart, tests, new, old)
    if isinstance(held, Local):
        local.write(apart, held, at, value)
        return
    starts = tuple(_moved(apart, held.starts, at))
    store(apart, Place(held.number, starts, (1,) * len(starts)), single(value).reshape((1,) * len(starts)))


def store(apart: Apart, part: Place, elements: Held) -> None:
    """Writes elements into a part of a result."""
    rank = len(part.starts)

    def put(place: Sequence[Start], value: Value) -> None:
        starts = _moved(apart, part.starts, place)
        begins = (apart.number(b, INDEX.dtype) if isinstance(b, int) else b for b in starts)
        whole = apart.results[part.number]
        inputs = (whole, apart.build.reshape(value, (1,) * rank), *begins)
        apart.results[part.number] = apart.build.emit("dynamic_update_slice", inputs, whole.type)

    if isinstance(elements, np.ndarray):
        for place in np.ndindex(part.shape):
            put(place, cast(Value, elements[place]))
        return
    source = local.indexable(apart, elements)
    local.over(apart, part.shape, [part.number], lambda at: put(at, local.read(apart, source, at)))


PLACES: Mapping[str, Form] = {
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "dynamic_update_slice": _update,
    "scatter": _scatter,
}
