"""The operators on small arrays, written out for the numbers of one batch element; see `registers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import cast

import numpy as np

from jax_cocktail.schedule.vmap import local_arrays as local
from jax_cocktail.schedule.vmap.cut import Uncuttable
from jax_cocktail.schedule.vmap.held import (
    Computed,
    Held,
    Local,
    Memory,
    Place,
    Registers,
    Start,
    same,
    single,
)
from jax_cocktail.schedule.vmap.local_forms import HALVES, LOOPS, STEPS, is_large
from jax_cocktail.schedule.vmap.register_linalg import LINALG
from jax_cocktail.schedule.vmap.register_places import PLACES
from jax_cocktail.schedule.vmap.registers import Apart, Form
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.maps import Position, positions
from jax_cocktail.utask.operators import MAPPED
from jax_cocktail.utask.types import FLOATS, ITEM_SIZE, Value


# -- leaves and moves ----------------------------------------------------------------------------------------
def _constant(apart: Apart, operator: UOperator) -> Held:
    type_ = operator.output.type
    width = ITEM_SIZE[type_.dtype]
    first = operator.data[:width]
    if type_.size > apart.limits.numbers and operator.data == first * type_.size:
        return same(apart.constant(first, type_.dtype), type_.shape)
    if type_.size > apart.limits.numbers:
        rank, whole = type_.rank, apart.build.emit("constant", (), type_, data=operator.data)
        return Memory(whole, (0,) * rank, tuple(range(rank)), type_.shape)
    found = apart.empty(type_.shape)
    for n, place in enumerate(np.ndindex(found.shape)):
        found[place] = apart.constant(operator.data[n * width : (n + 1) * width], type_.dtype)
    return found


def _filled(apart: Apart, operator: UOperator) -> Held:
    """An `empty` array: nobody reads what it holds."""
    type_ = operator.output.type
    return same(apart.constant(bytes(ITEM_SIZE[type_.dtype]), type_.dtype), type_.shape)


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
    if is_large(apart, operator):
        return _viewed(apart, held, shape, map_)
    elements, found = apart.registers(operator.inputs[0]), apart.empty(shape)
    for place in np.ndindex(found.shape):
        from_ = (p.start if p.axis is None else p.start + p.step * place[p.axis] for p in map_)
        found[place] = elements[tuple(from_)]
    return found


def _viewed(apart: Apart, held: Held, shape: Sequence[int], map_: Sequence[Position]) -> Held:
    """A view of an array of the thread: an element at a static distance from those beside it."""
    array = local.indexable(apart, held)
    if isinstance(array, Computed):
        whole = array

        def element(at: Sequence[Start]) -> Value:
            moved = (0 if p.axis is None else local.times(apart, at[p.axis], p.step) for p in map_)
            return whole.element(
                [local.added(apart, k, p.start) for k, p in zip(moved, map_, strict=True)]
            )

        return replace(array, element=element, shape=tuple(shape))
    array = local.copied(apart, array) if isinstance(array, Memory) else array
    assert isinstance(array, Local)
    offset, strides = array.offset, [0] * len(shape)
    for at, stride in zip(map_, array.strides, strict=True):
        offset = local.added(apart, offset, at.start * stride)
        if at.axis is not None:
            strides[at.axis] += at.step * stride
    return replace(array, offset=offset, strides=tuple(strides), shape=tuple(shape))


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
    if isinstance(held, Computed) and held.uniform:
        return replace(held, shape=shape)
    if is_large(apart, operator):
        whole = held if isinstance(held, Local) and held.is_whole else local.copied(apart, held)
        return local.shaped(whole, shape)
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


# -- sums of many kinds --------------------------------------------------------------------------------------
def _folded(apart: Apart, op: str, values: Sequence[Value]) -> Value:
    """The values combined from first to last; those of 16 bits in float32."""
    dtype = values[0].type.dtype
    wide = "float32" if dtype in HALVES else dtype
    found = apart.build.convert(values[0], wide)
    for value in values[1:]:
        found = apart.build.binary(STEPS.get(op, op), found, apart.build.convert(value, wide))
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
    wide = "float32" if dtype in HALVES else dtype
    for place in np.ndindex(rows.shape[:-1]):
        total: Value | None = None
        for k in range(rows.shape[-1]):
            own = apart.build.convert(rows[(*place, k)], wide)
            total = own if total is None else apart.build.binary(STEPS.get(op, op), total, own)
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
    wide = "float32" if dtype in HALVES else dtype
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


def _either(few: Form, many: Form) -> Form:
    """The form of an operator on few numbers, or on many."""
    return lambda apart, operator: (many if is_large(apart, operator) else few)(apart, operator)


_FEW: Mapping[str, Form] = {
    **LINALG,
    **PLACES,
    **dict.fromkeys(MAPPED, _mapped),
    "constant": _constant,
    "empty": _filled,
    "iota": _iota,
    "reshape": _reshape,
    "concatenate": _concatenate,
    "pad": _pad,
    "copy": lambda apart, operator: apart.of(operator.inputs[0]),
    "reduce": _reduce,
    "arg_reduce": _arg_reduce,
    "cumulative": _cumulative,
    "dot": _dot,
    "fail": _kept,
    "units": _kept,
}

FORMS: Mapping[str, Form] = {
    kind: _either(few, LOOPS[kind]) if kind in LOOPS else few for kind, few in _FEW.items()
}
