"""What is legal in a program depends on how far it has come: every rule has a program that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.analysis.verifier import LEGAL, verify
from jax_cocktail.errors import VerificationError
from jax_cocktail.utask.ir import LoopUTask, Region, StitchedUTask, UOperator, UProgram
from jax_cocktail.utask.types import TensorType, Value
from tests.null.meshes import block, empty, parts, put
from tests.null.programs import build

F = TensorType("float32", (3,))
X, Y = Value(0, F), Value(1, F)


def program(body, results) -> UProgram:
    return UProgram("p", Region((X,), tuple(body), tuple(results)))


def refuses(broken: UProgram, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(broken)


def barrier(kind: str) -> UOperator:
    return UOperator(kind, (), ())


PARALLEL = build(
    ["float32[4,6]"],
    lambda b, x: parts(b, 4, (empty(b, x),), lambda i, out: (put(b, out, block(b, x, i), i),)),
)
GROUP = program([StitchedUTask((UOperator("neg", (X,), (Y,)),), (X,), (Y,))], [Y])
EXCHANGE = UOperator("exchange", (X,), (Y,), (("blocks", ((0, 1, 3, 0),)),))
ILLEGAL = {
    "arrive": ({"translated", "placed"}, program([barrier("arrive"), barrier("wait")], [X])),
    "block_barrier": ({"translated", "placed"}, program([barrier("block_barrier")], [X])),
    "exchange": ({"translated"}, program([EXCHANGE], [Y])),
    "a stitched group": ({"translated", "placed"}, GROUP),
    "a parallel loop": ({"translated"}, PARALLEL),
}


@pytest.mark.parametrize("what", ILLEGAL)
@pytest.mark.parametrize("form", LEGAL)
def test_what_is_legal_in_a_form(what, form):
    illegal, made = ILLEGAL[what]
    verify(made)
    if form in illegal:
        with pytest.raises(VerificationError, match=f"{what} is not legal in a program that is {form}"):
            verify(made, form)
    else:
        verify(made, form)


def test_every_refused_kind_is_tried():
    assert {k for legal in LEGAL.values() for k in legal.refused} == {
        "arrive",
        "wait",
        "block_barrier",
        "exchange",
    }
    only = program([barrier("wait")], [X])
    for form in ("translated", "placed"):
        with pytest.raises(VerificationError, match="wait is not legal"):
            verify(only, form)


def test_arrive_and_wait_follow_one_another():
    refuses(program([barrier("wait")], [X]), "follow one another")
    refuses(program([barrier("arrive"), barrier("arrive"), barrier("wait")], [X]), "follow one another")
    refuses(program([barrier("arrive")], [X]), "do not wait")


def test_a_barrier_in_a_parallel_loop():
    (inner,) = (s for s in PARALLEL.entry.body if isinstance(s, LoopUTask))
    body = replace(inner.body, body=(barrier("arrive"), barrier("wait"), *inner.body.body))
    statements = tuple(replace(inner, body=body) if s is inner else s for s in PARALLEL.entry.body)
    broken = replace(PARALLEL, entry=replace(PARALLEL.entry, body=statements))
    with pytest.raises(VerificationError, match="barrier in a parallel loop"):
        verify(broken, "planned")
