"""Who shares memory with whom."""

from __future__ import annotations

import pytest

from jax_cocktail.compiler import emit
from jax_cocktail.utask.ir import operators_in
from tests.null.meshes import agrees, block, parts, planned, put
from tests.null.programs import branch, build, counted, elementwise


def copies(source: str) -> int:
    return source.count("memcpy")


def test_carry_in_place():
    emitted = emit(
        build(["float32[8]"], lambda b, x: counted(b, 3, (x,), lambda _, x: (elementwise(b, "sin", x),)))
    )
    assert copies(emitted.source) == 1  # from the operand, which is not donated
    assert emitted.plan.workspace_bytes == 0


def test_donated_carry_moves_nothing():
    program = build(
        ["float32[8]"], lambda b, x: counted(b, 3, (x,), lambda _, x: (elementwise(b, "sin", x),)), (0,)
    )
    emitted = emit(program)
    assert copies(emitted.source) == 0
    assert emitted.plan.aliases == ((0, 0),)


def test_operand_that_is_also_a_result_is_not_overwritten():
    def body(b, x):
        (y,) = counted(b, 3, (x,), lambda _, x: (elementwise(b, "sin", x),))
        return x, y

    emitted = emit(build(["float32[8]"], body, (0,)))
    assert emitted.plan.aliases == ()


def test_operand_of_another_shape_is_not_the_result():
    """XLA refuses to give both one buffer."""

    def body(b, x):
        (y,) = counted(b, 3, (x,), lambda _, x: (elementwise(b, "sin", x),))
        return (b.reshape(y, (2, 4)),)

    assert emit(build(["float32[8]"], body, (0,))).plan.aliases == ()


def test_operand_read_after_the_loop_is_not_overwritten():
    def body(b, x):
        (y,) = counted(b, 3, (x,), lambda _, x: (elementwise(b, "sin", x),))
        return (elementwise(b, "add", x, y),)

    assert emit(build(["float32[8]"], body, (0,))).plan.aliases == ()


def test_pass_through_branch_costs_nothing():
    def body(b, flag, x):
        def step(_, x):
            return branch(b, flag, lambda: (x,), lambda: (elementwise(b, "sin", x),))

        return counted(b, 3, (x,), step)

    emitted = emit(build(["int32[]", "float32[8]"], body, (1,)))
    assert copies(emitted.source) == 0
    assert emitted.plan.workspace_bytes == 0


def test_duplicated_carry_is_two_arrays():
    def body(b, x, y):
        return counted(b, 3, (x, y), lambda _, x, y: (y, elementwise(b, "sin", y)))

    emitted = emit(build(["float32[8]", "float32[8]"], body, (0, 1)))
    slots = {emitted.plan.slots[v] for v in emitted.plan.slots}
    assert {s.index for s in slots if s.space == "output"} == {0, 1}
    assert copies(emitted.source) >= 1


def test_lives_that_do_not_meet_share_workspace():
    def body(b, x):
        for _ in range(6):
            x = b.emit("cumulative", (x,), "float32", (1024,), axis=0, op="sum", reverse=False)
        return (x,)

    assert emit(build(["float32[1024]"], body)).plan.workspace_bytes == 2 * 4096


@pytest.mark.parametrize("kind", ["sort", "top_k"])
def test_sorting_has_scratch(kind):
    def body(b, x):
        if kind == "sort":
            return b.emit_many("sort", (x,), [("float32", (64,))], dimension=0, num_keys=1)
        return b.emit_many("top_k", (x,), [("float32", (4,)), ("int32", (4,))], axis=0, k=4)

    plan = emit(build(["float32[64]"], body)).plan
    assert plan.workspace_bytes - plan.scratch_offset == 2 * 4 * 64


# -- several units -----------------------------------------------------------------------------------------
def updated(b, array, other):
    """Each of four units updates its part of an array in place."""

    def part(i, out):
        return (put(b, out, elementwise(b, "add", block(b, out, i), block(b, other, i)), i),)

    return parts(b, 4, (array,), part)


def test_copies_in_front_of_nested_loops_stay_where_the_plan_has_room_for_them():
    def body(b, x, y, which):
        def step(_, p, q):
            def inner(_, s, t):
                (s,) = updated(b, s, x)
                axis = {"axis": 0, "op": "sum", "reverse": False}
                return s, b.emit("cumulative", (s,), s.type.dtype, s.type.shape, **axis)

            s, t = counted(b, 3, (p, q), inner)
            return branch(b, which, lambda: (t, y), lambda: (*updated(b, t, s), *updated(b, y, s)))

        return counted(b, 3, (x, y), step)

    program = build(["float32[4]", "float32[4]", "int32[]"], body)
    for seed in range(2):
        agrees(program, planned(program), seed)


@pytest.mark.parametrize("donated", [(), (0,)])
def test_units_overwrite_a_donated_operand(donated):
    def body(b, x, y):
        return counted(b, 3, (x,), lambda _, z: updated(b, z, y))

    program = build(["float32[4]", "float32[4]"], body, donated)
    ready, plan = planned(program)
    assert [o.kind for o in operators_in(ready.entry)].count("copy") == 1 - len(donated)
    assert plan.aliases == tuple((operand, 0) for operand in donated)
    agrees(program, (ready, plan))
