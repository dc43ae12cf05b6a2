"""Arrays of a batch element in the memory that each thread has for itself: those too large for registers.

The hardware interleaves this memory: the same place of all threads of a warp lies side by side, so a warp
reads it at once, and the first-level cache keeps it. An array is flat there, and a view of it is an offset
and strides. An update writes into the array of its operand if nobody reads that afterwards, else into a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, cast

import numpy as np

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
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.ir import LoopUTask, Region
from jax_cocktail.utask.layout import row_major
from jax_cocktail.utask.types import Value

if TYPE_CHECKING:
    from jax_cocktail.schedule.vmap.registers import Apart

COUNT = "int32"  # the type of places in these arrays, which are small
Body = Callable[[Value, list[Value]], Sequence[Value]]


def new_array(apart: Apart, dtype: str, shape: Sequence[int]) -> Local:
    """An array that holds nothing yet."""
    size = int(prod(shape))
    if not 1 < size <= apart.limits.local:
        beside = " or in the memory of a thread" if apart.limits.local else ""
        raise Uncuttable(f"an array of {size} numbers for each element does not fit in registers{beside}")
    number = len(apart.results)
    apart.results.append(apart.build.emit("empty", (), dtype, (size,)))
    apart.versions.append(0)
    apart.updatable |= {number}
    version = apart.renewed(number, apart.results[number])
    return Local(number, 0, row_major(tuple(shape)), tuple(shape), size, version)


def renewed(apart: Apart, array: Local) -> Local:
    """The array after it was written."""
    return replace(array, version=apart.renewed(array.number, apart.results[array.number]))


# -- elements ------------------------------------------------------------------------------------------------
def added(apart: Apart, a: Start, b: Start) -> Start:
    """The sum of two positions."""
    if isinstance(a, int):
        return apart.moved(b, a)
    if isinstance(b, int):
        return apart.moved(a, b)
    if a.type == b.type:
        return apart.build.binary("add", a, b)
    return apart.build.binary("add", apart.build.convert(a, INDEX.dtype), apart.build.convert(b, INDEX.dtype))


def times(apart: Apart, start: Start, factor: int) -> Start:
    """A position times a number."""
    if isinstance(start, int) or not factor:
        return 0 if not factor else cast(int, start) * factor
    narrow = apart.build.convert(start, COUNT)
    if factor == 1:
        return narrow
    return apart.build.binary("mul", narrow, apart.number(factor, COUNT))


def moved_to(apart: Apart, array: Local, starts: Sequence[Start]) -> Start:
    """The place of an element in the flat array."""
    place: Start = array.offset
    for start, stride in zip(starts, array.strides, strict=True):
        place = added(apart, place, times(apart, start, int(stride)))
    return place


def read(apart: Apart, held: Held, starts: Sequence[Start]) -> Value:
    """An element of what `indexable` gives."""
    if isinstance(held, Computed):
        return held.element(starts)
    if isinstance(held, Local):
        return apart.at(apart.results[held.number], (moved_to(apart, held, starts),))
    assert isinstance(held, Memory)
    moved = list(held.starts)
    for axis, start in zip(held.axes, starts, strict=True):
        if axis is not None:
            moved[axis] = added(apart, moved[axis], start)
    return apart.at(held.array, moved)


def write(apart: Apart, array: Local, starts: Sequence[Start], value: Value) -> None:
    """Sets an element. Who is done with writing calls `renewed`."""
    place, whole = moved_to(apart, array, starts), apart.results[array.number]
    begin = apart.number(place, COUNT) if isinstance(place, int) else place
    inputs = (whole, apart.build.reshape(value, (1,)), begin)
    apart.results[array.number] = apart.build.emit("dynamic_update_slice", inputs, whole.type)


# -- loops ---------------------------------------------------------------------------------------------------
def counted(
    apart: Apart, trips: int, arrays: Sequence[int], numbers: Sequence[Value], body: Body
) -> list[Value]:
    """A loop that writes `arrays` and carries `numbers`: `body` gets the trip and these, and returns the next
    ones. Returns the last ones."""
    index = apart.build.fresh.make(INDEX)
    apart.inside[index] = trips

    def each(now: list[Value]) -> Sequence[Value]:
        return body(apart.build.convert(index, COUNT), now)

    region = _region(apart, (index,), arrays, numbers, each)
    return _emitted(apart, arrays, LoopUTask(*_ends(apart, arrays, numbers), region, None, trips))


def between(
    apart: Apart,
    start: Start,
    stop: Start,
    arrays: Sequence[int],
    numbers: Sequence[Value],
    body: Body,
    likely: int,
) -> list[Value]:
    """Such a loop with a counter from `start` to in front of `stop`: prices assume `likely` trips."""
    first, end = (apart.number(n, COUNT) if isinstance(n, int) else n for n in (start, stop))

    def each(now: list[Value]) -> Sequence[Value]:
        following = body(now[0], now[1:])
        return (apart.build.binary("add", now[0], apart.number(1, COUNT)), *following)

    def goes_on(now: list[Value]) -> Sequence[Value]:
        return (apart.build.compare("lt", now[0], end),)

    carried = (first, *numbers)
    region = _region(apart, (), arrays, carried, each)
    test = _region(apart, (), arrays, carried, goes_on)
    test = replace(test, results=test.results[len(arrays) :])
    ends = _ends(apart, arrays, carried)
    return _emitted(apart, arrays, LoopUTask(*ends, region, test, None, likely_trips=likely))[1:]


def _region(
    apart: Apart,
    index: tuple[Value, ...],
    arrays: Sequence[int],
    numbers: Sequence[Value],
    body: Callable[[list[Value]], Sequence[Value]],
) -> Region:
    outer, known, results = apart.build, apart.known, list(apart.results)
    versions, updatable = list(apart.versions), apart.updatable
    apart.build, apart.known = Builder(outer.fresh, outer.source), dict(known)
    apart.held = apart.held.new_child()
    inside = [outer.fresh.make(results[k].type) for k in arrays]
    now = [outer.fresh.make(v.type) for v in numbers]
    for k, value in zip(arrays, inside, strict=True):
        apart.results[k] = value
    ends = tuple(body(now))
    written = (*(apart.results[k] for k in arrays), *ends)
    found = Region((*index, *inside, *now), tuple(apart.build.out), written)
    apart.build, apart.known, apart.held = outer, known, apart.held.parents
    apart.results, apart.versions, apart.updatable = results, versions, updatable
    return found


def _ends(
    apart: Apart, arrays: Sequence[int], numbers: Sequence[Value]
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """The initial values of a loop, and its outputs."""
    initial = (*(apart.results[k] for k in arrays), *numbers)
    return initial, apart.build.fresh.like(initial)


def _emitted(apart: Apart, arrays: Sequence[int], loop: LoopUTask) -> list[Value]:
    apart.build.out.append(replace(loop, source=apart.build.source))
    for k, value in zip(arrays, loop.outputs, strict=False):
        apart.results[k] = value
    return list(loop.outputs[len(arrays) :])


def over(
    apart: Apart, shape: Sequence[int], arrays: Sequence[int], each: Callable[[list[Start]], None]
) -> None:
    """A nest of loops over the places of a shape, which writes `arrays`."""

    def along(starts: list[Start]) -> None:
        axis = len(starts)

        def inside(at: Value, _: list[Value]) -> Sequence[Value]:
            along([*starts, at])
            return ()

        if axis == len(shape):
            each(starts)
        elif shape[axis] == 1:
            along([*starts, 0])
        else:
            counted(apart, shape[axis], arrays, (), inside)

    along([])


# -- whole arrays --------------------------------------------------------------------------------------------
def filled(
    apart: Apart,
    dtype: str,
    shape: Sequence[int],
    element: Callable[[list[Start]], Value],
    into: Local | None = None,
) -> Local:
    """A new array, or the old one `into`, with these elements. An element may read its own place in it."""
    array = new_array(apart, dtype, shape) if into is None else into
    over(apart, shape, [array.number], lambda starts: write(apart, array, starts, element(starts)))
    return renewed(apart, array)


def computed(
    apart: Apart, dtype: str, shape: Sequence[int], element: Callable[[list[Start]], Value]
) -> Held:
    """A new array with these elements, or the register of the only one."""
    if prod(shape) > 1:
        return filled(apart, dtype, shape, element)
    return single(element([0] * len(shape))).reshape(tuple(shape))


def dtype_of(apart: Apart, held: Held) -> str:
    if isinstance(held, Computed):
        return held.dtype
    if isinstance(held, Local):
        return apart.results[held.number].type.dtype
    if isinstance(held, Memory):
        return held.array.type.dtype
    assert isinstance(held, np.ndarray)
    return cast(Value, held.reshape(-1)[0]).type.dtype


def indexable(apart: Apart, held: Held) -> Held:
    """An array with these elements, of which a place may be known only at run time. Results that are updated
    where they lie are no such array."""
    if isinstance(held, Place):
        raise Uncuttable("a large array of an element is read whole")
    if not isinstance(held, np.ndarray):
        return held
    if held.size == 1:
        return same(cast(Value, held.reshape(-1)[0]), held.shape)
    return _stored(apart, held)


def _stored(apart: Apart, held: Registers) -> Local:
    array = new_array(apart, dtype_of(apart, held), held.shape)
    for place in np.ndindex(held.shape):
        write(apart, array, place, cast(Value, held[place]))
    return renewed(apart, array)


def copied(apart: Apart, held: Held, into: Local | None = None) -> Local:
    """A copy of the elements, which is whole."""
    if isinstance(held, np.ndarray) and into is not None:
        for place in np.ndindex(held.shape):
            write(apart, into, place, cast(Value, held[place]))
        return renewed(apart, into)
    source = indexable(apart, held)
    if isinstance(held, np.ndarray) and isinstance(source, Local):
        return source  # which is new
    dtype, flat = dtype_of(apart, source), flattened(source)
    if flat is None:
        return filled(apart, dtype, source.shape, lambda at: read(apart, source, at), into)
    to = None if into is None else flattened(into)
    assert to is None or isinstance(to, Local)
    found = filled(apart, dtype, flat.shape, lambda at: read(apart, flat, at), to)
    return shaped(found, source.shape)


def flattened(held: Held) -> Local | Computed | None:
    """The elements in order along one axis; None if they are not in order."""
    if isinstance(held, Computed) and held.uniform:
        return replace(held, shape=(int(prod(held.shape)),))
    if isinstance(held, Local) and held.is_whole:
        return replace(held, strides=(1,), shape=(held.size,))
    return None


def shaped(array: Local, shape: Sequence[int]) -> Local:
    """A whole array in another shape."""
    return replace(array, strides=row_major(tuple(shape)), shape=tuple(shape))


def is_free(apart: Apart, array: Local, beyond: Collection[Value] = ()) -> bool:
    """True if the statement at hand may overwrite the array: it is all of it, and nobody reads it afterwards.
    `beyond`: values that are read later in any case."""
    if array.number not in apart.updatable or not array.is_whole:
        return False
    for value in apart.naming.get(array.number, ()):
        held = apart.held.get(value)
        names = isinstance(held, Local) and held.number == array.number
        if names and (value in beyond or apart.last.get(value, -1) > apart.now):
            return False
    return True


def writable(apart: Apart, value: Value, others: Sequence[Value] = ()) -> Local:
    """The elements of an operand, where the operator at hand may overwrite them. `others`: other operands,
    which it still reads then."""
    held = apart.of(value)
    beside = [apart.held.get(other) for other in others]
    taken = {other.number for other in beside if isinstance(other, Local)}
    if isinstance(held, Local) and held.number not in taken and is_free(apart, held):
        return held
    return copied(apart, held)
