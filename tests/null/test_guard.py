"""Loops that say what they stop by: the branch on it, the text, and what a verifier refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.errors import VerificationError
from jax_cocktail.utask.guard import stopping_branch
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, UProgram
from jax_cocktail.utask.printer import fingerprint, print_statement
from jax_cocktail.utask.rewrite import rewrite
from tests.null.programs import branch, build, counted, elementwise, while_loop


def leaving(kind: str) -> UProgram:
    """A loop that goes on while `more` and (or: or) a counter say so."""

    def body(b, x, more):
        def below(count, bound):
            return b.compare("lt", count, b.constant(bound, "int32"))

        def going(count, more, x):
            return b.binary(kind, more, below(count, 4))

        def step(count, more, x):
            again = below(count, 2)
            selector = b.convert(again, "int32")
            (x,) = branch(b, selector, lambda: [x], lambda: [elementwise(b, "neg", x)])
            return b.binary("add", count, b.constant(1, "int32")), again, x

        return while_loop(b, (b.constant(0, "int32"), more, x), going, step)

    return build(["float32[4]", "bool[]"], body)


def stops_by(program: UProgram, position: int) -> UProgram:
    """The program, whose loops say that they stop by a carry."""
    return rewrite(program, lambda s: replace(s, stops_by=position) if isinstance(s, LoopUTask) else s)


def the_loop(program: UProgram) -> LoopUTask:
    (loop,) = (s for s in program.entry.body if isinstance(s, LoopUTask))
    return loop


def test_the_branch_that_is_left_by():
    program = leaving("and")
    assert stopping_branch(the_loop(program)) is None
    said = stops_by(program, 1)
    verify(said)
    loop = the_loop(said)
    position = stopping_branch(loop)
    assert position is not None and isinstance(loop.body.body[position], BranchUTask)
    assert "loop stops by 1 from" in print_statement(loop)
    assert fingerprint(said) != fingerprint(program)
    assert [loop.keep(kept).stops_by for kept in ((0, 1, 2), (1, 2), (0, 2))] == [1, 0, None]


def test_a_condition_asks_for_what_a_loop_stops_by():
    with pytest.raises(VerificationError, match="stops by carry 1, which its condition does not ask for"):
        verify(stops_by(leaving("or"), 1))
    with pytest.raises(ValueError, match="stops by 3"):
        stops_by(leaving("and"), 3)
    with pytest.raises(ValueError, match="stops by 0"):
        stops_by(build(["float32[]"], lambda b, x: counted(b, 3, (x,), lambda i, v: (v,))), 0)
