"""A program with launch parameters computes bit for bit what one for a single length computes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cpu.runner import compile_program, run_artifact, run_compiled
from tests.null.programs import arguments, build, counted, elementwise, matmul

COLUMNS = (1, 7, 24, 48, 100)


def products(rows, depth=20):
    """The rows of a loop times matrices of few and many columns, and a product along the rows."""
    types = [f"float32[{rows},{depth}]", *(f"float32[{depth},{n}]" for n in COLUMNS)]

    def make(b, xs, *matrices):
        zero = b.full(0, "int64", ())

        def step(i, total):
            x = b.reshape(b.emit("dynamic_slice", (xs, i, zero), "float32", (1, depth)), (depth,))
            return (elementwise(b, "add", elementwise(b, "tanh", total), x),)

        (total,) = counted(b, rows, (b.full(0.0, "float32", (depth,)),), step)
        made = [matmul(b, xs, w) for w in matrices]
        axes = {"lhs_batch": (), "lhs_contract": (0,), "rhs_batch": (), "rhs_contract": (0,)}
        along = b.emit("dot", (xs, made[-1]), "float32", (depth, COLUMNS[-1]), **axes)
        gram = {"lhs_batch": (), "lhs_contract": (1,), "rhs_batch": (), "rhs_contract": (1,)}
        square = b.emit("dot", (xs, xs), "float32", (rows, rows), **gram)
        sums = b.emit("reduce", (square,), "float32", (rows,), axes=(1,), op="sum")
        highest = b.emit("reduce", (xs,), "float32", (depth,), axes=(0,), op="max")
        return [total, *made, along, square, sums, highest]

    return build(types, make)


@pytest.mark.parametrize("lengths", [(33, 50), (132, 250)], ids=["some rows", "many rows"])
def test_products_of_any_length(lengths, monkeypatch):
    programs = [products(rows) for rows in lengths]
    built = [compile_program(program) for program in programs]
    assert len({each.digest for each in built}) == 1
    sized = [run_artifact(b, p, arguments(p)) for b, p in zip(built, programs, strict=True)]
    assert all("ck_dot_sized" in each.source for each in built)
    monkeypatch.setattr("jax_cocktail.passes.launch_parameters", lambda program: program)
    for program, found in zip(programs, sized, strict=True):
        for ours, fixed in zip(found, run_compiled(program, arguments(program)), strict=True):
            np.testing.assert_array_equal(ours, fixed)
