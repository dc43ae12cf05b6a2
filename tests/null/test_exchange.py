"""Exchanges: where they stand, that nothing else is needed, and that they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.errors import VerificationError
from jax_cocktail.utask.exchange import Blocks, blocks_of, tagged_words, widest, words_of
from jax_cocktail.utask.infer.infer import fault
from jax_cocktail.utask.ir import LoopUTask, Region, UOperator, UProgram, operators_in, walk
from jax_cocktail.utask.types import TensorType, Value
from tests.null.meshes import (
    RandomMesh,
    agrees,
    block,
    crossing,
    empty,
    exchange,
    given,
    lagging,
    parts,
    planned,
    put,
)
from tests.null.programs import branch, build, counted, elementwise, while_loop
from tests.oracle.exchange import TaggedWords, own
from tests.oracle.interpreter.run import run
from tests.oracle.mesh_interpreter import barrier_count, run_mesh, simulate

MATRIX = "float32[4,6]"
BIG = "float32[4,512]"


def total(b, x):
    return b.emit("reduce", (x,), x.type.dtype, (), axes=(0, 1), op="max")


def rows(b, x, state):
    """Every part of the result needs its own row of x and all of the state."""

    def body(i, out):
        row = block(b, x, i)
        less = b.broadcast(total(b, state), row.type.shape, ())
        return (put(b, out, elementwise(b, "sub", row, less), i),)

    return parts(b, 4, (empty(b, x),), body)


def recurrence(b, x):
    return counted(b, 3, (x,), lambda _, state: rows(b, x, state))


def until(b, x):
    """A while loop whose condition reads the state."""

    def condition(count, state):
        low = elementwise(b, "lt", count, b.constant(4, "int32"), dtype="bool")
        high = elementwise(b, "gt", total(b, state), b.constant(-90, "float32"), dtype="bool")
        return elementwise(b, "and", low, high)

    def body(count, state):
        return elementwise(b, "add", count, b.constant(1, "int32")), *rows(b, x, state)

    return while_loop(b, (b.constant(0, "int32"), x), condition, body)[1:]


def in_branches(b, x):
    """Steps of two sorts, by the parity of the trip."""

    def step(i, state):
        two = b.constant(2, "int64")
        odd = b.emit("convert", (b.emit("rem", (i, two), "int64", ()),), "int32", ())

        def one():
            (new,) = rows(b, x, state)
            return (elementwise(b, "sub", new, b.broadcast(total(b, new), (4, 6), ())),)

        return branch(b, odd, one, lambda: (elementwise(b, "neg", state),))

    return counted(b, 4, (x,), step)


def with_rest(b, x):
    """Two parts of two columns; the fifth and the sixth are written by whoever needs them."""

    def step(_, state):
        def body(i, out):
            new = elementwise(b, "sub", block(b, x, i, 1, 2), b.broadcast(total(b, state), (4, 2), ()))
            return (put(b, out, new, i, 1, 2),)

        (most,) = parts(b, 2, (empty(b, x),), body)
        zero, four = b.constant(0, "int64"), b.constant(4, "int64")
        last = b.emit("dynamic_slice", (x, zero, four), "float32", (4, 2))
        return (b.emit("dynamic_update_slice", (most, last, zero, four), "float32", (4, 6)),)

    return counted(b, 3, (x,), step)


PROGRAMS = {
    "recurrence": (recurrence, 1),
    "crossing": (crossing, 2),
    "lagging": (lagging, 1),
    "until": (until, 1),
    "branches": (in_branches, 1),
    "rest": (with_rest, 1),
}


def exchanges(program: UProgram) -> list[UOperator]:
    return [o for o in operators_in(program.entry) if o.kind == "exchange"]


def looped_barriers(program: UProgram) -> int:
    loops = (s for s in walk(program.entry) if isinstance(s, LoopUTask))
    return sum(o.kind == "wait" for s in loops for r in s.regions for o in operators_in(r))


def as_copies(program: UProgram, number: int) -> UProgram:
    """The program with one exchange that only copies, from wherever the others have written."""
    chosen = exchanges(program)[number]

    def region(old: Region) -> Region:
        body = []
        for statement in old.body:
            if statement is chosen:
                pairs = zip(statement.inputs, statement.outputs, strict=True)
                body += [UOperator("copy", (x,), (y,)) for x, y in pairs]
            elif isinstance(statement, LoopUTask) and not statement.parallel:
                body.append(replace(statement, body=region(statement.body)))
            elif hasattr(statement, "branches"):
                body.append(replace(statement, branches=tuple(map(region, statement.branches))))
            else:
                body.append(statement)
        return replace(old, body=tuple(body))

    return replace(program, entry=region(program.entry))


# -- programs ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_races(name):
    make, count = PROGRAMS[name]
    program = build([MATRIX], make)
    remarks = []
    exchanged = exchange(program, remarks.append)
    verify(exchanged)
    assert len(exchanges(exchanged)) == count and all(r.fired for r in remarks) and remarks
    ready = planned(exchanged)
    assert looped_barriers(planned(program)[0]) > looped_barriers(ready[0])
    for seed in range(3):
        agrees(program, ready, seed, most=6)


@pytest.mark.parametrize("name", ["recurrence", "crossing", "lagging", "until"])
def test_no_barrier_is_left_in_a_loop(name):
    program = build([MATRIX], PROGRAMS[name][0])
    assert looped_barriers(planned(exchange(program))[0]) == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_exchange_is_needed(name):
    program = build([MATRIX], PROGRAMS[name][0])
    final, plan = planned(exchange(program))
    values = given(program, 1)
    for number in range(len(exchanges(final))):
        broken = as_copies(final, number)
        assert any(simulate(broken, plan, values, n, order=o).races for n in (2, 3) for o in orders(n))


def orders(units):
    return list(permutations(range(units)))[:6]


def test_what_is_received_lies_in_own_memory():
    final, plan = planned(exchange(build([MATRIX], crossing)))
    for operator in exchanges(final):
        (x,), (y,) = operator.inputs, operator.outputs
        assert plan.slots[plan.layouts[x].root].space == "workspace"
        assert plan.slots[plan.layouts[y].root].space == "own"


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed):
    program = RandomMesh(seed).program()
    exchanged = exchange(program)
    verify(exchanged)
    agrees(program, planned(exchanged), seed, most=4)


def test_some_random_programs_exchange():
    programs = [RandomMesh(seed).program() for seed in range(12)]
    assert sum(exchange(program) is not program for program in programs) >= 2


# -- programs that are left alone ----------------------------------------------------------------------------
def own_slices_only(b, x):
    def step(_, state):
        def body(i, out):
            return (put(b, out, elementwise(b, "sin", block(b, state, i)), i),)

        return parts(b, 4, (empty(b, x),), body)

    return counted(b, 3, (x,), step)


def outside_of_loops(b, x):
    return rows(b, x, rows(b, x, x)[0])


def other_barriers_remain(b, x, y):
    """The large array crosses as well, at the same place."""

    def step(_, state, large):
        (new,) = rows(b, x, state)
        (wide,) = rows(b, y, large)
        return new, wide

    return counted(b, 3, (x, y), step)


@pytest.mark.parametrize(
    ("types", "make"),
    [
        ([MATRIX], own_slices_only),
        ([MATRIX], outside_of_loops),
        ([BIG], recurrence),
        (["float64[4,6]"], recurrence),
        ([MATRIX, BIG], other_barriers_remain),
    ],
)
def test_left_alone(types, make):
    program = build(types, make)
    assert exchange(program) is program


# -- the rules of the operator -------------------------------------------------------------------------------
def an_exchange(dtype="float32", blocks=((0, 1, 4, 0),)):
    type_ = TensorType(dtype, (4, 6))
    return UOperator("exchange", (Value(0, type_),), (Value(1, type_),), (("blocks", blocks),))


def test_rules():
    assert fault(an_exchange()) == ""
    assert fault(an_exchange(blocks=((1, 2, 2, 3),))) == ""  # the last columns are nobody's
    assert "more than axis" in fault(an_exchange(blocks=((0, 2, 3, 0),)))
    assert "no axis" in fault(an_exchange(blocks=((2, 1, 4, 0),)))
    assert "no size" in fault(an_exchange(blocks=((0, 1, 0, 0),)))
    assert "not (axis" in fault(an_exchange(blocks=((0, 1, 4),)))
    assert "for each operand" in fault(an_exchange(blocks=()))
    assert "float64" in fault(an_exchange("float64"))


def test_not_in_a_parallel_loop():
    """Units have unequal numbers of its trips, and some would wait for ever."""

    def body(b, x):
        def part(i, out):
            row = block(b, x, i)
            (copy,) = [b.value("float32", (1, 6))]
            b.out.append(UOperator("exchange", (row,), (copy,), (("blocks", ((1, 1, 6, 0),)),)))
            return (put(b, out, copy, i),)

        return parts(b, 4, (empty(b, x),), part)

    with pytest.raises(VerificationError, match="barrier in a parallel loop"):
        verify(build([MATRIX], body))


def test_words():
    operator = an_exchange(blocks=((1, 2, 2, 1),))
    (blocks,) = blocks_of(operator)
    assert blocks == widest(operator) == Blocks(1, 2, 2, 1)
    assert blocks.rows((4, 6)) == (4, 2, 6) and blocks.words((4, 6)) == 16
    assert [list(own(blocks, unit, 3)) for unit in range(3)] == [[], [0], [1]]
    assert [list(own(blocks, unit, 2)) for unit in range(2)] == [[1], [0]]
    assert words_of(operator, 2) == 16 and words_of(operator, 5) == 19
    assert tagged_words([operator, an_exchange()], 5) == 25 and tagged_words([], 5) == 0


# -- the protocol --------------------------------------------------------------------------------------------
def test_units_without_parts_are_waited_for():
    """Six units, four of which write rows: were the others not to send, they could be overtaken."""
    program = build([MATRIX], lagging)
    ready = planned(exchange(program))
    values = given(program, 0)
    expected = run(program, values)
    for seed in range(8):
        found = run_mesh(*ready, values, 6, order=np.random.default_rng(seed))
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x, y)


def test_overtaking_is_noticed():
    program = exchange(build([MATRIX], recurrence))
    (operator,) = exchanges(program)
    words = TaggedWords(program, 2)
    value = [np.zeros((4, 6), np.float32)]
    words.send(operator, 0, 1, value)
    assert not words.arrived(operator, 1)
    words.send(operator, 1, 1, value)
    assert words.arrived(operator, 1)
    words.send(operator, 0, 3, value)  # two steps later: the same buffer
    with pytest.raises(VerificationError, match="overwritten before"):
        words.arrived(operator, 1)


def test_barriers_before_a_loop_and_not_in_it():
    """The loop reads what other units wrote before it: one barrier in front of it is enough."""

    def body(b, x):
        (turned,) = parts(b, 3, (empty(b, x),), lambda i, out: (put(b, out, block(b, x, i, 1, 2), i, 1, 2),))

        def step(_, state):
            def part(i, out):
                new = elementwise(b, "sub", block(b, out, i), block(b, turned, i))
                return (put(b, out, new, i),)

            return parts(b, 4, (state,), part)

        return counted(b, 3, (x,), step)

    program = build([MATRIX], body)
    ready = planned(program)
    assert barrier_count(ready[0]) == 1 and looped_barriers(ready[0]) == 0
    agrees(program, ready)
