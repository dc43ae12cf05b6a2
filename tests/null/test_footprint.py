"""The bytes that statements touch, and costs that add up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jax_cocktail.cost.footprint import bytes_of, bytes_of_group, bytes_of_pieces, touched_bytes, written
from jax_cocktail.cost.vector import Price, Vector, mean
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import StitchedUTask, is_parallel
from tests.null.meshes import block, empty, parts, put
from tests.null.programs import build, elementwise, fresh, matmul, tensor


def test_operators_touch_pieces_or_whole_operands():
    b = Builder()
    x, w, row = (fresh(b, tensor(text)) for text in ("float32[8,16]", "float32[16,4]", "float32[1,16]"))
    zero = b.constant(0, "int32")
    made = {
        "add": elementwise(b, "add", x, x),  # chains of them are one pass: operands come from registers
        "dot": matmul(b, x, w),
        "slice": b.emit("dynamic_slice", (x, zero, zero), "float32", (1, 16)),
        "update": b.emit("dynamic_update_slice", (x, row, zero, zero), "float32", (8, 16)),
    }
    found = {name: next(s for s in b.out if value in s.outputs) for name, value in made.items()}
    sizes = {name: sum(bytes_of(operator).values()) for name, operator in found.items()}
    assert sizes == {"add": 4 * 128, "dot": 4 * (128 + 64 + 32), "slice": 2 * 64, "update": 2 * 64}
    assert written(found["update"]) == row and written(found["add"]) == made["add"]


def test_a_group_touches_memory_once():
    b = Builder()
    x, row = fresh(b, tensor("float32[8,16]")), fresh(b, tensor("float32[1,16]"))
    inner = elementwise(b, "exp", row)
    zero = b.constant(0, "int32")
    out = b.emit("dynamic_update_slice", (x, inner, zero, zero), "float32", (8, 16))
    group = StitchedUTask(tuple(b.out), (x, row), (out,))
    assert bytes_of_group(group) == {row: 64, inner: 64}


def test_units_touch_their_parts():
    def body(b, x):
        def part(i, out):
            return (put(b, out, elementwise(b, "exp", block(b, x, i)), i),)

        return parts(b, 8, (empty(b, x),), part)

    statements = build(["float32[8,16]"], body).entry.body
    (loop,) = filter(is_parallel, statements)
    once = touched_bytes(loop.body.body, 1)
    assert once == 2 * bytes_of_pieces(loop.body.body) == 4 * 64  # two blocks, each read and written
    assert [touched_bytes([loop], units) for units in (1, 2, 3, 8)] == [8 * once, 4 * once, 3 * once, once]


@dataclass(frozen=True, slots=True)
class Both(Vector):
    clocks: np.ndarray
    price: Price


def test_vectors_of_vectors():
    one = Both(np.array([1.0, 2.0]), Price(1.0, 0.5))
    found = (one + one) * 3
    assert found.clocks.tolist() == [6.0, 12.0] and found.price == Price(6.0, 3.0)


def test_the_least_of_a_branch_is_that_of_one_side():
    assert mean([Price(4.0, 4.0, 4.0, 4.0), Price(2.0)]) == Price(3.0, 2.0, 2.0, 0.0)
