"""Choices: what passes offer, what a candidate takes of it, and that every alternative computes the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.compiler import emit
from jax_cocktail.passes import OPTIONAL, passes
from jax_cocktail.schedule.loops.unroll import WHOLE, unroll, ways
from jax_cocktail.utask.candidate import OFF, ON, SINGLE, Candidate, way
from jax_cocktail.utask.choices import Chooser, usual
from jax_cocktail.utask.ir import LoopUTask, walk
from jax_cocktail.utask.printer import fingerprint, identity
from jax_cocktail.utask.rewrite import rewrite
from tests.null.gpus import recurrence
from tests.null.programs import build, counted, elementwise, same_results, while_loop

V = "float32[3]"


def loops(program):
    return [s for s in walk(program.entry) if isinstance(s, LoopUTask)]


def nested(trips):
    """Two innermost loops, one of them in another loop, and a while loop."""

    def make(b, x, n):
        def outer(i, c):
            return counted(b, 5, [c], lambda j, v: [elementwise(b, "sin", v)])

        (first,) = counted(b, 3, [x], outer)
        (second,) = counted(b, trips, [first], lambda j, v: [elementwise(b, "cos", v)])

        def test(c, k):
            return elementwise(b, "lt", k, b.constant(7), dtype="bool")

        def body(c, k):
            return elementwise(b, "tanh", c), b.binary("add", k, b.constant(1))

        return while_loop(b, [second, n], test, body)

    return build([V, "int64"], make)


def taking(**named):
    return Chooser(named)


@pytest.mark.parametrize("trips", [1, 2, 3, 8, 9, 17])
@pytest.mark.parametrize("factor", ["1", "2", "4", "8", WHOLE])
def test_every_factor_computes_the_same(trips, factor):
    program = nested(trips)
    chooser = taking(**{f"unroll.{n}": factor for n in (1, 2, 3)})
    after = unroll(program, chooser)
    verify(after)
    same_results(program, after)
    assert all(choice.taken in choice.alternatives for choice in chooser.found.values())
    assert (after is program) == all(choice.taken == "1" for choice in chooser.found.values())


def test_innermost_loops_have_a_choice():
    chooser = taking()
    unroll(nested(9), chooser)
    assert [(c.name, c.alternatives) for c in chooser.found.values()] == [
        ("unroll.1", ("1", "2", "4", WHOLE)),
        ("unroll.2", ("1", "2", "4", "8", WHOLE)),
        ("unroll.3", ("1", "2")),
    ]


def test_the_program_may_ask_for_a_factor():
    (loop,) = loops(recurrence(1, 8, 20))
    for asked, first in ((1, "1"), (3, "3"), (8, "8"), (20, WHOLE), (50, WHOLE)):
        assert ways(replace(loop, unroll=asked))[0] == first
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="iterations in one"):
            replace(loop, unroll=wrong)


def test_what_is_asked_for_is_part_of_a_program():
    program = recurrence(1, 8, 20)
    wide = rewrite(program, lambda s: replace(s, unroll=8) if isinstance(s, LoopUTask) else s)
    assert fingerprint(wide) != fingerprint(program)


def test_a_candidate_names_what_is_not_usual():
    assert way(4, hoist=True, pipeline=False, threads=0) == Candidate(4)
    found = way(4, **{"unroll.1": 4, "hoist": False})
    assert found.choices == (("hoist", OFF), ("unroll.1", "4"))
    assert (found.text, found.name) == ("units=4 hoist=off unroll.1=4", "4 units, hoist off, unroll.1 4")
    assert found.but(units=2, hoist=True).choices == (("unroll.1", "4"),)
    assert (found.runs("hoist"), found.runs("sink"), found.taken("threads")) == (False, True, "0")


def test_what_is_no_alternative_counts_as_not_named():
    chooser = taking(first="b", second="z")
    answers = [ask(name, ("a", "b")) for ask, name in ((chooser, "first"), (chooser, "second"), (usual, "x"))]
    assert answers == ["b", "a", "a"]
    assert str(chooser.found["first"]) == "first: b, not a"


@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_a_pass_can_be_left_out(name):
    assert name not in {each for each, _ in passes(SINGLE.taking({name: OFF}))}
    several = {each for each, _ in passes(way(2, pipeline=True))}
    assert name in several | {"exchange"}


def test_a_program_knows_its_choices():
    emitted = emit(recurrence(1, 64, 16))
    found = {choice.name: choice for choice in emitted.choices}
    assert found["unroll.1"].taken == "1" and set(found) & OPTIONAL == set(emitted.fired) & OPTIONAL
    wide = emit(recurrence(1, 64, 16), candidate=way(1, **{"unroll.1": 4}))
    assert {choice.name: choice for choice in wide.choices}["unroll.1"].taken == "4"
    assert wide.source != emitted.source and wide.fingerprint != emitted.fingerprint
    assert wide.fingerprint == identity(recurrence(1, 64, 16), way(1, **{"unroll.1": 4}))
    without = emit(recurrence(1, 64, 16), candidate=way(1, hoist=False))
    (off,) = (choice for choice in without.choices if choice.name == "hoist")
    assert (off.taken, off.alternatives) == (OFF, (ON, OFF))
