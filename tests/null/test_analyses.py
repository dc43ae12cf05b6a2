"""What is kept of a program's analysis."""

from __future__ import annotations

import pytest

from jax_cocktail.analysis import parallel
from jax_cocktail.utask.ir import is_parallel, walk
from tests.null.meshes import block, parts, put
from tests.null.programs import unverified


def sticking_out(b, x):
    """The last trips write outside of the array, so they meet."""
    return parts(b, 8, (x,), lambda i, out: (put(b, out, block(b, x, i, 0, 2), i, 0, 2),))


def test_an_analysis_that_was_interrupted_is_made_again(monkeypatch):
    """Nobody sees an unfinished one, which has found no fault yet."""
    program = unverified(("float32[8,4]",), sticking_out)
    loop = next(s for s in walk(program.entry) if is_parallel(s))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(parallel._Walker, "_operator", _interrupted)
        parallel.parallel_fault(loop)
    assert parallel.parallel_fault(loop)


def _interrupted(*_):
    raise KeyboardInterrupt
