"""What belongs to a branch moves into it, with the same results, and nothing else moves."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.schedule.memory.plan import plan_memory
from jax_cocktail.schedule.sink import sink
from jax_cocktail.stitch.fuse import fuse
from jax_cocktail.utask.ir import LoopUTask, StitchedUTask, walk
from tests.null.meshes import agrees, block, parts, planned, put
from tests.null.programs import branch, build, counted, elementwise, kinds, matmul, same_results, while_loop
from tests.oracle.interpreter.run import run

ROWS, WEIGHTS, FLAG = "float32[2,4]", "float32[4,3]", "int32[]"


def update(b, array, new, at):
    return b.emit("dynamic_update_slice", (array, new, at, at), array.type.dtype, array.type.shape)


def zeros(b, shape=(6, 9)):
    return b.full(0.0, "float32", shape)


def sunk(program):
    after = sink(program)
    verify(after)
    for seed in range(4):
        same_results(program, after, seed)
    return after


def test_product_and_update_move_into_the_case():
    def body(b, x, w, flag):
        def step(i, array):
            zero = b.constant(0, "int64")
            product = b.emit("dot", (x, w), "float32", (1, 3), **AXES)
            (chosen,) = branch(b, flag, lambda: [b.full(9.0, "float32", (1, 3))], lambda: [product])
            return [b.emit("dynamic_update_slice", (array, chosen, i, zero), "float32", (5, 3))]

        return counted(b, 5, [zeros(b, (5, 3))], step)

    program = build(["float32[1,4]", WEIGHTS, FLAG], body)
    after = sunk(program)
    (chosen,) = [s for s in walk(after.entry) if hasattr(s, "branches")]
    assert [s.kind for s in chosen.branches[1].body] == ["dot", "dynamic_update_slice"]
    assert sink(after) is after
    stitched = fuse(after)
    plan = plan_memory(stitched)
    into = [s for s in walk(stitched.entry) if isinstance(s, StitchedUTask) and s.members[0].kind == "dot"]
    assert [m.kind for m in into[0].members] == ["dot", "dynamic_update_slice"]  # nothing is made beside it
    assert plan.workspace_bytes == 0


AXES = {"lhs_batch": (), "lhs_contract": (1,), "rhs_batch": (), "rhs_contract": (0,)}


def nested(b, x, w, flag, array, at):
    """A product by one of two ways, of which a branch takes none, some or one."""
    (way,) = branch(b, flag, lambda: [matmul(b, x, w)], lambda: [matmul(b, elementwise(b, "neg", x), w)])
    (chosen,) = branch(b, flag, lambda: [b.full(9.0, "float32", (2, 3))], lambda: [way])
    return update(b, array, chosen, at)


def test_branches_move_into_branches():
    def body(b, x, w, flag):
        return counted(b, 3, [zeros(b, (6, 9))], lambda i, array: [nested(b, x, w, flag, array, i)])

    after = sunk(build([ROWS, WEIGHTS, FLAG], body))
    outer = next(s for s in walk(after.entry) if hasattr(s, "branches"))
    (inner,) = [s for s in outer.branches[1].body if hasattr(s, "branches")]
    assert all("dynamic_update_slice" in [s.kind for s in case.body] for case in inner.branches)
    (loop,) = [s for s in walk(after.entry) if isinstance(s, LoopUTask)]
    assert [s for s in loop.body.body if getattr(s, "kind", "") == "dynamic_update_slice"] == []


def test_updates_by_rows():
    """As `scan` stacks what its steps give."""

    def body(b, x, w, flag):
        def step(i, array):
            (chosen,) = branch(b, flag, lambda: [b.full(9.0, "float32", (2, 3))], lambda: [matmul(b, x, w)])
            row, zero = b.reshape(chosen, (1, 2, 3)), b.constant(0, "int64")
            starts = i, zero, zero
            return [b.emit("dynamic_update_slice", (array, row, *starts), "float32", (5, 2, 3))]

        return counted(b, 5, [zeros(b, (5, 2, 3))], step)

    after = sunk(build([ROWS, WEIGHTS, FLAG], body))
    (chosen,) = [s for s in walk(after.entry) if hasattr(s, "branches")]
    assert [s.kind for s in chosen.branches[1].body] == ["dot", "reshape", "dynamic_update_slice"]
    into = [s for s in walk(fuse(after).entry) if isinstance(s, StitchedUTask)]
    assert ["dot", "reshape", "dynamic_update_slice"] in [[m.kind for m in s.members] for s in into]


def test_only_what_is_filled_is_written():
    """Blocks of rows, of which the cases fill one, none or all: the others keep what they were."""

    def body(b, x, flag, array):
        zero = b.constant(0, "int64")

        def filled(row):
            unknown = b.emit("empty", (), "float32", (4, 3))
            return b.emit("dynamic_update_slice", (unknown, row, zero, zero), "float32", (4, 3))

        def step(i, carried):
            at = elementwise(b, "mul", i, b.constant(3, "int64"))
            (block,) = branch(
                b,
                flag,
                lambda: [filled(b.emit("slice", (x,), "float32", (1, 3), starts=(0, 0), strides=(1, 1)))],
                lambda: [b.emit("empty", (), "float32", (4, 3))],
                lambda: [elementwise(b, "neg", x)],
            )
            return [b.emit("dynamic_update_slice", (carried, block, zero, at), "float32", (4, 6))]

        return counted(b, 2, [array], step)

    program = build(["float32[4,3]", FLAG, "float32[4,6]"], body)
    after = sink(program)
    verify(after)
    (chosen,) = [s for s in walk(after.entry) if hasattr(s, "branches")]
    updates = [
        [s.inputs[1].type.shape for s in case.body if getattr(s, "kind", "") == "dynamic_update_slice"]
        for case in chosen.branches
    ]
    assert updates == [[(1, 3)], [], [(4, 3)]]
    x, array = np.arange(12, dtype=np.float32).reshape(4, 3), -np.ones((4, 6), np.float32)
    for flag, rows in enumerate((1, 0, 4)):
        (found,) = run(after, [x, np.int32(flag), array])
        expected = array.copy()
        expected[:rows] = np.tile(x if flag == 0 else -x, 2)[:rows]
        np.testing.assert_array_equal(found, expected)


def test_a_part_that_is_placed_along_the_same_axis_is_written_whole():
    """No single start says where it goes."""

    def body(b, x, flag, array):
        zero, one = b.constant(0, "int64"), b.constant(1, "int64")

        def filled():
            unknown = b.emit("empty", (), "float32", (4, 3))
            return b.emit("dynamic_update_slice", (unknown, x, one, zero), "float32", (4, 3))

        def step(i, carried):
            (block,) = branch(b, flag, lambda: [filled()], lambda: [filled()])
            return [b.emit("dynamic_update_slice", (carried, block, i, zero), "float32", (9, 3))]

        return counted(b, 2, [array], step)

    after = sink(build(["float32[2,3]", FLAG, "float32[9,3]"], body))
    verify(after)
    (chosen,) = [s for s in walk(after.entry) if hasattr(s, "branches")]
    kinds_ = [[s.kind for s in case.body] for case in chosen.branches]
    assert kinds_ == [["empty", "dynamic_update_slice", "dynamic_update_slice"]] * 2


def twice_read(b, x, w, flag, array, i):
    """Somebody else reads the product."""
    product = matmul(b, x, w)
    (chosen,) = branch(b, flag, lambda: [b.full(9.0, "float32", (2, 3))], lambda: [product])
    return update(b, array, elementwise(b, "add", chosen, product), i)


def read_array(b, x, w, flag, array, i):
    """The update overwrites what is read after it."""
    (new,) = branch(b, flag, lambda: [matmul(b, x, w)], lambda: [b.full(9.0, "float32", (2, 3))])
    after = update(b, array, new, i)
    return elementwise(b, "add", after, array)


def late_start(b, x, w, flag, array, i):
    """Where to write follows from the branch."""
    made, at = branch(
        b,
        flag,
        lambda: [matmul(b, x, w), b.constant(2, "int64")],
        lambda: [b.full(9.0, "float32", (2, 3)), b.constant(3, "int64")],
    )
    return update(b, array, made, at)


def no_product(b, x, w, flag, array, i):
    """What is computed by element is stitched anyway."""
    (made,) = branch(
        b, flag, lambda: [b.full(1.0, "float32", (2, 3))], lambda: [b.full(9.0, "float32", (2, 3))]
    )
    return update(b, array, made, i)


@pytest.mark.parametrize("step", [twice_read, read_array, late_start, no_product])
def test_what_stays(step):
    def body(b, x, w, flag):
        return counted(b, 3, [zeros(b)], lambda i, array: [step(b, x, w, flag, array, i)])

    program = build([ROWS, WEIGHTS, FLAG], body)
    assert kinds(sunk(program)).index("branch") > kinds(program).index("loop")
    (loop,) = [s for s in walk(sink(program).entry) if isinstance(s, LoopUTask)]
    assert any(getattr(s, "kind", "") == "dynamic_update_slice" for s in loop.body.body)


def test_a_product_that_a_loop_reads_stays():
    def body(b, x, w, flag):
        product = matmul(b, x, w)

        def more():
            return while_loop(
                b,
                [product],
                lambda c: b.emit("lt", (flag, flag), "bool", ()),
                lambda c: [elementwise(b, "add", c, product)],
            )

        return branch(b, flag, lambda: [b.full(9.0, "float32", (2, 3))], more)

    program = build([ROWS, WEIGHTS, FLAG], body)
    assert sink(program) is program


def row_after(b, w, flag, sums, array, i):
    """A row of an array is multiplied, then overwritten; a branch gives the product on."""
    product = b.emit("dot", (block(b, array, i), w), "float32", (1, 4), **AXES)
    after = put(b, array, b.full(2.0, "float32", (1, 4)), i)
    (chosen,) = branch(b, flag, lambda: [product], lambda: [b.full(9.0, "float32", (1, 4))])
    return [put(b, sums, chosen, i), after]


@pytest.mark.parametrize("loop", [counted, parts])
def test_a_product_stays_before_what_overwrites_its_operand(loop):
    """Moved behind it, the whole array would be copied in every trip, and no parallel loop could run."""

    def body(b, w, flag, array):
        def trip(i, sums, array):
            return row_after(b, w, flag, sums, array, i)

        return loop(b, 5, [zeros(b, (5, 4)), array], trip)

    program = build(["float32[4,4]", FLAG, "float32[5,4]"], body)
    after = sunk(program)
    (chosen,) = [s for s in walk(after.entry) if hasattr(s, "branches")]
    assert "dot" not in [s.kind for s in chosen.branches[0].body]
    assert plan_memory(fuse(after)).workspace_bytes <= 64, "a row, and no array"
    agrees(program, planned(after), 0)


def test_a_product_stays_before_the_next_value_of_a_carry():
    def body(b, x, w, flag):
        def step(i, sums, x):
            product = matmul(b, x, w)
            after = elementwise(b, "neg", x)
            (chosen,) = branch(b, flag, lambda: [product], lambda: [b.full(9.0, "float32", (2, 4))])
            return [update(b, sums, chosen, i), after]

        return counted(b, 5, [zeros(b), x], step)

    after = sunk(build(["float32[2,4]", "float32[4,4]", FLAG], body))
    (chosen,) = [s for s in walk(after.entry) if hasattr(s, "branches")]
    assert "dot" not in [s.kind for s in chosen.branches[0].body]


def test_an_update_stays_behind_what_reads_its_array_by_another_name():
    def body(b, x, w, flag, array):
        flat = b.reshape(array, (6, 9))
        (new,) = branch(b, flag, lambda: [matmul(b, x, w)], lambda: [b.full(9.0, "float32", (2, 3))])
        largest = b.emit("reduce", (array,), "float32", (), axes=(0,), op="max")
        return [update(b, flat, new, b.constant(1, "int32")), largest]

    program = build([ROWS, WEIGHTS, FLAG, "float32[54]"], body)
    assert sunk(program) is program


def test_a_part_of_an_array_is_not_moved_within_it():
    """A branch gives a product, or a row of what is updated by it."""

    def body(b, x, w, flag, array):
        def trip(i, flat):
            stacked = b.reshape(flat, (5, 4))

            def row():
                at = b.emit("mul", (i, b.constant(4, "int64")), "int64", ())
                return [b.reshape(b.emit("dynamic_slice", (flat, at), "float32", (4,)), (1, 4))]

            (new,) = branch(b, flag, lambda: [matmul(b, x, w)], row)
            return [b.reshape(put(b, stacked, new, b.constant(0, "int64")), (20,))]

        return counted(b, 5, [array], trip)

    program = build(["float32[1,4]", "float32[4,4]", FLAG, "float32[20]"], body)
    assert plan_memory(fuse(sunk(program))).workspace_bytes <= 64, "a row"


def test_what_may_fail_fails_whatever_another_branch_chooses():
    def body(b, x, w, flag, status):
        def failing():
            checked = b.emit("fail", (status,), "int32", (), text="too deep")
            return [
                elementwise(b, "mul", matmul(b, x, w), b.broadcast(b.convert(checked, "float32"), (2, 3), ()))
            ]

        (made,) = branch(b, status, lambda: [matmul(b, x, w)], failing)
        return branch(b, flag, lambda: [b.full(9.0, "float32", (2, 3))], lambda: [made])

    program = build([ROWS, WEIGHTS, FLAG, FLAG], body)
    assert sink(program) is program
