"""Loops over products of few rows: their weights are divided over the cores, not read by each."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.products.pack_factors import pack_factors
from jax_cocktail.utask.ir import LoopUTask, UOperator, UProgram, is_a, is_parallel, walk
from tests.null.programs import build, counted, elementwise, matmul
from tests.oracle.interpreter.run import run


def agree(changed: UProgram, program: UProgram) -> None:
    """Both have the same results, of products that neither grow nor vanish."""
    verify(changed)
    shapes = (value.type.shape for value in program.entry.parameters)
    random = (np.random.default_rng(0).normal(size=shape) / shape[-1] ** 0.5 for shape in shapes)
    given = [array.astype(np.float32) for array in random]
    for mine, other in zip(run(changed, given), run(program, given), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", (2, 7, 64))
@pytest.mark.parametrize("width", (64, 512))
def test_few_rows_share_weights_beyond_the_cache(rows: int, width: int):
    """Each core would read all weights for a row or two; it reads its part of them, and a barrier follows."""

    def body(b, x, w):
        return counted(b, 3, (x,), lambda i, h: (elementwise(b, "tanh", matmul(b, h, w)),))

    program = build([f"float32[{rows},{width}]", f"float32[{width},{width}]"], body)
    after = place(program, UnitMesh(units=2))
    together = rows < 64 and width == 512
    assert [loop.parallel for loop in after.entry.body if isinstance(loop, LoopUTask)] == [not together]
    assert sum(map(is_parallel, walk(after.entry))) == 1
    agree(after, program)


@pytest.mark.parametrize(("width", "panels"), ((512, True), (520, False)))
def test_parts_become_panels(width: int, panels: bool):
    """Their sums are copied to their place, which is cheap if there is nothing behind odd columns to leave
    out."""

    def body(b, x, w):
        return counted(b, 50, (x,), lambda i, h: (matmul(b, h, w),))

    program = build([f"float32[2,{width}]", f"float32[{width},{width}]"], body)
    packed = pack_factors(place(program, UnitMesh(units=2)))
    (dot,) = (s for s in walk(packed.entry) if isinstance(s, UOperator) and is_a(s, "dot"))
    assert (dot.inputs[1].type.rank == 3) == panels
    agree(packed, program)
