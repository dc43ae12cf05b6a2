"""Scopes, and constraint 1: no control flow below the scope of its body."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.analysis.parallel import parallel_fault
from jax_cocktail.analysis.scopes import Scope, program_scope, scope_of
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.errors import VerificationError
from jax_cocktail.stitch.fuse import fuse
from jax_cocktail.utask.ir import LoopUTask, UOperator, UProgram
from tests.null.programs import branch, build, counted, elementwise, fresh, region, tensor, while_loop

ARRIVE, WAIT = UOperator("arrive", (), ()), UOperator("wait", (), ())
SCALAR, ARRAY = "float32[]", "float32[4]"


def parallel(builder, x, *, extra=()):
    """A parallel loop over the rows of `x`; `extra`: statements in its body."""
    index, carried = builder.value("int64"), fresh(builder, x.type)

    def body():
        row = builder.emit("dynamic_slice", (carried, index), "float32", (1,))
        for statement in extra:
            builder.out.append(statement)
        return [
            builder.emit("dynamic_update_slice", (carried, elementwise(builder, "exp", row), index), *x_type)
        ]

    x_type = x.type.dtype, x.type.shape
    inner = region(builder, (index, carried), body)
    output = fresh(builder, x.type)
    builder.out.append(LoopUTask((x,), (output,), inner, trip_count=x.type.shape[0], parallel=True))
    return output


def scopes(program: UProgram) -> list[Scope]:
    return [scope_of(s) for s in program.entry.body]


def first_level(types, body) -> Scope:
    return scopes(build(types, body))[-1]


def test_registers_are_for_a_lane():
    assert first_level([SCALAR], lambda b, x: [elementwise(b, "exp", x)]) is Scope.LANE
    one = {"starts": (2,), "strides": (1,)}
    assert first_level([ARRAY], lambda b, x: [b.emit("slice", (x,), "float32", (1,), **one)]) is Scope.LANE


def test_arrays_are_for_a_unit():
    assert first_level([ARRAY], lambda b, x: [elementwise(b, "exp", x)]) is Scope.UNIT

    def total(b, x):
        return [b.emit("reduce", (x,), "float32", (), axes=(0,), op="sum")]

    assert first_level([ARRAY], total) is Scope.UNIT  # all lanes add, though one element comes out


def test_groups():
    scalars = fuse(build([SCALAR], lambda b, x: [elementwise(b, "neg", elementwise(b, "exp", x))]))
    assert scopes(scalars) == [Scope.LANE]
    arrays = fuse(build([ARRAY], lambda b, x: [elementwise(b, "neg", elementwise(b, "exp", x))]))
    assert scopes(arrays) == [Scope.UNIT]


def test_control_flow_is_as_high_as_its_body():
    def on(kind):
        return lambda *values: [elementwise(builder[0], kind, v) for v in values]

    builder = []

    def loop(b, x):
        builder[:] = [b]
        return counted(b, 3, [x], lambda i, c: on("exp")(c))

    assert first_level([SCALAR], loop) is Scope.LANE
    assert first_level([ARRAY], loop) is Scope.UNIT

    def condition_of_arrays(b, x, y):
        """The body is for a lane, the condition for a unit."""

        def below(c):
            total = b.emit("reduce", (y,), "float32", (), axes=(0,), op="sum")
            return elementwise(b, "lt", c, total, dtype="bool")

        return while_loop(b, [x], below, lambda c: [elementwise(b, "exp", c)])

    assert first_level([SCALAR, ARRAY], condition_of_arrays) is Scope.UNIT

    def choice(b, s, x):
        return branch(b, s, lambda: [x], lambda: [elementwise(b, "exp", x)])

    assert first_level(["int32[]", SCALAR], choice) is Scope.LANE
    assert first_level(["int32[]", ARRAY], choice) is Scope.UNIT
    assert first_level(["int32[]", ARRAY], lambda b, s, x: branch(b, s, lambda: [x])) is Scope.UNIT


def test_parallel_loops_are_for_the_device():
    program = build([ARRAY], lambda b, x: [parallel(b, x)])
    assert scopes(program) == [Scope.DEVICE]
    assert program_scope(program) is Scope.DEVICE
    around = build([ARRAY], lambda b, x: counted(b, 3, [x], lambda i, c: [parallel(b, c)]))
    assert scopes(around) == [Scope.DEVICE]


def test_bodies_of_parallel_loops_are_for_a_unit():
    (loop,) = build([ARRAY], lambda b, x: [parallel(b, x)]).entry.body
    assert all(scope_of(s) <= Scope.UNIT for s in loop.body.body)


def test_barriers_are_for_the_device():
    assert scope_of(ARRIVE) is scope_of(WAIT) is Scope.DEVICE
    program = build([ARRAY], lambda b, x: counted(b, 3, [x], lambda i, c: [elementwise(b, "exp", c)]))
    (loop,) = program.entry.body
    body = replace(loop.body, body=(*loop.body.body, ARRIVE, WAIT))
    assert scope_of(replace(loop, body=body)) is Scope.DEVICE


def test_programs():
    assert program_scope(build([SCALAR], lambda b, x: [elementwise(b, "exp", x)])) is Scope.LANE
    assert program_scope(build([ARRAY], lambda b, x: [elementwise(b, "exp", x)])) is Scope.UNIT
    assert [str(scope) for scope in Scope] == ["L0", "L1", "L2"]


# -- constraint 1 --------------------------------------------------------------------------------------------
def in_parallel(*statements) -> UProgram:
    """A program with `statements` in the body of a parallel loop; not verified."""
    program = build([ARRAY], lambda b, x: [parallel(b, x)])
    (loop,) = program.entry.body
    body = replace(loop.body, body=(*statements, *loop.body.body))
    return replace(program, entry=replace(program.entry, body=(replace(loop, body=body),)))


def fault_in(*statements) -> str:
    (loop,) = in_parallel(*statements).entry.body
    return parallel_fault(loop)


def test_no_barrier_in_a_parallel_loop():
    for statement in (ARRIVE, WAIT):
        assert "a barrier in a parallel loop" in fault_in(statement)
    with pytest.raises(VerificationError, match="barrier in a parallel loop"):
        verify(in_parallel(ARRIVE, WAIT))


def test_no_barrier_in_a_loop_in_a_parallel_loop():
    (inner,) = build([], lambda b: counted(b, 2, [], lambda i: [])).entry.body
    inner = replace(inner, body=replace(inner.body, body=(WAIT,)))
    assert "a barrier in a parallel loop" in fault_in(inner)


def test_a_parallel_loop_in_a_parallel_loop_is_a_loop():
    (loop,) = build([ARRAY], lambda b, x: [parallel(b, x)]).entry.body
    assert "barrier" not in fault_in(loop)
    assert tensor(ARRAY) == loop.outputs[0].type
