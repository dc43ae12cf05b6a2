"""Every primitive and kind of dtype against `jax.jit`, in a branch in a loop, as one custom call."""

from __future__ import annotations

import jax
import pytest

from jax_cocktail.compiler import transform
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.primitives import translate
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, walk
from tests.buckets import buckets, check_bucket, chosen, looped, operands_of

pytestmark = pytest.mark.usefixtures("one_candidate")


@pytest.mark.parametrize("cases, x64", list(buckets()))
def test_bucket(cases, x64):
    check_bucket(cases, x64)


@pytest.mark.parametrize("cases, x64", chosen())
def test_loop_and_branch_survive(cases, x64):
    """The test above is about control flow only if simplification leaves some."""
    with jax.enable_x64(x64):
        program = translate(adapter.program(jax.make_jaxpr(looped(cases))(*operands_of(cases))), "x")
        loops = [t for t in transform(program).entry.body if isinstance(t, LoopUTask)]
    assert any(isinstance(inner, BranchUTask) for loop in loops for inner in walk(loop.body))
