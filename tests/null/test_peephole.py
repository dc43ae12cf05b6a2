"""Rewrites of integers and of broadcast scalars, on the smallest programs that show them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.arrays import numpy_dtype
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.types import Value
from tests.null.programs import build, elementwise, kinds
from tests.oracle.interpreter.run import run

COUNT = 64
Division = Callable[[Builder, Value, Value], Value]


def compare(b: Builder, kind: str, x: Value, y: Value) -> Value:
    return elementwise(b, kind, x, y, dtype="bool")


def full(b: Builder, number: int, x: Value) -> Value:
    return b.full(number, x.type.dtype, x.type.shape)


def spread(b: Builder, x: Value, like: Value) -> Value:
    return b.broadcast(x, like.type.shape, ())


def remainder(b: Builder, x: Value, by: Value) -> Value:
    """As `jax.numpy.remainder` is translated. `by`: a scalar."""
    zero, divisor = full(b, 0, x), spread(b, by, x)
    found = elementwise(b, "rem", x, divisor)
    negative = spread(b, compare(b, "lt", by, full(b, 0, by)), x)
    signs = compare(b, "ne", compare(b, "lt", found, zero), negative)
    wrong = elementwise(b, "and", signs, compare(b, "ne", found, zero))
    return elementwise(b, "select", wrong, elementwise(b, "add", found, divisor), found)


def quotient(b: Builder, x: Value, by: Value) -> Value:
    """As `jax.numpy.floor_divide` is translated. `by`: a scalar."""
    divisor = spread(b, by, x)
    found = elementwise(b, "div", x, divisor)
    signs = compare(b, "ne", elementwise(b, "sign", x), spread(b, elementwise(b, "sign", by), x))
    uneven = compare(b, "ne", elementwise(b, "rem", x, divisor), full(b, 0, x))
    less = elementwise(b, "sub", found, full(b, 1, x))
    return elementwise(b, "select", elementwise(b, "and", signs, uneven), less, found)


def numbers(dtype: str) -> np.ndarray:
    """Numbers of both signs, near zero and near the ends of the type."""
    ends = np.iinfo(dtype)
    some = [*range(-9, 10), *range(ends.max - 9, ends.max + 1), *range(ends.min, ends.min + 10)]
    return np.array((some * COUNT)[:COUNT], numpy_dtype(dtype))


def divided(division: Division, by: int, dtype: str, shape: str = str(COUNT)) -> UProgram:
    return build([f"{dtype}[{shape}]"], lambda b, x: [division(b, x, b.constant(by, dtype))])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("by", [1, 2, 8, 64])
@pytest.mark.parametrize("division", [remainder, quotient])
def test_floor_division_by_a_power_of_two_is_one_operator(division, by, dtype):
    x = numbers(dtype)
    expected = np.mod(x, by) if division is remainder else np.floor_divide(x, by)
    program = divided(division, by, dtype)
    smaller = simplify(program)
    verify(smaller)
    np.testing.assert_array_equal(run(smaller, [x])[0], expected)
    assert not {"div", "rem", "select"} & set(kinds(smaller))
    alone = simplify(divided(division, by, dtype, ""))
    for number, result in zip(x, expected, strict=True):
        np.testing.assert_array_equal(run(alone, [number])[0], result)


@pytest.mark.parametrize("by", [3, 6, -2, -8, 127])
@pytest.mark.parametrize("division", [remainder, quotient])
def test_other_divisors_keep_their_division(division, by):
    program, x = divided(division, by, "int8"), numbers("int8")
    smaller = simplify(program)
    assert "select" in kinds(smaller)
    np.testing.assert_array_equal(run(smaller, [x])[0], run(program, [x])[0])


@pytest.mark.parametrize("changed", ["corrected by two", "another test", "another remainder", "positive"])
def test_what_only_looks_like_a_floor_division_stays(changed):
    def body(b, x):
        by, zero = full(b, 8, x), full(b, 0, x)
        found = elementwise(b, "div", x, by)
        other = elementwise(b, "rem", x, full(b, 4, x) if changed == "another remainder" else by)
        uneven = compare(b, "gt" if changed == "another test" else "ne", other, zero)
        sign = full(b, -1 if changed == "positive" else 1, x)
        signs = compare(b, "ne", elementwise(b, "sign", x), sign)
        less = elementwise(b, "sub", found, full(b, 2 if changed == "corrected by two" else 1, x))
        return [elementwise(b, "select", elementwise(b, "and", signs, uneven), less, found)]

    program, x = build([f"int32[{COUNT}]"], body), numbers("int32")
    smaller = simplify(program)
    assert "select" in kinds(smaller)
    np.testing.assert_array_equal(run(smaller, [x])[0], run(program, [x])[0])


def test_a_bool_that_is_not_false_is_true():
    program = build(["bool[4]"], lambda b, x: [compare(b, "ne", x, full(b, False, x))])
    assert kinds(simplify(program)) == []


@pytest.mark.parametrize(("mode", "left"), [("clip", "broadcast"), ("fill", "gather")])
def test_elements_of_a_broadcast_scalar_are_the_scalar(mode, left):
    attributes = {
        "collapsed_slice_dims": (0,),
        "fill_value": bytes(4),
        "mode": mode,
        "offset_dims": (),
        "operand_batching_dims": (),
        "slice_sizes": (1,),
        "start_index_map": (0,),
        "start_indices_batching_dims": (),
    }

    def body(b, x, places):
        spread = b.broadcast(x, (9,), ())
        return [b.emit("gather", (spread, places), "float32", (5,), **attributes)]

    program = build(["float32[]", "int32[5,1]"], body)
    smaller = simplify(program)
    verify(smaller)
    assert left in kinds(smaller) and ("gather" in kinds(smaller)) == (mode == "fill")
    given = [np.float32(3), np.array([[0], [8], [9], [-1], [4]], np.int32)]
    np.testing.assert_array_equal(run(smaller, given)[0], run(program, given)[0])
