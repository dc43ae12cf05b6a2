"""Splits long axes of running totals, argmax and argmin into parts that units take side by side.

As in `split_reductions`, the parts become an axis of a value, which placement divides like any other, and
they follow from the shape and the kind of machine alone:

    i = argmax(x)     ->     k = argmax(parts of x)                  # the first best of each part
                             p = argmax(the element of each part at its k)
                             i = p * length + k[p]

    y = cumsum(x)     ->     t = cumsum(parts of x)                  # three phases
                             s = cumsum(the last of each t), one part later
                             y = s + t

Running totals are split on GPUs only: a core adds elements nearly as fast as its memory delivers them, and
the third phase reads and writes all of them again. A block takes a row by all its threads: on a GPU, rows are
split that keep it busy for longer than a barrier. Those by logsumexp stay whole. 16-bit floats are added in
f32 until the end, and f32 sums of parts in f64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import cast

import numpy as np

from jax_cocktail.device.machine import Machine
from jax_cocktail.device.tuning import BLOCK_PARTIALS, CORE_PARTIALS, PartialTuning
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.split_reductions import COMBINES, Division, adds_narrow, division, run_of
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.interpreter.common import identity_element, numpy_dtype
from jax_cocktail.utask.ir import Statement, UOperator, UProgram, is_a
from jax_cocktail.utask.rewrite import rewrite
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import ITEM_SIZE, Value

_LAST = np.iinfo(np.int32).max


def split_scans(program: UProgram, machine: Machine) -> UProgram:
    """Returns its argument if no axis is long enough."""
    tuning = BLOCK_PARTIALS if machine.is_gpu else CORE_PARTIALS
    tuning = replace(tuning, column_most=_LAST)  # positions lose no digits, and sums have wide totals
    kinds = ("arg_reduce", "cumulative") if machine.is_gpu else ("arg_reduce",)
    row_bytes = tuning.bytes if machine.is_gpu else 0
    change = partial(_change, fresh=FreshValues(program), tuning=tuning, kinds=kinds, row_bytes=row_bytes)
    found = rewrite(program, change)
    return program if found is program else simplify(found)


def _change(
    statement: Statement, fresh: FreshValues, tuning: PartialTuning, kinds: tuple[str, ...], row_bytes: int
) -> Statement | list[Statement]:
    if not is_a(statement, *kinds):
        return statement
    (x,), (result,) = statement.inputs, statement.outputs
    axis = cast(int, statement["axis"])
    if x.type.shape[axis] > _LAST or statement["op"] == "logsumexp":
        return statement
    inside = prod(x.type.shape[axis + 1 :])
    if inside == 1 and x.type.shape[axis] * ITEM_SIZE[x.type.dtype] < row_bytes:
        return statement
    found = division(x.type, (axis,), tuning)
    if found is None or found.axis is None:
        return statement
    b = Builder(fresh, statement.source)
    value = (_position if statement.kind == "arg_reduce" else _totals)(b, statement, x, found)
    last = b.out.pop()
    assert isinstance(last, UOperator) and last.outputs == (value,) and value.type == result.type
    return [*b.out, replace(last, outputs=(result,))]


def _position(b: Builder, operator: UOperator, x: Value, found: Division) -> Value:
    """The position of the best of all parts, and of what they leave over."""
    axis, op, dtype = cast(int, operator["axis"]), operator.text("op"), operator.output.type.dtype

    def best(y: Value, along: int) -> Value:
        kept = [n for d, n in enumerate(y.type.shape) if d != along]
        return b.emit("arg_reduce", (y,), "int32", kept, axis=along, op=op)

    parts = found.split(b, x)
    inside = best(parts, axis + 1)
    values = _picked(b, parts, inside, axis + 1)
    rest = found.rest(b, x)
    if rest is not None:
        beyond = best(rest, axis)
        one = _sized(x, axis, 1)
        values = _joined(b, (values, b.reshape(_picked(b, rest, beyond, axis), one)), axis)
        inside = _joined(b, (inside, b.reshape(beyond, one)), axis)
    part = best(values, axis)
    within, part = (b.convert(v, dtype) for v in (_picked(b, inside, part, axis), part))
    return b.binary("add", b.binary("mul", part, b.full(found.length, dtype, part.type.shape)), within)


def _picked(b: Builder, x: Value, at: Value, axis: int) -> Value:
    """The elements of `x` at these positions of `axis`; `at` has its other axes."""
    others = tuple(d for d in range(x.type.rank) if d != axis)
    return b.emit(
        "gather",
        (x, b.reshape(at, (*at.type.shape, 1))),
        x.type.dtype,
        at.type.shape,
        collapsed_slice_dims=(axis,),
        fill_value=bytes(ITEM_SIZE[x.type.dtype]),
        mode="promise_in_bounds",
        offset_dims=(),
        operand_batching_dims=others,
        slice_sizes=(1,) * x.type.rank,
        start_index_map=(axis,),
        start_indices_batching_dims=tuple(range(len(others))),
    )


def _totals(b: Builder, operator: UOperator, x: Value, found: Division) -> Value:
    """The running totals of all parts, and of what they leave over."""
    axis, op, dtype = cast(int, operator["axis"]), operator.text("op"), x.type.dtype
    x = b.convert(x, "float32") if adds_narrow(op, dtype) else x
    wide = "float64" if op in COMBINES and x.type.dtype == "float32" else x.type.dtype

    def scan(y: Value, along: int) -> Value:
        return b.emit("cumulative", (y,), y.type, axis=along, op=op, reverse=operator["reverse"])

    def last(y: Value, along: int) -> Value:
        return run_of(b, y, along, 0 if operator["reverse"] else y.type.shape[along] - 1, 1)

    def after(before: Value, y: Value, along: int) -> Value:
        """Running totals that begin with the totals `before`, of all axes but `along`."""
        others = [d for d in range(y.type.rank) if d != along]
        spread = b.broadcast(before, y.type.shape, others)
        return b.convert(b.binary(COMBINES.get(op, op), spread, b.convert(y, wide)), y.type.dtype)

    parts = scan(found.split(b, x), axis + 1)
    ends = b.reshape(last(parts, axis + 1), _without(parts, axis + 1))
    tail = found.rest(b, x)
    if tail is not None:
        tail = scan(tail, axis)
        ends = _joined(b, (ends, last(tail, axis)), axis)
    ends, count = scan(b.convert(ends, wide), axis), ends.type.shape[axis]
    nothing = b.full(identity_element(op, numpy_dtype(wide)), wide, _sized(ends, axis, 1))
    kept = run_of(b, ends, axis, 1 if operator["reverse"] else 0, count - 1)
    before = _joined(b, (kept, nothing) if operator["reverse"] else (nothing, kept), axis)
    whole = after(run_of(b, before, axis, 0, found.parts), parts, axis + 1)
    whole = b.reshape(whole, _sized(x, axis, found.parts * found.length))
    if tail is not None:
        end = run_of(b, before, axis, found.parts, 1)
        whole = _joined(b, (whole, after(b.reshape(end, _without(end, axis)), tail, axis)), axis)
    return b.convert(whole, dtype)


def _sized(x: Value, axis: int, extent: int) -> list[int]:
    return [extent if d == axis else n for d, n in enumerate(x.type.shape)]


def _without(x: Value, axis: int) -> list[int]:
    return [n for d, n in enumerate(x.type.shape) if d != axis]


def _joined(b: Builder, parts: Sequence[Value], axis: int) -> Value:
    shape = _sized(parts[0], axis, sum(part.type.shape[axis] for part in parts))
    return b.emit("concatenate", parts, parts[0].type.dtype, shape, dimension=axis)
