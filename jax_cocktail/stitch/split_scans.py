"""Splits long axes of running totals, argmax and argmin into parts that units take side by side.

The parts become an axis of a value (see `stitch.splitting`):

    i = argmax(x)     ->     k = argmax(parts of x)                  # the first best of each part
                             p = argmax(the element of each part at its k)
                             i = p * length + k[p]

    y = cumsum(x)     ->     t = cumsum(parts of x)                  # three phases
                             s = cumsum(the last of each t), one part later
                             y = s + t

Running totals are split on GPUs only: a core adds elements nearly as fast as its memory delivers them, and
the third phase reads and writes all of them again. A block takes a row by all its threads: on a GPU, rows are
split that keep it busy for longer than a barrier. Those by logsumexp stay whole.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import cast

import numpy as np

from jax_cocktail.device.machine import Machine
from jax_cocktail.device.tuning import BLOCK_PARTIALS, CORE_PARTIALS, PartialTuning
from jax_cocktail.stitch.splitting import (
    COMBINES,
    AxisSplit,
    adds_narrow,
    axis_split,
    joined,
    run_of,
    sized,
    split,
    without,
)
from jax_cocktail.utask.arrays import identity_element, numpy_dtype
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import UOperator, UProgram
from jax_cocktail.utask.types import ITEM_SIZE, Value

_LAST = np.iinfo(np.int32).max


def split_scans(program: UProgram, machine: Machine) -> UProgram:
    """Returns its argument if no axis is long enough."""
    tuning = BLOCK_PARTIALS if machine.is_gpu else CORE_PARTIALS
    tuning = replace(tuning, column_most=_LAST)  # positions lose no digits, and sums have wide totals
    kinds = ("arg_reduce", "cumulative") if machine.is_gpu else ("arg_reduce",)
    row_bytes = tuning.bytes if machine.is_gpu else 0
    return split(program, kinds, partial(_in_parts, tuning=tuning, row_bytes=row_bytes))


def _in_parts(b: Builder, operator: UOperator, tuning: PartialTuning, row_bytes: int) -> Value | None:
    (x,), axis = operator.inputs, cast(int, operator["axis"])
    if x.type.shape[axis] > _LAST or operator["op"] == "logsumexp":
        return None
    inside = prod(x.type.shape[axis + 1 :])
    if inside == 1 and x.type.shape[axis] * ITEM_SIZE[x.type.dtype] < row_bytes:
        return None
    found = axis_split(x.type, (axis,), tuning)
    if found is None or found.axis is None:
        return None
    return (_position if operator.kind == "arg_reduce" else _totals)(b, operator, x, found)


def _position(b: Builder, operator: UOperator, x: Value, found: AxisSplit) -> Value:
    """The position of the best of all parts, and of what they leave over."""
    axis, op, dtype = cast(int, operator["axis"]), operator.text("op"), operator.output.type.dtype

    def best(y: Value, along: int) -> Value:
        return b.emit("arg_reduce", (y,), "int32", without(y, along), axis=along, op=op)

    parts = found.split(b, x)
    inside = best(parts, axis + 1)
    values = _picked(b, parts, inside, axis + 1)
    rest = found.rest(b, x)
    if rest is not None:
        beyond = best(rest, axis)
        one = sized(x, axis, 1)
        values = joined(b, (values, b.reshape(_picked(b, rest, beyond, axis), one)), axis)
        inside = joined(b, (inside, b.reshape(beyond, one)), axis)
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


def _totals(b: Builder, operator: UOperator, x: Value, found: AxisSplit) -> Value:
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
    ends = b.reshape(last(parts, axis + 1), without(parts, axis + 1))
    tail = found.rest(b, x)
    if tail is not None:
        tail = scan(tail, axis)
        ends = joined(b, (ends, last(tail, axis)), axis)
    ends, count = scan(b.convert(ends, wide), axis), ends.type.shape[axis]
    nothing = b.full(identity_element(op, numpy_dtype(wide)), wide, sized(ends, axis, 1))
    kept = run_of(b, ends, axis, 1 if operator["reverse"] else 0, count - 1)
    before = joined(b, (kept, nothing) if operator["reverse"] else (nothing, kept), axis)
    whole = after(run_of(b, before, axis, 0, found.parts), parts, axis + 1)
    whole = b.reshape(whole, sized(x, axis, found.parts * found.length))
    if tail is not None:
        end = run_of(b, before, axis, found.parts, 1)
        whole = joined(b, (whole, after(b.reshape(end, without(end, axis)), tail, axis)), axis)
    return b.convert(whole, dtype)
