"""Right factors of repeated products are packed once: which are, which are not, and that results stay."""

from __future__ import annotations

import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.compiler import emit
from jax_cocktail.device.tuning import FACTORS
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.products.pack_factors import Packing, pack_factors
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.ir import LoopUTask, UOperator, is_a, is_parallel, walk
from tests.null.meshes import agrees, planned
from tests.null.programs import branch, build, counted, elementwise, lstm, matmul, same_results, while_loop

ROWS, K, COLUMNS = 5, 65, 256
X, W = f"float32[{ROWS},{K}]", f"float32[{K},{COLUMNS}]"
assert FACTORS.bytes <= K * COLUMNS * 4


def repeated(b, x, w, trips=FACTORS.reads):
    """The sum of so many products."""

    def step(i, total):
        return [elementwise(b, "add", total, matmul(b, elementwise(b, "exp", x), w))]

    return counted(b, trips, [b.full(0.0, x.type.dtype, (*x.type.shape[:-1], *w.type.shape[1:]))], step)


def check(parameters, body, copies):
    """Packs so many factors, and gives the statements of the entry."""
    program = build(parameters, body)
    packed = pack_factors(program)
    verify(packed)
    assert (packed is program) == (copies == 0)
    found = [s for s in walk(packed.entry) if is_a(s, "copy", "concatenate")]
    assert len(found) == copies
    same_results(program, packed)
    return packed.entry.body


def test_a_matrix_is_packed_before_the_loop():
    body = check([X, W], repeated, 1)
    assert [s.kind for s in body if isinstance(s, UOperator)][-1] == "copy"
    assert isinstance(body[-1], LoopUTask)
    (dot,) = [s for s in walk(body[-1]) if isinstance(s, UOperator) and s.kind == "dot"]
    assert dot.inputs[1].type.shape == (COLUMNS // 16, K, 16)


def test_gates_on_an_axis_of_their_own_are_columns():
    check([X, f"float32[{K},4,64]"], repeated, 1)


def test_rows_of_several_axes():
    check([f"float32[3,{ROWS},{K}]", W], repeated, 1)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_rows(rows):
    check([f"float32[{rows},{K}]", W], repeated, 1)


def test_blocks_of_rows_count():
    """A product of many rows reads its matrix often enough by itself."""
    for blocks, copies in ((FACTORS.reads - 1, 0), (FACTORS.reads, 1)):
        x = f"float32[{blocks * FACTORS.block_rows},{K}]"
        check([x, W], lambda b, x, w: (matmul(b, x, w),), copies)


def test_one_row_without_an_axis():
    check([f"float32[{K}]", W], repeated, 1)


def test_contracted_axes_hold_no_groups_of_rows():
    deep, wide = 4 * FACTORS.reads, f"float32[{4 * FACTORS.reads},{COLUMNS}]"

    def cut_depth(b, x, w):
        return (matmul(b, b.slice(x, (0, 0), (FACTORS.reads, deep)), w),)

    def turned(b, x, w):
        axes = {"lhs_batch": (), "lhs_contract": (0,), "rhs_batch": (), "rhs_contract": (0,)}
        return (b.emit("dot", (b.slice(x, (0, 0), (deep, 2)), w), "float32", (2, COLUMNS), **axes),)

    check([f"float32[{FACTORS.reads},{2 * deep}]", wide], cut_depth, 0)
    check([f"float32[{deep},4]", wide], turned, 0)


def test_no_rows_read_nothing():
    check([f"float32[0,4,{K}]", W], lambda b, x, w: (matmul(b, b.slice(x, (0, 1, 0), (0, 3, K)), w),), 0)


def test_a_branch_packs_what_it_alone_multiplies():
    rows = FACTORS.block_rows * FACTORS.reads

    def either(b, which, x, w):
        nothing = b.full(0.0, "float32", (rows, COLUMNS))
        return branch(b, which, lambda: [matmul(b, x, w)], lambda: [nothing])

    body = check(["int32[]", f"float32[{rows},{K}]", W], either, 1)
    assert "copy" not in [s.kind for s in body if isinstance(s, UOperator)]


def test_a_core_is_told_where_columns_lie():
    def body(b, x, w):
        return counted(b, FACTORS.reads, (x,), lambda _, x: (matmul(b, x, w),))

    program = build([f"float32[3,{COLUMNS}]", f"float32[{COLUMNS},{COLUMNS}]"], body)
    assert f"3, {COLUMNS}, {COLUMNS}, {COLUMNS}, 1, 16, kCkPanels, {COLUMNS}, 1>" in emit(program).source


def test_a_vector_has_no_panels():
    check([f"float32[{ROWS},{1 << 15}]", f"float32[{1 << 15}]"], repeated, 0)


def test_panels_of_doubles_are_narrower():
    x, w = f"float64[{ROWS},{K}]", f"float64[{K},96]"
    check([x, w], repeated, 0)  # small
    body = check([x, f"float64[{K},160]"], repeated, 1)
    (dot,) = [s for s in walk(body[-1]) if isinstance(s, UOperator) and s.kind == "dot"]
    assert dot.inputs[1].type.shape == (160 // 8, K, 8)


def test_zeros_fill_the_last_panel():
    body = check([X, f"float32[{K},{COLUMNS + 3}]"], repeated, 1)
    (dot,) = [s for s in walk(body[-1]) if isinstance(s, UOperator) and s.kind == "dot"]
    assert dot.inputs[1].type.shape == (COLUMNS // 16 + 1, K, 16)


def test_groups_of_rows_that_lie_apart_count():
    def middle(groups):
        def body(b, x, w):
            rows = b.slice(x, (0, 1, 0), (groups, 2, K))
            return (matmul(b, rows, w),)

        return body

    for groups, copies in ((FACTORS.reads - 1, 0), (FACTORS.reads, 1)):
        check([f"float32[{groups},4,{K}]", W], middle(groups), copies)


@pytest.mark.parametrize(
    ("x", "w"),
    [
        (f"float32[{ROWS},16]", "float32[16,64]"),  # small
        (f"bfloat16[{ROWS},{K}]", f"bfloat16[{K},1024]"),  # converted on the way
    ],
)
def test_other_products_stay(x, w):
    check([x, w], repeated, 0)


def test_trips_of_all_loops_count():
    check([X, W], lambda b, x, w: repeated(b, x, w, FACTORS.reads - 1), 0)

    def nested(b, x, w):
        half = FACTORS.reads // 2
        total = b.full(0.0, "float32", (ROWS, COLUMNS))
        return counted(b, 2, [total], lambda i, t: [elementwise(b, "add", t, repeated(b, x, w, half)[0])])

    body = check([X, W], nested, 1)
    assert [s.kind for s in body if isinstance(s, UOperator)][-1] == "copy"


def test_an_unknown_trip_count_is_not_enough():
    def open_ended(b, x, w):
        def body(total):
            return [elementwise(b, "add", total, matmul(b, x, w))]

        def test(total):
            first = b.reshape(b.slice(total, (0, 0), (1, 1)), ())
            return elementwise(b, "lt", first, b.constant(9.0, "float32"), dtype="bool")

        start = b.full(100.0, "float32", (ROWS, COLUMNS))
        return while_loop(b, [start], test, body)

    check([X, W], open_ended, 0)


def test_a_matrix_that_the_loop_changes_stays():
    def changing(b, x, w):
        def step(i, total, w):
            return [elementwise(b, "add", total, matmul(b, x, w)), elementwise(b, "sin", w)]

        return counted(b, 40, [b.full(0.0, "float32", (ROWS, COLUMNS)), w], step)

    check([X, W], changing, 0)


def test_two_products_share_a_copy():
    def both(b, x, y, w):
        def step(i, total):
            return [elementwise(b, "add", total, elementwise(b, "add", matmul(b, x, w), matmul(b, y, w)))]

        return counted(b, 40, [b.full(0.0, "float32", (ROWS, COLUMNS))], step)

    check([X, X, W], both, 1)


def test_a_product_that_is_made_in_place_stays():
    def rows(b, x, w):
        def step(i, array):
            row = b.reshape(matmul(b, x, w), (1, ROWS, COLUMNS))
            zero = b.constant(0)
            return [b.emit("dynamic_update_slice", (array, row, i, zero, zero), array.type)]

        return counted(b, 40, [b.full(0.0, "float32", (40, ROWS, COLUMNS))], step)

    check([X, W], rows, 0)


def test_copies_do_not_fill_memory():
    def many(b, x, v, w):
        return *repeated(b, x, v), *repeated(b, x, w)

    program = build([X, W, W], many)
    for room, copies in ((0, 0), (K * COLUMNS * 4, 1), (3 * K * COLUMNS * 4, 2)):
        packed = pack_factors(program, Packing(most_bytes=room))
        assert sum(isinstance(s, UOperator) and s.kind == "copy" for s in walk(packed.entry)) == copies


PARTS = {  # machine, copies: part, then gate, row and column in the order in which they are read
    "core": (Packing(reads=5), (2, 4, 6, 3)),
    "block": (Packing(reads=5, near=1 << 20), (2, 6, 4, 3)),
    "few reads": (Packing(reads=6), None),
}


@pytest.mark.parametrize("name", PARTS)
def test_units_pack_their_columns(name):
    packing, shape = PARTS[name]
    limits = Limits(flops=20, bytes=1e9, light=4, least_part=2)
    program = simplify(place(lstm(1, 6), UnitMesh(units=2), limits=limits))
    packed = pack_factors(program, packing)
    verify(packed)
    copies = [s.outputs[0].type.shape for s in packed.entry.body if is_parallel(s)]
    assert copies == ([] if shape is None else [shape])
    same_results(program, packed)
    ready = planned(packed)
    agrees(packed, ready)
