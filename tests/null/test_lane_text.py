"""Text of lane loops: what stands before the innermost loop, and what inside."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.compiler import emit
from tests.null.programs import build, elementwise


def lines(program):
    return [line.strip() for line in emit(program).source.splitlines()]


def around_lanes(program):
    """The lines before the lane loop's pragma, and those of its body."""
    text = lines(program)
    at = text.index("CK_LANES")
    return text[:at], text[at + 2 : text.index("}", at)]


def test_a_row_number_is_read_once_per_row():
    """Inside, the compiler would gather: the stores could change it, for all it knows."""

    def body(b, table, rows):
        starts = b.reshape(rows, (3, 1))
        numbers = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,)}
        attributes = {**numbers, "operand_batching_dims": (), "start_indices_batching_dims": ()}
        found = b.emit(
            "gather",
            (table, starts),
            "float32",
            (3, 8),
            slice_sizes=(1, 8),
            mode="clip",
            fill_value=bytes(4),
            **attributes,
        )
        return [elementwise(b, "neg", found)]

    before, inside = around_lanes(build(["float32[9,8]", "int32[3]"], body))
    assert (
        sum("p1[" in line for line in before) == 1 and sum("ck_clamp_index" in line for line in before) == 1
    )
    assert len(inside) == 3 and not any("p1[" in line for line in inside)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_chain_of_what_does_not_change_leaves_together(dtype):
    def body(b, x, scale):
        wide = b.broadcast(elementwise(b, "neg", elementwise(b, "abs", scale)), (4, 6), (0,))
        return [elementwise(b, "mul", x, wide)]

    before, inside = around_lanes(build([f"{dtype}[4,6]", f"{dtype}[4]"], body))
    assert sum("p1[" in line for line in before) == 1
    assert len(inside) == 3, "x, the product, and where it goes"


def test_what_follows_from_the_lane_stays():
    def body(b, x):
        return [elementwise(b, "exp", elementwise(b, "neg", x))]

    before, inside = around_lanes(build(["float32[4,6]"], body))
    assert len(inside) == 4 and not any(line.startswith("const f32 t") for line in before)


def test_constants_are_spelled_where_they_are_used():
    def body(b, x):
        return [elementwise(b, "add", x, b.full(np.float32(2), "float32", (4, 6)))]

    _, inside = around_lanes(build(["float32[4,6]"], body))
    assert any("2.0f" in line for line in inside)
