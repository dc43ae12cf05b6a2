"""Axis classes that are joined because their statements read the same parts of an array."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.classes import axis_classes
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.host import Cache
from jax_cocktail.device.nvidia import H200
from jax_cocktail.placement.joined import joined
from jax_cocktail.placement.limits import Limits, limits_for
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.utask.ir import UOperator, is_parallel, walk
from tests.null.programs import arguments, build, elementwise, matmul
from tests.oracle.interpreter.run import run

NEAR = 4096
LIMITS = Limits(flops=20, bytes=64, light=4, least_part=2, cache=Cache(NEAR, 1 << 20, 1e9, 1e9))
TYPE = "float32[128,32]"


def rows(b, x):
    """Every row over its sum."""
    total = b.emit("reduce", (x,), "float32", (128,), axes=(1,), op="sum")
    return elementwise(b, "div", x, b.broadcast(total, (128, 32), (0,)))


def columns(b, x, parts=64):
    """The sums of all columns, split into parts."""
    runs = b.reshape(x, (parts, 128 // parts, 32))
    sums = b.emit("reduce", (runs,), "float32", (parts, 32), axes=(1,), op="sum")
    return b.emit("reduce", (sums,), "float32", (32,), axes=(0,), op="sum")


def number_of_classes(program, near=NEAR):
    """Before and after they are joined."""
    body = program.entry.body
    heavy = [s for s in body if not (isinstance(s, UOperator) and s.kind == "reshape")]
    classes = axis_classes(heavy)
    return len(classes), len(joined(classes, heavy, body, near))


def loops(program, units=2):
    """The parallel loops of the placed program, whose results are those of the original."""
    after = place(program, UnitMesh(units=units), limits=LIMITS)
    verify(after)
    given = arguments(program)
    for x, y in zip(run(after, given), run(program, given), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    return [
        [s.kind for s in loop.body.body if isinstance(s, UOperator)]
        for loop in walk(after.entry)
        if is_parallel(loop)
    ]


@pytest.mark.parametrize("units", [1, 2])
def test_rows_and_columns_are_read_in_one_loop(units):
    program = build([TYPE], lambda b, x: (rows(b, x), columns(b, x)))
    first, *others = loops(program, units=units)
    assert first.count("reduce") == 2 and "div" in first
    assert sum(each.count("reduce") for each in others) == (units > 1), "of the parts"


def test_several_classes_of_rows_are_one():
    def body(b, x):
        square = elementwise(b, "mul", x, x)
        return rows(b, x), b.emit("reduce", (square,), "float32", (128,), axes=(1,), op="sum")

    assert number_of_classes(build([TYPE], body)) == (4, 3), "the sum needs the columns whole"
    assert len(loops(build([TYPE], body))) == 1


def test_a_third_class_takes_the_parts_that_two_have():
    def body(b, x):
        return rows(b, x), columns(b, x), b.emit("reduce", (x,), "float32", (128,), axes=(1,), op="max")

    statements = [s for s in build([TYPE], body).entry.body if s.kind != "reshape"]
    found = joined(axis_classes(statements), statements, build([TYPE], body).entry.body, NEAR)
    assert max(found, key=lambda cut: len(cut.axes)).parts == 64


def test_what_a_cache_keeps_is_read_twice():
    program = build([TYPE], lambda b, x: (rows(b, x), columns(b, x)))
    before, after = number_of_classes(program, near=128 * 32 * 4)
    assert after == before
    assert number_of_classes(program)[1] < before


def test_other_arrays_and_other_axes_stay_apart():
    two = build([TYPE] * 2, lambda b, x, y: (rows(b, x), columns(b, y)))
    assert len(set(number_of_classes(two))) == 1

    def turned(b, x):
        y = b.emit("transpose", (x,), "float32", (32, 128), permutation=(1, 0))
        return rows(b, x), elementwise(b, "exp", y)

    before, after = number_of_classes(build([TYPE], turned))
    assert before - after == 2, "rows with rows, columns with columns"


def test_too_few_parts_stay_apart():
    program = build([TYPE], lambda b, x: (rows(b, x), columns(b, x, parts=8)))
    before, after = number_of_classes(program)
    assert before - after == 1, "the columns of both"


def test_what_would_store_much_stays_apart():
    """The partial sums are as large as the array."""
    program = build([TYPE], lambda b, x: (rows(b, x), columns(b, x, parts=128)))
    before, after = number_of_classes(program)
    assert before - after == 1, "the columns of both"


def test_statements_behind_a_barrier_share_no_read():
    """All rows need the sum of all elements."""

    def body(b, x):
        sums = b.emit("reduce", (x,), "float32", (128,), axes=(1,), op="sum")
        total = b.emit("reduce", (sums,), "float32", (), axes=(0,), op="sum")
        return (elementwise(b, "div", x, b.broadcast(total, (128, 32), ())),)

    assert len(set(number_of_classes(build([TYPE], body)))) == 1


def test_products_decide_for_themselves():
    def body(b, x, w):
        return elementwise(b, "exp", x), matmul(b, x, w)

    assert len(set(number_of_classes(build([TYPE, "float32[32,8]"], body)))) == 1


def test_blocks_join_nothing():
    """They have no cache of their own."""
    program = build([TYPE], lambda b, x: (rows(b, x), columns(b, x)))
    assert len(set(number_of_classes(program, near=limits_for(H200).reread))) == 1
