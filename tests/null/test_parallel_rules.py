"""Which loops may call themselves parallel, and what their trips touch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jax_cocktail.analysis.parallel import (
    block_access,
    own_slices,
    parallel_fault,
    scalar_constants,
    tile_access,
)
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.errors import VerificationError
from jax_cocktail.schedule.simplify.canonicalise import canonicalise
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.stitch.fuse import fuse
from jax_cocktail.utask.ir import (
    LoopUTask,
    StitchedUTask,
    UOperator,
    UProgram,
    is_parallel,
    walk,
)
from tests.null.meshes import block, empty, parts, put
from tests.null.programs import branch, build, counted, elementwise, unverified, while_loop

Make = Callable[..., tuple]
TYPES = ("float32[8,4]", "float32[4]")


def loop_of(program: UProgram) -> LoopUTask:
    return next(s for s in walk(program.entry) if is_parallel(s))


def legal(body, types=TYPES) -> LoopUTask:
    """The loop of a program that the verifier accepts, before and after stitching."""
    program = build(types, body)
    verify(fuse(canonicalise(simplify(program))))
    return loop_of(program)


def refused(body, message: str, types=TYPES) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(unverified(types, body))


def scaled(trips: int, tile: int, axis: int = 0, source: Callable | None = None):
    """Every trip writes a block of the carried array, computed from its own block of the array."""

    def program(b, x, y):
        def body(i, out):
            piece = source(b, x, y, i, out) if source else block(b, x, i, axis, tile)
            return (put(b, out, elementwise(b, "neg", piece), i, axis, tile),)

        return parts(b, trips, (x,), body)

    return program


def test_what_is_known_outside_counts_each_time():
    """An analysis is kept with the body, but for what it was told."""

    def body(b, x, y):
        zero, size = b.constant(0, "int64"), b.constant(2, "int64")

        def trip(i, out):
            start = b.emit("mul", (i, size), "int64", ())
            piece = b.emit("dynamic_slice", (x, start, zero), "float32", (2, 4))
            return (b.emit("dynamic_update_slice", (out, piece, start, zero), "float32", (8, 4)),)

        return counted(b, 4, (x,), trip)

    program = build(TYPES, body)
    (loop,) = (s for s in walk(program.entry) if isinstance(s, LoopUTask))
    loop, known = replace(loop, parallel=True), scalar_constants(program.entry)
    for _ in range(2):
        assert parallel_fault(loop, known) == ""
        assert "more than its own slice" in parallel_fault(loop)


# -- the carried arrays --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("trips", "tile", "axis"), [(8, 1, 0), (4, 2, 0), (2, 2, 1), (3, 2, 0), (0, 8, 0)])
def test_blocks(trips, tile, axis):
    loop = legal(scaled(trips, tile, axis))
    assert own_slices(loop) == {0: (axis, tile)}
    x = loop.initial[0]
    assert tile_access(loop) == {x: (axis, tile), loop.outputs[0]: (axis, tile)}


@pytest.mark.parametrize("begin", [0, 5, 6])
def test_a_part_that_is_alone_begins_anywhere(begin):
    """A slice of it is its own, but no block: it tells nothing about other parts."""

    def program(b, x, y):
        def body(i, out):
            piece = b.emit("slice", (out,), "float32", (2, 4), starts=(begin, 0), strides=(1, 1))
            negated, start = elementwise(b, "neg", piece), b.constant(begin, "int64")
            return (b.emit("dynamic_update_slice", (out, negated, start, zero(b)), "float32", (8, 4)),)

        return parts(b, 1, (x,), body)

    loop = legal(program)
    (runs,) = {runs for value, runs in block_access(loop).items() if value in loop.outputs}
    assert [(r.axis, r.begin, r.end) for r in runs] == [(0, begin, begin + 2)]
    assert own_slices(loop) == ({} if begin else {0: (0, 2)})


def test_a_part_that_is_alone_leaves_the_others_alone():
    def program(b, x, y):
        def body(i, out):
            piece = b.emit("slice", (out,), "float32", (2, 4), starts=(0, 0), strides=(1, 1))
            start = b.constant(6, "int64")
            return (b.emit("dynamic_update_slice", (out, piece, start, zero(b)), "float32", (8, 4)),)

        return parts(b, 1, (x,), body)

    refused(program, "writes .*more than its own slice")


def test_own_block_of_the_carried_array_is_read():
    loop = legal(scaled(4, 2, source=lambda b, x, y, i, out: block(b, out, i, 0, 2)))
    assert own_slices(loop) == {0: (0, 2)}


def test_blocks_that_stick_out_overlap():
    refused(scaled(5, 2), "writes .*more than its own slice")


def test_updates_wider_than_the_step_overlap():
    def program(b, x, y):
        return parts(b, 4, (x,), lambda i, out: (put(b, out, block(b, x, i, 0, 1), b.constant(1, "int64")),))

    refused(program, "writes .*dynamic_update_slice")
    wide = lambda b, x, y: parts(  # noqa: E731
        b,
        4,
        (x,),
        lambda i, out: (b.emit("dynamic_update_slice", (out, two(b, x), i, zero(b)), "float32", (8, 4)),),
    )
    refused(wide, "more than its own slice")


def two(b, x):
    return b.emit("slice", (x,), "float32", (2, 4), starts=(0, 0), strides=(1, 1))


def zero(b):
    return b.constant(0, "int64")


def test_whole_array_as_next_value():
    def program(b, x, y):
        return parts(b, 8, (x,), lambda i, out: (elementwise(b, "neg", out),))

    refused(program, "reads .*neg")
    refused(lambda b, x, y: parts(b, 8, (x,), lambda i, out: (x,)), "does not hand on")


@pytest.mark.parametrize("kind", ["neighbour", "sum", "other axis"])
def test_reads_of_what_others_write(kind):
    def source(b, x, y, i, out):
        if kind == "neighbour":
            return block(b, out, elementwise(b, "add", i, b.constant(1, "int64")))
        if kind == "sum":
            total = b.emit("reduce", (out,), "float32", (4,), axes=(0,), op="sum")
            return b.reshape(total, (1, 4))
        return b.reshape(
            b.emit("slice", (block(b, out, i, 1),), "float32", (4, 1), starts=(0, 0), strides=(1, 1)), (1, 4)
        )

    refused(scaled(4, 1, source=source), "more than its own slice")


def test_one_element_is_no_carry():
    def program(b, x, y):
        one = b.constant(0, "int64")
        return parts(b, 4, (one,), lambda i, n: (elementwise(b, "add", n, i),))

    refused(program, "one element")
    column = lambda b, x: parts(b, 1, (x,), lambda i, out: (out,))  # noqa: E731
    refused(column, "one element", ("float32[1,1]",))


def test_carries_that_change_places():
    def program(b, x, y):
        return parts(b, 8, (x, x), lambda i, p, q: (q, p))

    refused(program, "does not hand on")


def test_pass_through_touches_nothing():
    loop = legal(lambda b, x, y: parts(b, 8, (x,), lambda i, out: (out,)))
    assert own_slices(loop) == {} and tile_access(loop) == {}


def test_zero_size():
    def program(b, x):
        return parts(b, 4, (x,), lambda i, out: (elementwise(b, "neg", out),))

    assert own_slices(legal(program, ("float32[0,4]",))) == {}

    def part_of_nothing(b, x):
        return parts(b, 4, (x,), lambda i, out: (put(b, out, block(b, x, i), i),))

    legal(part_of_nothing, ("float32[4,0]",))


def test_several_updates_of_one_block():
    def program(b, x, y):
        def body(i, out):
            out = put(b, out, elementwise(b, "neg", block(b, out, i, 0, 2)), i, 0, 2)
            return (put(b, out, elementwise(b, "exp", block(b, out, i, 0, 2)), i, 0, 2),)

        return parts(b, 4, (x,), body)

    assert own_slices(legal(program)) == {0: (0, 2)}


def test_updates_of_different_blocks():
    def program(b, x, y):
        def body(i, out):
            out = put(b, out, elementwise(b, "neg", block(b, x, i, 0, 2)), i, 0, 2)
            return (put(b, out, elementwise(b, "neg", block(b, x, i, 1, 1)), i, 1, 1),)

        return parts(b, 4, (x,), body)

    refused(program, "writes .*more than its own slice")


# -- starts --------------------------------------------------------------------------------------------------
def started(start: Callable, tile: int = 2):
    def program(b, x, y):
        def body(i, out):
            at = start(b, i)
            piece = b.emit("dynamic_slice", (x, at, zero(b)), "float32", (tile, 4))
            return (b.emit("dynamic_update_slice", (out, piece, at, zero(b)), "float32", (8, 4)),)

        return parts(b, 4, (x,), body)

    return program


def times(b, x, n, dtype="int64"):
    return b.emit("mul", (x, b.constant(n, dtype)), dtype, ())


@pytest.mark.parametrize(
    "start",
    [
        lambda b, i: b.emit("mul", (b.constant(2, "int64"), i), "int64", ()),
        lambda b, i: times(b, b.convert(i, "int32"), 2, "int32"),
        lambda b, i: b.convert(times(b, i, 2), "int32"),
        lambda b, i: b.reshape(b.reshape(times(b, i, 2), (1,)), ()),
    ],
)
def test_starts_by_multiplication(start):
    assert own_slices(legal(started(start))) == {0: (0, 2)}


@pytest.mark.parametrize(
    "start",
    [
        lambda b, i: i,
        lambda b, i: times(b, i, -2),
        lambda b, i: b.emit("mul", (i, i), "int64", ()),
        lambda b, i: b.emit("sub", (b.constant(6, "int64"), times(b, i, 2)), "int64", ()),
        lambda b, i: times(b, i, 3),
    ],
)
def test_other_starts(start):
    refused(started(start), "more than its own slice")


def test_narrow_starts_wrap():
    def program(b, x):
        def body(i, out):
            at = b.convert(i, "int8")
            piece = b.emit("dynamic_slice", (x, at), "float32", (1,))
            return (b.emit("dynamic_update_slice", (out, piece, at), "float32", (300,)),)

        return parts(b, 300, (x,), body)

    refused(program, "more than its own slice", ("float32[300]",))


def test_blocks_may_have_gaps():
    assert own_slices(legal(started(lambda b, i: times(b, i, 2), tile=1))) == {0: (0, 2)}


def test_factor_defined_outside_of_the_loop():
    def program(b, x, y):
        two_ = b.constant(2, "int64")
        return started(lambda b, i: b.emit("mul", (i, two_), "int64", ()))(b, x, y)

    made = build(TYPES, program)
    loop = loop_of(made)
    constants = scalar_constants(made.entry)
    assert own_slices(loop, constants) == {0: (0, 2)}
    assert "more than its own slice" in parallel_fault(loop)


# -- what is read --------------------------------------------------------------------------------------------
def access(read: Callable, tile: int = 2):
    """What a loop touches of `y`, of which `read` takes the (tile, 4) piece that a trip computes from."""

    def program(b, x, y):
        def body(i, out):
            return (put(b, out, elementwise(b, "neg", read(b, y, i)), i, 0, tile),)

        return parts(b, 8 // tile, (x,), body)

    made = build(("float32[8,4]", "float32[8,4]"), program)
    return tile_access(loop_of(made)).get(made.entry.parameters[1], "untouched")


def test_reads_of_free_values():
    assert access(lambda b, y, i: block(b, y, i, 0, 2)) == (0, 2)
    assert access(lambda b, y, i: two(b, y)) is None
    assert access(lambda b, y, i: b.full(1, "float32", (2, 4))) == "untouched"


def test_reads_through_views():
    def flipped(b, y, i):
        turned = b.emit("transpose", (y,), "float32", (4, 8), permutation=(1, 0))
        return b.emit("transpose", (block(b, turned, i, 1, 2),), "float32", (2, 4), permutation=(1, 0))

    def with_unit_axes(b, y, i):
        return b.reshape(block(b, b.reshape(y, (1, 8, 1, 4)), i, 1, 2), (2, 4))

    def split(b, y, i):
        return b.reshape(block(b, b.reshape(y, (8, 2, 2)), i, 0, 2), (2, 4))

    def merged(b, y, i):
        whole = b.reshape(y, (4, 8))
        return b.reshape(block(b, whole, i, 0, 1), (2, 4))

    def row_then_block(b, y, i):
        column = b.emit("slice", (y,), "float32", (8, 1), starts=(0, 1), strides=(1, 1))
        return b.broadcast(block(b, column, i, 0, 2), (2, 4), (0, 1))

    assert access(flipped) == access(with_unit_axes) == access(split) == access(row_then_block) == (0, 2)
    assert access(merged) is None


def test_two_different_reads():
    def program(b, y, i):
        column = b.reshape(block(b, y, i, 1, 1), (8, 1))
        top = b.emit("slice", (column,), "float32", (2, 1), starts=(0, 0), strides=(1, 1))
        return elementwise(b, "add", block(b, y, i, 0, 2), b.broadcast(top, (2, 4), (0, 1)))

    assert access(program) is None


def test_reads_in_nested_regions():
    def nested(b, y, i):
        (piece,) = counted(
            b,
            3,
            (b.full(0, "float32", (2, 4)),),
            lambda _, p: (elementwise(b, "add", p, block(b, y, i, 0, 2)),),
        )
        flag = b.convert(i, "int32")
        (piece,) = branch(b, flag, lambda: (piece,), lambda: (block(b, y, i, 0, 2),))
        return piece

    assert access(nested) == (0, 2)

    def by_inner_index(b, y, i):
        (piece,) = counted(b, 3, (b.full(0, "float32", (2, 4)),), lambda t, p: (block(b, y, t, 0, 2),))
        return piece

    assert access(by_inner_index) is None


def test_free_values_that_nested_loops_carry_are_copied():
    def nested(b, y, i):
        (whole,) = counted(b, 3, (y,), lambda _, p: (put(b, p, two(b, p), i, 0, 2),))
        return block(b, whole, i, 0, 2)

    assert access(nested) is None


# -- arrays carried through nested regions -------------------------------------------------------------------
def test_time_loop_inside_a_part():
    """A domain: every part runs the whole loop on its own columns."""

    def program(b, x, y):
        def part(i, out):
            def step(t, out):
                row = b.emit("dynamic_slice", (out, t, i), "float32", (1, 1))
                at = (out, elementwise(b, "neg", row), t, i)
                return (b.emit("dynamic_update_slice", at, "float32", (8, 4)),)

            return counted(b, 8, (out,), step)

        return parts(b, 4, (x,), part)

    assert own_slices(legal(program)) == {0: (1, 1)}


def test_while_and_branch_inside_a_part():
    def program(b, x, y):
        def part(i, out):
            def more(count, out):
                row = block(b, out, i)
                total = b.emit("reduce", (row,), "float32", (), axes=(0, 1), op="sum")
                return elementwise(b, "lt", total, b.constant(3, "float32"), dtype="bool")

            def step(count, out):
                (out,) = branch(b, count, lambda: (out,), lambda: (put(b, out, block(b, out, i), i),))
                return (count, out)

            return while_loop(b, (b.constant(0, "int32"), out), more, step)[1:]

        return parts(b, 8, (x,), part)

    assert own_slices(legal(program)) == {0: (0, 1)}


SEVEN = ("float32[7,4]", "float32[4]")


def ends_short(equal: int, last: int) -> Callable:
    """Four parts of 2 of 7 rows, the last ones shorter. `equal`: the number of the others; `last`: length."""

    def program(b, x, y):
        def part(i, out):
            side = b.convert(b.emit("div", (i, b.constant(equal, "int64")), "int64", ()), "int32")
            start = times(b, i, 2)

            def piece(size):
                zero = b.constant(0, "int64")
                found = b.emit("dynamic_slice", (x, start, zero), "float32", (size, x.type.shape[1]))
                inputs = out, elementwise(b, "neg", found), start, zero
                return (b.emit("dynamic_update_slice", inputs, "float32", out.type.shape),)

            return branch(b, side, lambda: piece(2), lambda: piece(last))

        return parts(b, 4, (empty(b, x),), part)

    return program


def test_a_branch_on_the_index_makes_the_last_part_shorter():
    assert own_slices(legal(ends_short(3, 1), SEVEN)) == {0: (0, 2)}


@pytest.mark.parametrize(("equal", "last"), [(4, 1), (2, 3), (3, 2)])
def test_shorter_parts_that_stick_out_overlap(equal, last):
    refused(ends_short(equal, last), "writes .*more than its own slice", SEVEN)


def test_branch_that_replaces_the_array():
    def program(b, x, y):
        def part(i, out):
            return branch(b, b.convert(i, "int32"), lambda: (out,), lambda: (x,))

        return parts(b, 8, (x,), part)

    refused(program, "more than its own slice")


# -- groups and barriers -------------------------------------------------------------------------------------
def test_members_of_groups():
    def program(b, x, y):
        start = empty(b, x)
        return parts(
            b,
            4,
            (start,),
            lambda i, out: (put(b, out, elementwise(b, "neg", block(b, x, i, 0, 2)), i, 0, 2),),
        )

    made = build(TYPES, program)
    stitched = fuse(canonicalise(made))
    loop = loop_of(stitched)
    assert any(isinstance(s, StitchedUTask) for s in loop.body.body)
    assert own_slices(loop) == {0: (0, 2)}
    assert tile_access(loop)[made.entry.parameters[0]] == (0, 2)


def test_no_barrier_inside():
    loop = legal(scaled(4, 2))
    body = replace(loop.body, body=(UOperator("wait", (), ()), *loop.body.body))
    assert "barrier" in parallel_fault(replace(loop, body=body))


def test_no_barrier_in_a_group():
    made = build(TYPES, lambda b, x, y: (elementwise(b, "neg", y),))
    group = StitchedUTask((UOperator("wait", (), ()),), (), ())
    entry = replace(made.entry, body=(*made.entry.body, group))
    with pytest.raises(VerificationError, match="wait is a member of a group"):
        verify(replace(made, entry=entry))
