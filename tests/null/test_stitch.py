"""What is fused with what, and what reaches memory."""

from __future__ import annotations

from jax_cocktail.compiler import transform
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.stitch.fuse import fuse
from jax_cocktail.utask.ir import StitchedUTask, UOperator, walk
from jax_cocktail.utask.rewrite import rewrite
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


def test_a_constant_stands_between_no_two_groups():
    def body(b, x):
        y = elementwise(b, "exp", x)
        return y, elementwise(b, "mul", y, b.full(3.0, "float32", (8,)))

    (group,) = groups(build(["float32[8]"], body))
    assert kinds(group) == ["exp", "broadcast", "mul"]


def test_two_results_of_one_shape_share_a_loop():
    def body(b, x):
        y = elementwise(b, "exp", x)
        return y, elementwise(b, "mul", y, y)

    (group,) = groups(build(["float32[8]"], body))
    assert kinds(group) == ["exp", "mul"]
    assert len(group.outputs) == 2


def test_a_core_runs_through_the_arrays_of_one_update_at_a_time():
    """The roots come by kind, as in an optimiser: first all moments, then all parameters."""
    count = 12

    def body(b, *arrays):
        moments = [elementwise(b, "add", arrays[k], arrays[count + k]) for k in range(count)]
        return (*moments, *(elementwise(b, "mul", m, m) for m in moments))

    program = build(["float32[64,64]"] * (2 * count), body)
    for group in (found := groups(program)):
        made = {v for member in group.members for v in member.outputs}
        assert all(v in made for member in group.members if member.kind == "mul" for v in member.inputs)
        assert len({*group.inputs, *group.outputs}) <= PROGRAM.streams // 3 * 4
    assert 4 <= len(found) < count
    flat = rewrite(transform(program), lambda s: list(s.members) if isinstance(s, StitchedUTask) else s)
    threads = [s for s in walk(fuse(flat, 256).entry) if isinstance(s, StitchedUTask)]
    assert len(threads) < len(found)  # each thread waits once for all of its loads


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


def taken(b, y, rows):
    """The elements [n, rows[n]] of an array."""
    table = b.reshape(rows, (*rows.type.shape, 1))
    axes = {"offset_dims": (), "collapsed_slice_dims": (1,), "start_index_map": (1,), "slice_sizes": (1, 1)}
    batch = {"operand_batching_dims": (0,), "start_indices_batching_dims": (0,)}
    return b.emit(
        "gather", (y, table), y.type.dtype, rows.type.shape, **axes, **batch, mode="clip", fill_value=bytes(4)
    )


def test_a_gather_computes_the_few_elements_that_it_takes():
    def body(b, x, rows):
        return (taken(b, elementwise(b, "tanh", x), rows),)

    (group,) = groups(build(["float32[6,100]", "int64[6]"], body))
    assert kinds(group) == ["tanh", "gather"]
    first, second = groups(build(["float32[6,2]", "int64[6]"], body))
    assert (kinds(first), kinds(second)) == (["tanh"], ["gather"])


def test_a_gather_reads_its_table_from_memory():
    def body(b, x, rows):
        return (taken(b, x, elementwise(b, "neg", rows)),)

    first, second = groups(build(["float32[6,100]", "int64[6]"], body))
    assert (kinds(first)[0], kinds(second)) == ("neg", ["gather"])


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


def reduced(b, x, op, axes):
    shape = tuple(n for d, n in enumerate(x.type.shape) if d not in axes)
    return b.emit("reduce", (x,), x.type.dtype, shape, op=op, axes=axes)


def test_reductions_of_one_shape_and_axes_are_one_loop():
    def body(b, x, y):
        square = elementwise(b, "mul", x, x)
        return [reduced(b, x, "max", (1,)), reduced(b, square, "sum", (1,)), reduced(b, y, "min", (1,))]

    (group,) = groups(build(["float32[4,8]", "float32[4,8]"], body))
    assert kinds(group) == ["mul", "reduce", "reduce", "reduce"] and len(group.outputs) == 3


def test_unit_axes_do_not_part_reductions():
    def body(b, x):
        return [reduced(b, x, "max", (1,)), reduced(b, b.reshape(x, (4, 1, 8)), "sum", (2,))]

    (group,) = groups(build(["float32[4,8]"], body))
    assert len(group.reductions) == 2


def test_reductions_along_other_axes_or_of_other_results_are_loops_of_their_own():
    def body(b, x):
        most = reduced(b, x, "max", (1,))
        less = elementwise(b, "sub", x, b.broadcast(most, (4, 8), (0,)))
        return [most, reduced(b, x, "sum", (0,)), reduced(b, less, "sum", (1,))]

    found = groups(build(["float32[4,8]"], body))
    assert [kinds(group).count("reduce") for group in found] == [1, 1, 1]


def test_lanes_of_other_width_are_loops_of_their_own():
    """How many elements a vector has decides how a sum is rounded."""

    def body(b, x, n):
        return [reduced(b, x, "sum", (0,)), reduced(b, n, "sum", (0,))]

    assert len(groups(build(["float32[64]", "uint8[64]"], body))) == 2
    assert len(groups(build(["float32[64]", "int32[64]"], body))) == 1


def softmax(b, x):
    most = b.broadcast(reduced(b, x, "max", (1,)), x.type.shape, (0,))
    e = elementwise(b, "exp", elementwise(b, "sub", x, most))
    total = b.broadcast(reduced(b, e, "sum", (1,)), x.type.shape, (0,))
    return [elementwise(b, "div", e, total)]


def test_what_a_reduction_reads_is_stored_by_its_loop():
    first, second, third = groups(build(["float32[4,8]"], softmax))
    assert kinds(second) == ["sub", "exp", "reduce"] and len(second.outputs) == 2
    assert kinds(first) == ["reduce"] and kinds(third) == ["div"]


def test_what_only_reductions_read_is_not_stored():
    def body(b, x):
        e = elementwise(b, "exp", x)
        return [reduced(b, e, "max", (1,)), reduced(b, e, "sum", (1,))]

    (group,) = groups(build(["float32[4,8]"], body))
    assert kinds(group) == ["exp", "reduce", "reduce"] and len(group.outputs) == 2


def test_a_loop_that_reduces_reads_its_array_for_others_too():
    def body(b, x, y):
        return [reduced(b, x, "sum", (1,)), elementwise(b, "tanh", x), elementwise(b, "tanh", y)]

    first, second = groups(build(["float32[4,8]", "float32[4,8]"], body))
    assert kinds(first) == ["tanh", "reduce"] and kinds(second) == ["tanh"]


def test_threads_store_only_beside_whole_warps():
    def stored(shape, threads):
        program = transform(build([f"float32[{shape}]"], softmax))
        flat = rewrite(program, lambda s: list(s.members) if isinstance(s, StitchedUTask) else s)
        found = [s for s in walk(fuse(flat, threads).entry) if isinstance(s, StitchedUTask)]
        return any("exp" in kinds(group) and group.reductions for group in found)

    assert stored("8,64", 256) and not stored("9,64", 256) and stored("9,64", 1)
