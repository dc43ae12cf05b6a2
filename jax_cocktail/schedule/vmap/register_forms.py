"""The operators on small arrays, written out for the numbers of one batch element; see `registers`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import cast

import numpy as np

from jax_cocktail.schedule.vmap.cut import Uncuttable
from jax_cocktail.schedule.vmap.register_linalg import LINALG
from jax_cocktail.schedule.vmap.registers import (
    Apart,
    Form,
    Held,
    Memory,
    Place,
    Registers,
    Start,
    single,
)
from jax_cocktail.utask.builder import INDEX
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.maps import positions
from jax_cocktail.utask.operators import MAPPED
from jax_cocktail.utask.types import FLOATS, ITEM_SIZE, Value

_STEPS = {"sum": "add", "prod": "mul"}  # the operator of one step of a reduction; else it has the same name
_HALVES = ("bfloat16", "float16")


# -- leaves and moves ----------------------------------------------------------------------------------------
def _constant(apart: Apart, operator: UOperator) -> Held:
    type_ = operator.output.type
    width, found = ITEM_SIZE[type_.dtype], apart.empty(type_.shape)
    for n, place in enumerate(np.ndindex(found.shape)):
        found[place] = apart.constant(operator.data[n * width : (n + 1) * width], type_.dtype)
    return found


def _filled(apart: Apart, operator: UOperator) -> Held:
    """An `empty` array: nobody reads what it holds."""
    found = apart.empty(operator.output.type.shape)
    found[...] = apart.constant(bytes(ITEM_SIZE[operator.output.type.dtype]), operator.output.type.dtype)
    return found


def _iota(apart: Apart, operator: UOperator) -> Held:
    type_, axis = operator.output.type, operator.number("dimension")
    found = apart.empty(type_.shape)
    for place in np.ndindex(found.shape):
        found[place] = apart.build.convert(apart.number(place[axis], "int64"), type_.dtype)
    return found


def _mapped(apart: Apart, operator: UOperator) -> Held:
    """An operator whose element is one of the operand's, at a static position."""
    held, shape, map_ = apart.of(operator.inputs[0]), operator.output.type.shape, positions(operator)
    if isinstance(held, Memory) and all(p.axis is None or p.step == 1 for p in map_):
        starts, axes = list(held.starts), [cast("int | None", None)] * len(shape)
        for base, at in zip(held.axes, map_, strict=True):
            if base is not None:
                starts[base] = apart.moved(starts[base], at.start)
            if at.axis is not None:
                axes[at.axis] = base
        return Memory(held.array, tuple(starts), tuple(axes), shape)
    elements, found = apart.registers(operator.inputs[0]), apart.empty(shape)
    for place in np.ndindex(found.shape):
        from_ = (p.start if p.axis is None else p.start + p.step * place[p.axis] for p in map_)
        found[place] = elements[tuple(from_)]
    return found


def _reshape(apart: Apart, operator: UOperator) -> Held:
    held, shape = apart.of(operator.inputs[0]), operator.output.type.shape
    long = [d for d, n in enumerate(shape) if n != 1]
    if isinstance(held, Place) and held.shape == shape:
        return held
    if isinstance(held, Memory):
        kept = [d for d, n in enumerate(held.shape) if n != 1]
        if [held.shape[d] for d in kept] == [shape[d] for d in long]:
            axes = [cast("int | None", None)] * len(shape)
            for d, k in zip(long, kept, strict=True):
                axes[d] = held.axes[k]
            return Memory(held.array, held.starts, tuple(axes), shape)
    return apart.registers(operator.inputs[0]).reshape(shape)


def _concatenate(apart: Apart, operator: UOperator) -> Held:
    apart.empty(operator.output.type.shape)  # it may be too large
    parts = [apart.registers(v) for v in operator.inputs]
    return np.concatenate(parts, axis=operator.number("dimension"))


def _pad(apart: Apart, operator: UOperator) -> Held:
    elements, filler = apart.registers(operator.inputs[0]), apart.one(operator.inputs[1])
    found = apart.empty(operator.output.type.shape)
    found[...] = filler
    low, interior = operator.ints("low"), operator.ints("interior")
    for place in np.ndindex(elements.shape):
        to = tuple(a + k * (i + 1) for a, k, i in zip(low, place, interior, strict=True))
        if all(0 <= k < n for k, n in zip(to, found.shape, strict=True)):
            found[to] = elements[place]
    return found


# -- positions that are computed -----------------------------------------------------------------------------
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


def _added(apart: Apart, a: Start, b: Start) -> Start:
    if isinstance(a, int):
        return apart.moved(b, a)
    if isinstance(b, int):
        return apart.moved(a, b)
    return apart.build.binary("add", apart.build.convert(a, INDEX.dtype), apart.build.convert(b, INDEX.dtype))


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
    if isinstance(held, np.ndarray):
        ranges = [[s] if isinstance(s, int) else range(n) for s, n in zip(starts, held.shape, strict=True)]
        places = list(product(*ranges))
        found = cast(Value, held[places[-1]])
        for place in places[:-1]:
            tests = [_equal(apart, s, k) for s, k in zip(starts, place, strict=True)]
            found = _if_all(apart, tests, cast(Value, held[place]), found)
        return found
    if isinstance(held, Place):
        whole = [_added(apart, a, b) for a, b in zip(apart.latest(held).starts, starts, strict=True)]
        return apart.at(apart.results[held.number], whole)
    moved = list(held.starts)
    for axis, start in zip(held.axes, starts, strict=True):
        if axis is not None:
            moved[axis] = _added(apart, moved[axis], start)
    return apart.at(held.array, moved)


def _begins(apart: Apart, starts: Sequence[Value], shape: Sequence[int], part: Sequence[int]) -> list[Start]:
    sizes = zip(starts, shape, part, strict=True)
    return [_clamped(apart, apart.one(start), n - size) for start, n, size in sizes]


def _dynamic_slice(apart: Apart, operator: UOperator) -> Held:
    source, *starts = operator.inputs
    held, shape = apart.of(source), operator.output.type.shape
    begins = _begins(apart, starts, source.type.shape, shape)
    if isinstance(held, Memory) and None not in held.axes:
        moved = list(held.starts)
        for axis, begin in zip(held.axes, begins, strict=True):
            moved[cast(int, axis)] = _added(apart, moved[cast(int, axis)], begin)
        return Memory(held.array, tuple(moved), held.axes, shape)
    found = apart.empty(shape)
    for place in np.ndindex(found.shape):
        found[place] = _read(apart, held, [_added(apart, b, k) for b, k in zip(begins, place, strict=True)])
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
        self, apart: Apart, indices: Registers, place: Sequence[int]
    ) -> tuple[list[Start], list[Value | bool]]:
        """The position in the array for a place of the result or of the updates, and its tests."""
        batch = [k for d, k in enumerate(place) if d not in self.along]
        window = iter([place[d] for d in self.along])
        at: list[Start] = [0 if d in self.hidden else next(window) for d in range(len(self.shape))]
        for d, b in self.batching:
            at[d] = batch[b]
        inside: list[Value | bool] = []
        for component, d in enumerate(self.mapped):
            start, limit = cast(Value, indices[(*batch, component)]), self.shape[d] - self.sizes[d]
            if self.tests:
                inside += _within(apart, start, limit)
            at[d] = _added(apart, at[d], _clamped(apart, start, limit))
        return at, inside


def _gather(apart: Apart, operator: UOperator) -> Held:
    """As `stablehlo.gather`; the index vector is the last axis of the indices."""
    operand, table = operator.inputs
    held, indices = apart.of(operand), apart.registers(table)
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
    found, dtype = apart.empty(operator.output.type.shape), operand.type.dtype
    filler = apart.constant(cast(bytes, operator["fill_value"]), dtype)
    for place in np.ndindex(found.shape):
        at, inside = windows.at(apart, indices, place)
        found[place] = _if_all(apart, inside, _read(apart, held, at), filler)
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
    new = apart.registers(update)
    begins = _begins(apart, starts, target.type.shape, update.type.shape)
    held = apart.of(target)
    if isinstance(held, Place):
        starts_of_part = (_added(apart, a, b) for a, b in zip(apart.latest(held).starts, begins, strict=True))
        store(apart, Place(held.number, tuple(starts_of_part), update.type.shape), new)
        return apart.updated(held)
    found = apart.registers(target).copy()
    for place in np.ndindex(new.shape):
        at = [_added(apart, b, k) for b, k in zip(begins, place, strict=True)]
        _put(apart, found, at, cast(Value, new[place]), [])
    return found


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
    indices, values, shape = apart.registers(table), apart.registers(updates), operand.type.shape
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
    held = apart.registers(operand).copy() if not isinstance(held, Place) else held
    for place in np.ndindex(values.shape):
        at, inside = windows.at(apart, indices, place)
        _combine(apart, operator.text("op"), held, at, cast(Value, values[place]), inside)
    return apart.updated(held) if isinstance(held, Place) else held


def _combine(
    apart: Apart, op: str, held: Held, at: Sequence[Start], value: Value, tests: Sequence[Value | bool]
) -> None:
    """Updates the element at a position, if the tests hold."""
    if isinstance(held, np.ndarray):
        old = _read(apart, held, at) if op != "set" else value
        _put(apart, held, at, value if op == "set" else apart.build.binary(op, old, value), tests)
        return
    assert isinstance(held, Place)
    if op != "set" or tests:
        old = _read(apart, held, at)
        new = value if op == "set" else apart.build.binary(op, old, value)
        value = _if_all(apart, tests, new, old)
    starts = tuple(_added(apart, a, b) for a, b in zip(held.starts, at, strict=True))
    store(apart, Place(held.number, starts, (1,) * len(starts)), single(value).reshape((1,) * len(starts)))


def store(apart: Apart, part: Place, elements: Registers) -> None:
    """Writes elements into a part of a result."""
    rank = len(part.starts)
    for place in np.ndindex(part.shape):
        starts = (apart.moved(a, k) for a, k in zip(part.starts, place, strict=True))
        begins = (apart.number(b, INDEX.dtype) if isinstance(b, int) else b for b in starts)
        whole = apart.results[part.number]
        inputs = (whole, apart.build.reshape(cast(Value, elements[place]), (1,) * rank), *begins)
        apart.results[part.number] = apart.build.emit("dynamic_update_slice", inputs, whole.type)


# -- sums of many kinds --------------------------------------------------------------------------------------
def _folded(apart: Apart, op: str, values: Sequence[Value]) -> Value:
    """The values combined from first to last; those of 16 bits in float32."""
    dtype = values[0].type.dtype
    wide = "float32" if dtype in _HALVES else dtype
    found = apart.build.convert(values[0], wide)
    for value in values[1:]:
        found = apart.build.binary(_STEPS.get(op, op), found, apart.build.convert(value, wide))
    return apart.build.convert(found, dtype)


def _reduce(apart: Apart, operator: UOperator) -> Held:
    elements, axes = apart.registers(operator.inputs[0]), operator.ints("axes")
    if not elements.size:
        raise Uncuttable("a reduction of nothing")
    kept = [d for d in range(elements.ndim) if d not in axes]
    found = apart.empty(operator.output.type.shape)
    rows = elements.transpose([*kept, *axes]).reshape(*found.shape, -1)
    for place in np.ndindex(found.shape):
        found[place] = _folded(apart, operator.text("op"), list(rows[place]))
    return found


def _arg_reduce(apart: Apart, operator: UOperator) -> Held:
    """The first of the best; a NaN wins."""
    axis, test = operator.number("axis"), "gt" if operator["op"] == "max" else "lt"
    rows = np.moveaxis(apart.registers(operator.inputs[0]), axis, -1)
    found = apart.empty(operator.output.type.shape)
    build, dtype = apart.build, operator.output.type.dtype
    for place in np.ndindex(found.shape):
        best, number = rows[place][0], apart.number(0, dtype)
        for k, value in enumerate(rows[place][1:], 1):
            better = build.compare(test, value, best)
            if value.type.dtype in FLOATS:
                is_nan, was = build.compare("ne", value, value), build.compare("eq", best, best)
                better = build.binary("or", better, build.binary("and", is_nan, was))
            best = build.select(better, value, best)
            number = build.select(better, apart.number(k, dtype), number)
        found[place] = number
    return found


def _cumulative(apart: Apart, operator: UOperator) -> Held:
    axis, op = operator.number("axis"), operator.text("op")
    if op == "logsumexp":
        raise Uncuttable("cumulative logsumexp has no form in registers")
    elements = np.moveaxis(apart.registers(operator.inputs[0]), axis, -1)
    rows = elements[..., ::-1] if operator["reverse"] else elements
    found = apart.empty(rows.shape)
    dtype = operator.output.type.dtype
    wide = "float32" if dtype in _HALVES else dtype
    for place in np.ndindex(rows.shape[:-1]):
        total: Value | None = None
        for k in range(rows.shape[-1]):
            own = apart.build.convert(rows[(*place, k)], wide)
            total = own if total is None else apart.build.binary(_STEPS.get(op, op), total, own)
            found[(*place, k)] = apart.build.convert(total, dtype)
    return np.moveaxis(found[..., ::-1] if operator["reverse"] else found, -1, axis)


def _rows(elements: Registers, batch: Sequence[int], over: Sequence[int]) -> Registers:
    """A factor of a product: batch, rows, terms."""
    free = [d for d in range(elements.ndim) if d not in (*batch, *over)]
    sizes = [prod(elements.shape[d] for d in axes) for axes in (batch, free, over)]
    return elements.transpose([*batch, *free, *over]).reshape(sizes)


def _dot(apart: Apart, operator: UOperator) -> Held:
    """Sums of products, in the type of the result, float32 at least."""
    dtype, build, terms = operator.output.type.dtype, apart.build, list[tuple[Registers, Registers]]()
    if dtype == "bool":
        raise Uncuttable("products of bool have no form in registers")
    wide = "float32" if dtype in _HALVES else dtype
    for a, b in zip(operator.inputs[::2], operator.inputs[1::2], strict=True):
        left = _rows(apart.registers(a), operator.ints("lhs_batch"), operator.ints("lhs_contract"))
        right = _rows(apart.registers(b), operator.ints("rhs_batch"), operator.ints("rhs_contract"))
        terms.append((left, right))
    if not terms[0][0].shape[-1]:
        raise Uncuttable("a product of nothing")
    found = apart.empty(operator.output.type.shape)
    flat = found.reshape(terms[0][0].shape[0], terms[0][0].shape[1], terms[0][1].shape[1])
    for batch, row, column in np.ndindex(flat.shape):
        pairs = [p for a, b in terms for p in zip(a[batch, row], b[batch, column], strict=True)]
        products = [build.binary("mul", build.convert(a, wide), build.convert(b, wide)) for a, b in pairs]
        flat[batch, row, column] = build.convert(_folded(apart, "sum", products), dtype)
    return found


def _kept(apart: Apart, operator: UOperator) -> Held:
    """An operator on one element."""
    return single(apart.again(operator, [apart.one(v) for v in operator.inputs]))


FORMS: Mapping[str, Form] = {
    **LINALG,
    **dict.fromkeys(MAPPED, _mapped),
    "constant": _constant,
    "empty": _filled,
    "iota": _iota,
    "reshape": _reshape,
    "concatenate": _concatenate,
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "dynamic_update_slice": _update,
    "scatter": _scatter,
    "copy": lambda apart, operator: apart.registers(operator.inputs[0]),
    "reduce": _reduce,
    "arg_reduce": _arg_reduce,
    "cumulative": _cumulative,
    "dot": _dot,
    "fail": _kept,
    "units": _kept,
}
