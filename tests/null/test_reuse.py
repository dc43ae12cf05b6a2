"""What is passed over more than once, and the parts that placement takes because of it."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.cost.reuse import reused_bytes
from jax_cocktail.device.host import Cache
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.utask.ir import is_parallel, walk
from tests.null.programs import arguments, build, elementwise
from tests.oracle.interpreter.run import run


def rows_of(shape, passes: int, along: int = 1):
    """An array that is passed over once, or again behind a reduction of its rows (or columns)."""

    def body(b, x):
        y = elementwise(b, "mul", elementwise(b, "exp", x), x)
        if passes == 1:
            return [y, b.emit("reduce", (y,), "float32", shape[:1], axes=(1,), op="sum")]
        most = b.emit("reduce", (y,), "float32", (shape[1 - along],), axes=(along,), op="max")
        return [elementwise(b, "sub", y, b.broadcast(most, shape, (1 - along,)))]

    return build([f"float32[{','.join(map(str, shape))}]"], body)


@pytest.mark.parametrize(
    ("shape", "passes", "along", "trips"),
    [
        ((64, 1024), 1, 1, 2),  # units divide it
        ((64, 1024), 2, 1, 32),  # two arrays of 256 KB, of which a third of 48 KB stay in a cache
        ((64, 8192), 2, 1, 64),  # no cache holds a row
        ((8192, 64), 2, 0, 2),  # nor a column; and pieces of rows are slow to read
    ],
)
def test_small_parts_are_for_arrays_that_are_passed_over_again(shape, passes, along, trips):
    cache = Cache(48 << 10, 1 << 20, 1e10, 1e10)
    limits = Limits(flops=20, bytes=1e9, light=4, least_part=2, cache=cache)
    program = rows_of(shape, passes, along)
    after = place(program, UnitMesh(units=2), limits=limits)
    (loop,) = (s for s in walk(after.entry) if is_parallel(s))
    assert loop.trip_count == trips
    given = arguments(program)
    for x, y in zip(run(after, given), run(program, given), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_passes_over_rows_and_columns_are_two():
    def body(b, x):
        return [b.emit("reduce", (x,), "float32", (64, 8), axes=(d,), op="max") for d in (1, 2)]

    program = build(["float32[64,8,8]"], body)
    (x,) = program.entry.parameters
    one, two = program.entry.body
    axes = {x: 0, one.output: 0, two.output: 0}
    assert reused_bytes([one, two], axes) == x.type.nbytes
    assert reused_bytes([one], axes) == reused_bytes([two], axes) == 0
