"""Movement operators and dynamic updates in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jax_cocktail.utask.arrays import Array, decode, numpy_dtype
from jax_cocktail.utask.failure import line_of, text_of
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import FLOATS, Shape
from tests.oracle.interpreter.common import Evaluate, ProgramFailure, as_index


def constant(operator: UOperator, operands: Sequence[Array]) -> Array:
    return decode(operator.data, operator.output.type)


def units(operator: UOperator, operands: Sequence[Array]) -> Array:
    """The number of units: the interpreter is one unit."""
    return np.asarray(1, numpy_dtype(operator.output.type.dtype))


def empty(operator: UOperator, operands: Sequence[Array]) -> Array:
    """Poison values (NaN, the maximum integer, True) that expose programs which read before they write."""
    type_ = operator.output.type
    dtype = numpy_dtype(type_.dtype)
    if type_.dtype in FLOATS:
        poison = dtype.type(np.nan)
    else:
        poison = dtype.type(True if type_.dtype == "bool" else np.iinfo(dtype).max)
    return np.full(type_.shape, poison, dtype)


def iota(operator: UOperator, operands: Sequence[Array]) -> Array:
    type_, axis = operator.output.type, operator.number("dimension")
    shape = [1] * type_.rank
    shape[axis] = type_.shape[axis]
    counts = np.arange(type_.shape[axis], dtype=np.int64).astype(numpy_dtype(type_.dtype))
    return np.broadcast_to(counts.reshape(shape), type_.shape)


def broadcast(operator: UOperator, operands: Sequence[Array]) -> Array:
    (x,) = operands
    shape = operator.output.type.shape
    dimensions = operator.ints("dimensions")
    order = np.argsort(dimensions, kind="stable") if dimensions else ()
    aligned = [1] * len(shape)
    for size, axis in zip(x.shape, dimensions, strict=True):
        aligned[axis] = size
    return np.broadcast_to(x.transpose([int(d) for d in order]).reshape(aligned), shape)


def reshape(operator: UOperator, operands: Sequence[Array]) -> Array:
    return operands[0].reshape(operator.output.type.shape)


def transpose(operator: UOperator, operands: Sequence[Array]) -> Array:
    return operands[0].transpose(operator.ints("permutation"))


def slice_(operator: UOperator, operands: Sequence[Array]) -> Array:
    (x,) = operands
    config = zip(operator.ints("starts"), operator.ints("strides"), operator.output.type.shape, strict=True)
    return x[tuple(slice(at, at + (n - 1) * step + 1 if n else at, step) for at, step, n in config)]


def reverse(operator: UOperator, operands: Sequence[Array]) -> Array:
    return np.flip(operands[0], operator.ints("dimensions"))


def pad(operator: UOperator, operands: Sequence[Array]) -> Array:
    x, filler = operands
    shape = operator.output.type.shape
    result = np.full(shape, filler[()], x.dtype)
    sources, targets = [], []
    config = zip(x.shape, shape, operator.ints("low"), operator.ints("interior"), strict=True)
    for size, total, low, interior in config:
        places = low + np.arange(size) * (interior + 1)
        kept = np.flatnonzero((places >= 0) & (places < total))
        sources.append(kept)
        targets.append(places[kept])
    if shape:
        result[np.ix_(*targets)] = x[np.ix_(*sources)]
        return result
    return x


def concatenate(operator: UOperator, operands: Sequence[Array]) -> Array:
    return np.concatenate(operands, axis=operator.number("dimension"))


def _window(starts: Sequence[Array], whole: Shape, part: Shape) -> tuple[slice, ...]:
    """The position of a part in the whole, clamped to be inside."""
    place = []
    for start, n, size in zip(starts, whole, part, strict=True):
        first = min(max(int(as_index(start)), 0), n - size)
        place.append(slice(first, first + size))
    return tuple(place)


def dynamic_slice(operator: UOperator, operands: Sequence[Array]) -> Array:
    x, *starts = operands
    return x[_window(starts, x.shape, operator.output.type.shape)]


def dynamic_update_slice(operator: UOperator, operands: Sequence[Array]) -> Array:
    x, update, *starts = operands
    result = x.copy()
    result[_window(starts, x.shape, update.shape)] = update
    return result


def copy(operator: UOperator, operands: Sequence[Array]) -> Array:
    return operands[0].copy()


def exchange(operator: UOperator, operands: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(operand.copy() for operand in operands)


def barrier(operator: UOperator, operands: Sequence[Array]) -> tuple[Array, ...]:
    """Does not wait: whole values are computed one after the other."""
    return ()


def fail(operator: UOperator, operands: Sequence[Array]) -> Array:
    status = int(operands[0])
    if status != 0:
        raise ProgramFailure(line_of(text_of(operator), status))
    return operands[0].copy()


MOVEMENT: dict[str, Evaluate] = {
    "fail": fail,
    "copy": copy,
    "exchange": exchange,
    "arrive": barrier,
    "wait": barrier,
    "block_barrier": barrier,
    "constant": constant,
    "empty": empty,
    "units": units,
    "iota": iota,
    "broadcast": broadcast,
    "reshape": reshape,
    "transpose": transpose,
    "slice": slice_,
    "reverse": reverse,
    "pad": pad,
    "concatenate": concatenate,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
}
