"""Folded constants: whole numbers that the type of a float represents, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.builder import to_bytes
from tests.null.programs import build, elementwise, kinds, same_results

WHOLE = [  # kind, operands, their type, the type of the result, and the result if it is folded
    ("sub", (4194304.0, 1.0), "float32", "float32", 4194303.0),
    ("mul", (-3.0, 0.0), "float32", "float32", -0.0),
    ("add", (100.0, 100.0), "bfloat16", "bfloat16", 200.0),
    ("gt", (4194303.0, 0.0), "float32", "bool", True),
    ("convert", (7,), "int32", "float32", 7.0),
    ("convert", (-7.0,), "float32", "int32", -7),
    ("add", (200.0, 100.0), "bfloat16", "bfloat16", None),  # beyond 2^8
    ("mul", (4097.0, 4097.0), "float32", "float32", None),
    ("convert", (2**24 + 1,), "int32", "float32", None),
    ("add", (0.5, 0.5), "float32", "float32", None),
    ("div", (6.0, 3.0), "float32", "float32", None),
    ("lt", (float("nan"), 0.0), "float32", "bool", None),
    ("sub", (float("inf"), 1.0), "float32", "float32", None),
]


@pytest.mark.parametrize(("kind", "operands", "dtype", "result", "number"), WHOLE, ids=str)
def test_whole_numbers_that_a_float_represents_fold(kind, operands, dtype, result, number):
    def body(b):
        return [elementwise(b, kind, *(b.constant(n, dtype) for n in operands), dtype=result)]

    program = build([], body)
    smaller = simplify(program)
    verify(smaller)
    same_results(program, smaller)
    if number is None:
        assert kinds(smaller) == [*["constant"] * len(set(operands)), kind]
    else:
        assert kinds(smaller) == ["constant"]
        assert smaller.entry.body[0]["data"] == to_bytes(np.asarray(number), result)
