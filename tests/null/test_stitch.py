"""What is fused with what, and what reaches memory."""

from __future__ import annotations

from jax_cocktail.compiler import transform
from jax_cocktail.utask.ir import StitchedUTask, UOperator, walk
from tests.null.programs import build, counted, elementwise


def groups(program):
    return [s for s in walk(transform(program).entry) if isinstance(s, StitchedUTask)]


def plain(program):
    return [s.kind for s in walk(transform(program).entry) if isinstance(s, UOperator)]


def kinds(group):
    return [m.kind for m in group.members]


def test_chain_is_one_loop():
    def body(b, x):
        return (elementwise(b, "tanh", elementwise(b, "add", elementwise(b, "sin", x), x)),)

    (group,) = groups(build(["float32[8]"], body))
    assert kinds(group) == ["sin", "add", "tanh"]
    assert len(group.outputs) == 1


def test_two_results_of_one_shape_share_a_loop():
    def body(b, x):
        y = elementwise(b, "exp", x)
        return y, elementwise(b, "mul", y, y)

    (group,) = groups(build(["float32[8]"], body))
    assert kinds(group) == ["exp", "mul"]
    assert len(group.outputs) == 2


def test_value_read_only_in_its_loop_stays_in_registers():
    def body(b, x):
        e = elementwise(b, "exp", x)
        return (elementwise(b, "add", elementwise(b, "sin", e), elementwise(b, "cos", e)),)

    (group,) = groups(build(["float32[8]"], body))
    assert [str(v.type) for v in group.outputs] == ["float32[8]"]
    assert kinds(group)[0] == "exp"


def test_expensive_operand_of_a_broadcast_is_computed_once():
    def body(b, x, y):
        row = elementwise(b, "tanh", x)
        return (elementwise(b, "mul", b.broadcast(row, (4, 8), (1,)), y),)

    first, second = groups(build(["float32[8]", "float32[4,8]"], body))
    assert kinds(first) == ["tanh"] and "tanh" not in kinds(second)


def test_operand_of_an_empty_result_is_there():
    def body(b, x):
        return (b.broadcast(elementwise(b, "neg", x), (0, 8), (1,)),)

    (group,) = groups(build(["float32[8]"], body))
    assert kinds(group) == ["neg"]


def test_cheap_operand_of_a_broadcast_is_recomputed():
    def body(b, x, y):
        row = elementwise(b, "neg", x)
        return (elementwise(b, "mul", b.broadcast(row, (4, 8), (1,)), y),)

    (group,) = groups(build(["float32[8]", "float32[4,8]"], body))
    assert kinds(group) == ["neg", "broadcast", "mul"]


def test_reduction_computes_its_operand_on_the_fly():
    def body(b, x, y):
        return (b.emit("reduce", (elementwise(b, "mul", x, y),), "float32", (), op="sum", axes=(0,)),)

    (group,) = groups(build(["float32[8]", "float32[8]"], body))
    assert kinds(group) == ["mul", "reduce"]


def test_movement_of_memory_is_a_view():
    def body(b, x, w):
        t = b.emit("transpose", (x,), "float32", (8, 4), permutation=(1, 0))
        s = b.emit("slice", (t,), "float32", (4, 4), starts=(2, 0), strides=(1, 1))
        none = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}
        return (b.emit("dot", (s, w), "float32", (4, 3), **none),)

    program = build(["float32[4,8]", "float32[4,3]"], body)
    assert plain(program) == ["transpose", "slice", "dot"]
    assert groups(program) == []


def test_views_that_leave_a_loop_body_are_copied():
    def body(b, x):
        def step(_, x):
            return (b.emit("transpose", (x,), "float32", (4, 4), permutation=(1, 0)),)

        return counted(b, 3, (x,), step)

    (group,) = groups(build(["float32[4,4]"], body))
    assert kinds(group) == ["transpose"]


def test_scalars_are_straight_line_code():
    def body(b, x):
        y = elementwise(b, "add", x, x)
        return elementwise(b, "mul", y, x), elementwise(b, "sub", y, x)

    (group,) = groups(build(["int32[]"], body))
    assert kinds(group) == ["add", "mul", "sub"]


def test_update_reads_another_row_first():
    """The new row depends on a row that the update may overwrite: it is computed before, not inside."""

    def body(b, x, i, j):
        zero = b.constant(0, "int32")
        row = b.emit("dynamic_slice", (x, j, zero), "float32", (1, 8))
        new = elementwise(b, "add", row, row)
        return (b.emit("dynamic_update_slice", (x, new, i, zero), "float32", (4, 8)),)

    first, second = groups(build(["float32[4,8]", "int32[]", "int32[]"], body))
    assert kinds(first) == ["add"] and kinds(second) == ["dynamic_update_slice"]
