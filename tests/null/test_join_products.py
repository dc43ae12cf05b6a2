"""Products that add up become one: which do, which do not, and that results stay."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.schedule.products.products import join_products
from jax_cocktail.utask.ir import UOperator, walk
from tests.null.programs import arguments, build, counted, elementwise, matmul
from tests.oracle.interpreter.run import run

LEFT, RIGHT, SUM = "float32[6,2,4,4]", "float32[3,2,8,4,4]", "float32[6,24]"


def product(b, x, w):
    """A product with columns in the order of tensor cores, and its result as a matrix."""
    axes = {"lhs_batch": (), "lhs_contract": (1, 2, 3), "rhs_batch": (), "rhs_contract": (1, 4, 3)}
    shape = (*x.type.shape[:1], w.type.shape[0], w.type.shape[2])
    return b.reshape(b.emit("dot", (x, w), "float32", shape, **axes), (shape[0], shape[1] * shape[2]))


def add(b, *terms):
    total, *rest = terms
    for term in rest:
        total = elementwise(b, "add", total, term)
    return total


def terms_of_products(program):
    """The number of products in each operator."""
    found = [s for s in walk(program.entry) if isinstance(s, UOperator) and s.kind == "dot"]
    return [len(dot.inputs) // 2 for dot in found]


def check(parameters, body, expected):
    program = build(parameters, body)
    joined = join_products(program)
    verify(joined)
    assert terms_of_products(joined) == expected
    assert (joined is program) == (terms_of_products(program) == expected)
    inputs = arguments(program)
    for before, after in zip(run(program, inputs), run(joined, inputs), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)  # the sum is rounded once


@pytest.mark.parametrize(
    "whole",
    [
        lambda b, p, q, c: add(b, p, q),
        lambda b, p, q, c: add(b, c, p, c, q, c),
        lambda b, p, q, c: add(b, add(b, c, q), add(b, p, c)),
    ],
    ids=["alone", "among others", "in parts"],
)
def test_two_products_of_a_sum(whole):
    def body(b, x, w, h, u, c):
        return [whole(b, product(b, x, w), product(b, h, u), c)]

    check([LEFT, RIGHT, LEFT, RIGHT, SUM], body, [2])


def test_sums_of_sums_and_pairs_of_many():
    def body(b, x, w, c):
        y = add(b, *(product(b, x, w) for _ in range(5)), c)
        z = add(b, product(b, x, w), y, product(b, x, w))
        return [elementwise(b, "tanh", y), z]

    check([LEFT, RIGHT, SUM], body, [2, 2, 1, 2])


def test_in_a_loop():
    def body(b, x, w, h, u, c):
        return counted(b, 3, [c], lambda _, s: [add(b, product(b, x, w), s, product(b, h, u))])

    check([LEFT, RIGHT, LEFT, RIGHT, SUM], body, [2])


def test_a_product_with_other_readers_stays():
    def body(b, x, w, h, u):
        p, q = product(b, x, w), product(b, h, u)
        return [add(b, p, q), p]

    check([LEFT, RIGHT, LEFT, RIGHT], body, [1, 1])


def test_products_of_other_sizes_or_orders_stay():
    def body(b, x, w, h, u, plain, factor):
        others = [matmul(b, plain, factor) for _ in range(2)]
        return [add(b, product(b, x, w), product(b, h, u), *others)]

    deeper = ["float32[6,4,4,4]", "float32[3,4,8,4,4]"]
    check([LEFT, RIGHT, *deeper, "float32[6,32]", "float32[32,24]"], body, [1, 1, 1, 1])


def test_terms_of_other_operators_stay():
    def body(b, x, w, h, u):
        p, q = product(b, x, w), product(b, h, u)
        return [elementwise(b, "sub", p, q)]

    check([LEFT, RIGHT, LEFT, RIGHT], body, [1, 1])
