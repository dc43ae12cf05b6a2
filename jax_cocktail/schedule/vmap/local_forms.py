"""The operators on arrays of one batch element that are too large to be written out: loops over arrays in the
thread's own memory; see `local_arrays`. The factorisations are those of `register_linalg`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from jax_cocktail.schedule.vmap.cut import Uncuttable
from jax_cocktail.schedule.vmap.held import Computed, Held, Local, Memory, Start
from jax_cocktail.schedule.vmap.local_arrays import (
    COUNT,
    added,
    computed,
    copied,
    counted,
    filled,
    indexable,
    new_array,
    over,
    read,
    renewed,
    write,
)
from jax_cocktail.schedule.vmap.local_linalg import LINALG_LOOPS
from jax_cocktail.schedule.vmap.registers import Apart, Form
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import FLOATS, Value

STEPS = {"sum": "add", "prod": "mul"}  # the operator of one step of a reduction; else it has the same name
HALVES = ("bfloat16", "float16")


def is_large(apart: Apart, operator: UOperator) -> bool:
    """True if an operand or result does not fit in registers."""
    return any(v.type.size > apart.limits.numbers for v in (*operator.inputs, *operator.outputs))


def _operand(apart: Apart, value: Value) -> Held:
    return indexable(apart, apart.of(value))


def _wide(dtype: str) -> str:
    return "float32" if dtype in HALVES else dtype


# -- moves ---------------------------------------------------------------------------------------------------
def _iota(apart: Apart, operator: UOperator) -> Held:
    type_, axis = operator.output.type, operator.number("dimension")

    def element(at: Sequence[Start]) -> Value:
        return apart.build.convert(_value(apart, at[axis]), type_.dtype)

    return Computed(element, type_.dtype, type_.shape)


def _value(apart: Apart, start: Start) -> Value:
    return apart.number(start, COUNT) if isinstance(start, int) else start


def _into(apart: Apart, array: Local, source: Held, place: Callable[[list[Start]], list[Start]]) -> None:
    """Writes all elements of an array into another one, each at its place."""

    def each(at: list[Start]) -> None:
        write(apart, array, place(at), read(apart, source, at))

    over(apart, source.shape, [array.number], each)


def _concatenate(apart: Apart, operator: UOperator) -> Held:
    type_, axis, begin = operator.output.type, operator.number("dimension"), 0
    parts = [_operand(apart, v) for v in operator.inputs]
    array = new_array(apart, type_.dtype, type_.shape)
    for part in parts:
        offset = begin

        def place(at: list[Start], offset: int = offset) -> list[Start]:
            return [added(apart, k, offset) if d == axis else k for d, k in enumerate(at)]

        _into(apart, array, part, place)
        begin += part.shape[axis]
    return renewed(apart, array)


def _pad(apart: Apart, operator: UOperator) -> Held:
    type_, low, interior = operator.output.type, operator.ints("low"), operator.ints("interior")
    filler, source = apart.one(operator.inputs[1]), _operand(apart, operator.inputs[0])
    ends = (a + (n - 1) * (k + 1) for a, n, k in zip(low, source.shape, interior, strict=True))
    if min(low) < 0 or any(end >= n for end, n in zip(ends, type_.shape, strict=True)):
        raise Uncuttable("a large array of an element loses elements as it is padded")
    array = filled(apart, type_.dtype, type_.shape, lambda _: filler)
    strides = [stride * (k + 1) for stride, k in zip(array.strides, interior, strict=True)]
    first = sum(a * stride for a, stride in zip(low, array.strides, strict=True))
    _into(apart, replace(array, offset=first, strides=tuple(strides)), source, lambda at: at)
    return renewed(apart, array)


# -- sums of many kinds --------------------------------------------------------------------------------------
def _folded(apart: Apart, op: str, trips: int, dtype: str, term: Callable[[Start], Value]) -> Value:
    """The terms combined from first to last; those of 16 bits in float32."""
    wide = _wide(dtype)

    def step(trip: Value, now: list[Value]) -> Sequence[Value]:
        own = apart.build.convert(term(added(apart, trip, 1)), wide)
        return (apart.build.binary(STEPS.get(op, op), now[0], own),)

    found = [apart.build.convert(term(0), wide)]
    if trips > 1:
        found = counted(apart, trips - 1, (), found, step)
    return apart.build.convert(found[0], dtype)


def _digits(apart: Apart, number: Start, sizes: Sequence[int]) -> list[Start]:
    """The place along each axis of a position in order."""
    found, rest = list[Start](), number
    for size in sizes[:0:-1]:
        if isinstance(rest, int):
            found.append(rest % size)
            rest = rest // size
            continue
        by = apart.number(size, COUNT)
        found.append(apart.build.binary("rem", rest, by))
        rest = apart.build.binary("div", rest, by)
    return [rest, *found[::-1]] if sizes else []


def _along(kept: Sequence[Start], axes: Sequence[int], inside: Sequence[Start]) -> list[Start]:
    """The place in an array: `inside` along `axes`, `kept` along all others."""
    others, within = iter(kept), dict(zip(axes, inside, strict=True))
    return [within[d] if d in within else next(others) for d in range(len(kept) + len(axes))]


def _reduce(apart: Apart, operator: UOperator) -> Held:
    source, axes, type_ = _operand(apart, operator.inputs[0]), operator.ints("axes"), operator.output.type
    sizes = [source.shape[d] for d in axes]

    def element(at: Sequence[Start]) -> Value:
        def term(k: Start) -> Value:
            return read(apart, source, _along(at, axes, _digits(apart, k, sizes)))

        return _folded(apart, operator.text("op"), prod(sizes), type_.dtype, term)

    return computed(apart, type_.dtype, type_.shape, element)


def _arg_reduce(apart: Apart, operator: UOperator) -> Held:
    """The first of the best; a NaN wins."""
    source, axis, type_ = _operand(apart, operator.inputs[0]), operator.number("axis"), operator.output.type
    test = "gt" if operator["op"] == "max" else "lt"

    def element(at: Sequence[Start]) -> Value:
        def step(trip: Value, now: list[Value]) -> Sequence[Value]:
            build, k = apart.build, _value(apart, added(apart, trip, 1))
            value = read(apart, source, _along(at, [axis], [k]))
            better = build.compare(test, value, now[0])
            if value.type.dtype in FLOATS:
                is_nan, was = build.compare("ne", value, value), build.compare("eq", now[0], now[0])
                better = build.binary("or", better, build.binary("and", is_nan, was))
            number = build.convert(k, type_.dtype)
            return build.select(better, value, now[0]), build.select(better, number, now[1])

        start = read(apart, source, _along(at, [axis], [0])), apart.number(0, type_.dtype)
        return counted(apart, source.shape[axis] - 1, (), start, step)[1]

    return computed(apart, type_.dtype, type_.shape, element)


def _cumulative(apart: Apart, operator: UOperator) -> Held:
    op, axis, type_ = operator.text("op"), operator.number("axis"), operator.output.type
    if op == "logsumexp":
        raise Uncuttable("cumulative logsumexp has no form in registers")
    source, array = _operand(apart, operator.inputs[0]), new_array(apart, type_.dtype, type_.shape)
    length, wide = type_.shape[axis], _wide(type_.dtype)
    others = [n for d, n in enumerate(type_.shape) if d != axis]
    if operator["reverse"]:
        backwards = tuple(-n if d == axis else n for d, n in enumerate(array.strides))
        array = replace(array, offset=(length - 1) * array.strides[axis], strides=backwards)

    def row(at: list[Start]) -> None:
        def term(k: Start) -> Value:
            from_ = k
            if operator["reverse"]:
                last = apart.number(length - 1, COUNT)
                from_ = length - 1 - k if isinstance(k, int) else apart.build.binary("sub", last, k)
            return apart.build.convert(read(apart, source, _along(at, [axis], [from_])), wide)

        def put(k: Start, total: Value) -> Value:
            write(apart, array, _along(at, [axis], [k]), apart.build.convert(total, type_.dtype))
            return total

        def step(trip: Value, now: list[Value]) -> Sequence[Value]:
            k = _value(apart, added(apart, trip, 1))
            return (put(k, apart.build.binary(STEPS.get(op, op), now[0], term(k))),)

        counted(apart, length - 1, [array.number], (put(0, term(0)),), step)

    over(apart, others, [array.number], row)
    whole = replace(array, offset=0, strides=tuple(map(abs, array.strides)))
    return renewed(apart, whole)


def _factor(apart: Apart, value: Value) -> Held:
    """A factor of a product, which reads each element often."""
    held = apart.of(value)
    if isinstance(held, Memory) and all(isinstance(start, int) for start in held.starts):
        raise Uncuttable(f"all elements read the same {value.type.size} numbers of a factor")
    return copied(apart, held) if isinstance(held, Memory) else indexable(apart, held)


def _dot(apart: Apart, operator: UOperator) -> Held:
    """Sums of products, in the type of the result, float32 at least."""
    type_ = operator.output.type
    if type_.dtype == "bool":
        raise Uncuttable("products of bool have no form in registers")
    pairs = [
        (_factor(apart, a), _factor(apart, b))
        for a, b in zip(operator.inputs[::2], operator.inputs[1::2], strict=True)
    ]
    sides = [
        (operator.ints("lhs_batch"), operator.ints("lhs_contract")),
        (operator.ints("rhs_batch"), operator.ints("rhs_contract")),
    ]
    sizes = [pairs[0][0].shape[d] for d in sides[0][1]]
    count, wide = len(sides[0][0]), _wide(type_.dtype)
    rows = len(pairs[0][0].shape) - len(sides[0][1]) - count

    def element(at: Sequence[Start]) -> Value:
        batch, free = list(at[:count]), (list(at[count : count + rows]), list(at[count + rows :]))

        def term(pair: Sequence[Held], k: Start) -> Value:
            inside, found = _digits(apart, k, sizes), list[Value]()
            for held, (batched, contracted), own in zip(pair, sides, free, strict=True):
                place = _along(own, [*batched, *contracted], [*batch, *inside])
                found.append(apart.build.convert(read(apart, held, place), wide))
            return apart.build.binary("mul", *found)

        terms = (partial(term, pair) for pair in pairs)
        sums = [_folded(apart, "sum", prod(sizes), wide, each) for each in terms]
        total = sums[0]
        for each in sums[1:]:
            total = apart.build.binary("add", total, each)
        return apart.build.convert(total, type_.dtype)

    return computed(apart, type_.dtype, type_.shape, element)


LOOPS: Mapping[str, Form] = {
    **LINALG_LOOPS,
    "iota": _iota,
    "concatenate": _concatenate,
    "pad": _pad,
    "reduce": _reduce,
    "arg_reduce": _arg_reduce,
    "cumulative": _cumulative,
    "dot": _dot,
}
