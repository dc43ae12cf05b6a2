"""The engine of all passes: what it visits, and that what does not change stays the same object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    defined_in,
    operators_in,
    regions_in,
)
from jax_cocktail.utask.rewrite import Inside, fold, map_body, map_members, map_regions, rewrite
from jax_cocktail.utask.substitute import FreshValues, with_operands, with_reads
from jax_cocktail.utask.types import TensorType, Value
from tests.null.programs import branch, build, counted, elementwise, while_loop


def nested() -> UProgram:
    """A program with a `neg` in every kind of region: entry, condition, body and case."""

    def body(b: Builder, n: Value, x: Value) -> tuple[Value, ...]:
        def below(value: Value) -> Value:
            return elementwise(b, "lt", elementwise(b, "neg", value), n, dtype="bool")

        def trip(value: Value) -> tuple[Value, ...]:
            value = elementwise(b, "neg", value)
            selector = b.convert(value, "int32")
            cases = (lambda: (elementwise(b, "neg", value),)), (lambda: (value,))
            return branch(b, selector, *cases)

        (y,) = while_loop(b, (elementwise(b, "neg", x),), below, trip)
        return (y,)

    return build(["float32[]", "float32[]"], body)


def kinds(program: UProgram) -> list[str]:
    return [o.kind for o in operators_in(program.entry)]


def to_abs(statement: Statement) -> Statement:
    is_neg = isinstance(statement, UOperator) and statement.kind == "neg"
    return replace(statement, kind="abs") if is_neg else statement


def group() -> StitchedUTask:
    b = Builder(FreshValues())
    x, y = (b.fresh.make(TensorType("float32", (4,))) for _ in range(2))
    s = b.emit("add", (x, y), x.type)
    r = b.emit("neg", (s,), s.type)
    return StitchedUTask((*(m for m in b.out if isinstance(m, UOperator)),), (x, y), (r,))


# ---- what is visited, and identity ---------------------------------------------------------------------


def test_every_region_comes_before_those_that_it_holds() -> None:
    entry = nested().entry
    (loop,) = (s for s in entry.body if isinstance(s, LoopUTask))
    (choice,) = (s for s in loop.body.body if isinstance(s, BranchUTask))
    assert list(regions_in(entry)) == [entry, loop.condition, loop.body, *choice.branches]


def test_nothing_to_do_gives_the_argument() -> None:
    program = nested()
    assert rewrite(program, lambda s: s) is program
    assert rewrite(program, lambda s: (s,)) is program
    assert map_regions(program, lambda region: region) is program


def test_conditions_bodies_and_cases_are_visited() -> None:
    program = nested()
    after = rewrite(program, to_abs)
    verify(after)
    assert kinds(program).count("neg") == 4
    assert kinds(after).count("neg") == 0
    assert kinds(after).count("abs") == 4


def test_what_does_not_change_stays_the_same_object() -> None:
    program = nested()

    def change(region: Region) -> Region:
        return map_body(region, to_abs)

    after = map_regions(program, change)
    assert after.entry != program.entry
    loop = next(s for s in program.entry.body if isinstance(s, LoopUTask))
    assert loop in after.entry.body  # only the entry's own statements were replaced
    assert next(s for s in after.entry.body if isinstance(s, LoopUTask)) is loop
    assert map_regions(loop, lambda region: region) is loop


def test_a_statement_may_become_several_or_none() -> None:
    def body(b: Builder, x: Value) -> tuple[Value, ...]:
        elementwise(b, "abs", x)  # nobody reads it
        return (elementwise(b, "neg", elementwise(b, "neg", x)),)

    program = build(["float32[]"], body)
    fresh = FreshValues(program)

    def twice(statement: Statement) -> Statement | tuple[Statement, ...]:
        if not isinstance(statement, UOperator) or statement.kind == "abs":
            return ()
        b = Builder(fresh, statement.source)
        b.define(statement.outputs, "neg", (b.emit("copy", statement.inputs, statement.output.type),))
        return tuple(b.out)

    after = rewrite(program, twice)
    verify(after)
    assert kinds(after) == ["copy", "neg", "copy", "neg"]


class Counted(tuple[Statement, ...]):
    """Statements that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[Statement]:
        self.times += 1
        return super().__iter__()


def test_a_program_is_walked_once_for_fresh_values() -> None:
    program = nested()
    highest = max(value.id for value in defined_in(program.entry))
    loop = next(s for s in program.entry.body if isinstance(s, LoopUTask))
    inside = Counted(loop.body.body)
    loop = replace(loop, body=replace(loop.body, body=inside))
    outside = Counted(loop if isinstance(s, LoopUTask) else s for s in program.entry.body)
    program = replace(program, entry=replace(program.entry, body=outside))

    fresh = FreshValues(program)
    assert (outside.times, inside.times) == (0, 0)  # a pass that makes nothing
    scalar = TensorType("float32")
    assert [fresh.make(scalar).id for _ in range(3)] == [highest + 1, highest + 2, highest + 3]
    assert FreshValues(program).make(scalar).id == highest + 1  # another pass, on the same program
    assert (outside.times, inside.times) == (1, 1)

    body = (*program.entry.body, *fresh_negation(program))
    after = replace(program, entry=replace(program.entry, body=body))
    read = outside.times, inside.times
    assert FreshValues(after).make(scalar).id == highest + 2
    assert (outside.times, inside.times) == read  # only what has changed is walked again


def fresh_negation(program: UProgram) -> tuple[Statement, ...]:
    """An operator for the end of a program."""
    b = Builder(FreshValues(program))
    b.emit("neg", program.entry.results, program.entry.results[0].type)
    return tuple(b.out)


def test_members_of_groups_are_visited() -> None:
    program = UProgram("test", Region(group().inputs, (group(),), group().outputs))
    after = rewrite(program, to_abs)
    verify(after)
    assert kinds(after) == ["add", "abs"]


def test_a_group_reads_what_its_members_read() -> None:
    stitched = group()
    x, y = stitched.inputs
    after = map_members(stitched, lambda s: with_operands(s, {y: x}))
    assert after.inputs == (x,)
    assert map_members(stitched, lambda s: s) is stitched
    with pytest.raises(AssertionError, match="operators"):
        map_members(stitched, lambda _: stitched)


def test_other_operands() -> None:
    program = nested()
    loop = next(s for s in program.entry.body if isinstance(s, LoopUTask))
    n, x = program.entry.parameters
    assert with_reads(loop, {x: n}) is loop  # it reads neither
    other = with_reads(loop, {n: x})
    assert other.condition != loop.condition
    assert other.body is loop.body


# ---- keep ----------------------------------------------------------------------------------------------


def test_a_loop_keeps_some_of_its_carries() -> None:
    def body(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
        return counted(b, 3, (x, y), lambda _, p, q: (p, elementwise(b, "abs", q)))[1:]

    program = build(["float32[]", "float32[2]"], body)
    (loop,) = program.entry.body
    assert isinstance(loop, LoopUTask)
    assert loop.keep((0, 1)) is loop
    kept = loop.keep((1,))
    assert kept.body.parameters == (loop.index, loop.carried[1])
    verify(replace(program, entry=replace(program.entry, body=(kept,))))


def test_a_while_loop_keeps_what_its_condition_reads() -> None:
    def body(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
        return while_loop(b, (x, y), lambda p, _: elementwise(b, "is_finite", p, dtype="bool"), lambda *v: v)

    program = build(["float32[]", "float32[]"], body)
    (loop,) = program.entry.body
    assert isinstance(loop, LoopUTask)
    entry = replace(program.entry, body=(loop.keep((0,)),), results=loop.outputs[:1])
    verify(replace(program, entry=entry))


def test_a_branch_keeps_some_of_its_outputs() -> None:
    def body(b: Builder, i: Value, x: Value, y: Value) -> tuple[Value, ...]:
        return branch(b, i, lambda: (x, y), lambda: (x, y))[:1]

    program = build(["int32[]", "float32[]", "float32[2]"], body)
    (statement,) = program.entry.body
    assert isinstance(statement, BranchUTask)
    assert statement.keep((0, 1)) is statement
    verify(replace(program, entry=replace(program.entry, body=(statement.keep((0,)),))))


# ---- reading and building ------------------------------------------------------------------------------


def test_fold_knows_what_is_inside() -> None:
    def each(statement: Statement, inside: Inside[int]) -> int:
        counts = list(map(sum, inside))
        if isinstance(statement, BranchUTask):
            return max(counts)
        return sum(counts) * 10 if isinstance(statement, LoopUTask) else 1 + sum(counts)

    program = nested()  # neg; loop of (neg, lt) and (neg, convert, branch of one or none)
    assert sum(fold(s, each) for s in program.entry.body) == 1 + (2 + 2 + 1) * 10
    assert fold(group(), each) == 3


def test_a_builder_sorts_attributes_and_takes_a_type_or_its_pieces() -> None:
    b = Builder(FreshValues())
    x = b.constant([[1, 2], [3, 4]], "int32")
    y = b.emit("slice", (x,), TensorType("int32", (1, 1)), strides=(1, 1), starts=(0, 1))
    z = b.emit("slice", (x,), "int32", (1, 1), starts=(0, 1), strides=(1, 1))
    one, other = (s for s in b.out[1:] if isinstance(s, UOperator))
    assert one.attributes == other.attributes == (("starts", (0, 1)), ("strides", (1, 1)))
    assert y.type == z.type
    assert b.constant(7).type == TensorType("int64")
    assert b.reshape(x, (2, 2)) is x
    assert b.transpose(x, (0, 1)) is x
    elsewhere: list[Statement] = []
    b.to(elsewhere).transpose(x, (1, 0))
    assert len(elsewhere) == 1
    assert elsewhere[0] not in b.out
