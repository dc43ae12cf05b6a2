"""The predicted loads and stores of small programs, against sums by hand. Counts are in tests/cpu."""

from __future__ import annotations

from collections import Counter

import pytest

from jax_cocktail.analysis.contraction import PANELS
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.codegen.traffic import Moved, traffic
from jax_cocktail.compiler import emit
from jax_cocktail.cost.cpu import our_price
from jax_cocktail.cost.cpu_products import Form, Loads, product_loads
from jax_cocktail.device.host import SERVER
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.tuning import MODEL
from jax_cocktail.utask.candidate import SINGLE, Candidate
from tests.null.gpus import recurrence
from tests.null.programs import arguments, branch, build, counted, elementwise, matmul, while_loop
from tests.oracle.interpreter.run import run

F = 4  # bytes of an element


def predicted(program, units=1, candidate=SINGLE, executions=None):
    emitted = emit(program, candidate=candidate)
    return traffic(emitted.program, emitted.plan, units, executions)


def memories(found):
    """Of a program with one unit."""
    (unit,) = found.units
    return {name: (moved.loaded, moved.stored) for name, moved in unit.items()}


def test_a_lane_loop_reads_each_input_once():
    def body(b, x, row, column, scalar):
        total = elementwise(b, "add", x, b.broadcast(row, (8, 16), (1,)))
        total = elementwise(b, "mul", total, b.broadcast(column, (8, 16), (0,)))
        return [elementwise(b, "add", total, elementwise(b, "mul", x, b.broadcast(scalar, (8, 16), ())))]

    found = memories(predicted(build(["float32[8,16]", "float32[16]", "float32[8]", "float32[]"], body)))
    assert found == {
        "operand 0": (128 * F, 0),  # two members read it at one position
        "operand 1": (128 * F, 0),  # for every row again
        "operand 2": (8 * F, 0),  # outside of the loop over columns
        "operand 3": (F, 0),
        "result 0": (0, 128 * F),
    }


def test_views_and_windows():
    def body(b, x, table, at):
        part = b.emit("slice", (x,), "float32", (8, 4), starts=(0, 2), strides=(1, 2))
        turned = b.emit("transpose", (part,), "float32", (4, 8), permutation=(1, 0))
        row = b.emit("dynamic_slice", (table, at, b.constant(0, "int32")), "float32", (1, 8))
        return [elementwise(b, "mul", turned, b.broadcast(b.reshape(row, (8,)), (4, 8), (1,)))]

    found = memories(predicted(build(["float32[8,16]", "float32[5,8]", "int32[]"], body)))
    assert found == {
        "operand 0": (32 * F, 0),
        "operand 1": (32 * F, 0),
        "operand 2": (4, 0),
        "result 0": (0, 32 * F),
    }


@pytest.mark.parametrize("axis", [0, 1])
def test_a_reduction(axis):
    """Its totals reach memory once."""
    kept = (16, 8)[axis]

    def body(b, x):
        return [b.emit("reduce", (elementwise(b, "exp", x),), "float32", (kept,), op="sum", axes=(axis,))]

    found = memories(predicted(build(["float32[8,16]"], body)))
    assert found == {"operand 0": (128 * F, 0), "result 0": (0, kept * F)}


def test_a_window_in_the_padding():
    window = {"base_dilation": (1,), "op": "max", "padding": ((1, 1),), "strides": (1,), "window": (3,)}

    def body(b, x):
        return [b.emit("reduce_window", (x,), "float32", (8,), window_dilation=(1,), **window)]

    assert memories(predicted(build(["float32[8]"], body)))["operand 0"] == ((8 * 3 - 2) * F, 0)


def test_a_loop_of_unknown_length_counts_per_trip():
    def body(b, x, start):
        def step(x, n):
            return elementwise(b, "sin", x), b.emit("sub", (n, b.constant(1, "int32")), "int32", ())

        def test(x, n):
            return b.emit("gt", (n, b.constant(0, "int32")), "bool", ())

        return while_loop(b, (x, start), test, step)[:1]

    program = build(["float32[8]", "int32[]"], body, donated=(0,))
    assumed = memories(predicted(program))["operand 0"]
    assert assumed == (MODEL.unknown_trips * 8 * F,) * 2
    emitted, seen = emit(program), Counter()
    x, _ = arguments(program)
    start = arguments(program)[1].dtype.type(3)
    run(emitted.program, [x, start], observe=lambda region: seen.update([id(region)]))
    known = traffic(emitted.program, emitted.plan, executions=seen)
    assert known.total("operand 0") == Moved(3 * 8 * F, 3 * 8 * F)


def test_a_branch_counts_by_side():
    def body(b, flag, x):
        chosen = b.convert(flag, "int32")
        return branch(b, chosen, lambda: (elementwise(b, "sin", x),), lambda: (elementwise(b, "exp", x),))

    program = build(["bool[]", "float32[64]"], body)
    assert predicted(program).total("result") == Moved(0, 64 * F)
    emitted = emit(program)
    entry = emitted.program.entry
    taken = {id(entry): 1, id(entry.body[-1].branches[0]): 1}
    one = traffic(emitted.program, emitted.plan, executions=taken)
    assert one.total("operand 1", "result") == Moved(64 * F, 64 * F)


def test_units_share_the_trips_of_a_parallel_loop():
    program = recurrence(64, 256, 5)
    one = predicted(program, 1, Candidate(2))
    two = predicted(program, 2, Candidate(2))
    assert len(one.units) == 1 and len(two.units) == 2
    assert two.total("result") == one.total("result")
    first, second = (sum(m.bytes for m in unit.values()) for unit in two.units)
    assert first == pytest.approx(second, rel=0.1)


def test_a_product_by_blocks():
    """32-byte vectors: the left operand is read for each group of 16 columns, the right one for each 192
    rows."""

    def form(m, n, k, **strides):
        given = {"a_m": k, "a_k": 1, "b_k": n, "b_n": 1, "o_m": n, "o_n": 1} | strides
        return Form(m, n, k, **given, lane=4, vector=32)

    assert product_loads(form(1, 64, 128)) == Loads(128, 64 * 128, 0, 64)
    assert product_loads(form(1, 64, 512)) == Loads(512, 64 * 512, 64, 128)
    assert product_loads(form(96, 64, 128)) == Loads(96 * 128 * 4, 64 * 128, 0, 96 * 64)
    assert product_loads(form(384, 64, 128)) == Loads(384 * 128 * 4, 2 * 64 * 128, 0, 384 * 64)
    packed = product_loads(form(96, 16, 128))  # read where it is, by 16 blocks of six rows
    assert packed == Loads(96 * 128, 16 * 16 * 128, 0, 96 * 16)
    inner = product_loads(form(2, 64, 128, b_k=1, b_n=128))
    assert inner == Loads(2 * 128 * 8, 2 * 64 * 128, 0, 128)
    assert product_loads(form(2, 2, 2)) == Loads(8, 8, 0, 4)
    panels = {"b_k": 16, "b_n": PANELS}  # of 16 columns: six rows read each, one row reads four together
    assert product_loads(form(96, 64, 128, **panels)) == Loads(96 * 128 * 4, 16 * 64 * 128, 0, 96 * 64)
    assert product_loads(form(1, 80, 300, **panels)) == Loads(300 * 2, 80 * 300, 80, 160)
    lines = {"b_k": 1024}  # share sets of the cache: four whole lines at a time, for two rows
    passes = 64 + 44 // 4 + 44 % 4
    sums = Loads(3 * 300, 2 * 512 * 300, 3 * 512 * passes, 3 * 512 * (passes + 1))
    assert product_loads(form(3, 512, 300, **lines)) == sums
    assert product_loads(form(5, 512, 300, **lines)).result == 5 * 512  # many rows repay strips


def test_a_loop_around_a_product():
    def body(b, x, w):
        return counted(b, 7, (x,), lambda _, x: (matmul(b, x, w),))

    found = memories(predicted(build(["float32[1,64]", "float32[64,64]"], body)))
    assert found["operand 1"] == (7 * 64 * 64 * F, 0)


# -- blocks of threads ---------------------------------------------------------------------------------------
def in_blocks(program):
    emitted = emit(program, machine_of(H200))
    return memories(traffic(emitted.program, emitted.plan, vector=0))


def test_threads_load_in_sectors():
    """One element for a row is a sector of 32 bytes for each of its warps; every fourth column as well."""

    def body(b, x, column):
        part = b.emit("slice", (x,), "float32", (64, 32), starts=(0, 0), strides=(1, 4))
        return [elementwise(b, "add", part, b.broadcast(column, (64, 32), (0,)))]

    found = in_blocks(build(["float32[64,128]", "float32[64]"], body))
    assert found == {
        "operand 0": (64 * 32 * 32, 0),
        "operand 1": (64 * 32, 0),
        "result 0": (0, 64 * 32 * F),
    }


@pytest.mark.parametrize("changes", [False, True])
def test_a_matrix_that_no_iteration_changes_is_loaded_once(changes):
    def body(b, x, w):
        def step(_, x, w):
            return matmul(b, x, w), elementwise(b, "neg", w) if changes else w

        return counted(b, 100, (x, w), step)[:1]

    found = in_blocks(build(["float32[1,64]", "float32[64,64]"], body))
    once = 64 * 64 * F
    assert found["operand 1"][0] == once  # a changing one is copied
    assert (sum(loaded for loaded, _ in found.values()) > 200 * once) == changes


def test_prices_of_scatters_take_the_bytes_that_they_move():
    """Not those of the array that they change in place."""
    rows = {"inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,), "update_window_dims": (1,)}
    batch = {"operand_batching_dims": (), "scatter_indices_batching_dims": ()}

    def moved(count):
        def body(b, x, table, updates):
            how = {"mode": "clip", "op": "set", **rows, **batch}

            def step(_, x):
                return (b.emit("scatter", (x, table, updates), "float32", (count, 64), **how),)

            return counted(b, 1000, (x,), step)

        types = [f"float32[{count},64]", "int32[4,1]", "float32[4,64]"]
        program = build(types, body, donated=(0,))
        return our_price(emit(program).program, 1, SERVER).seconds, predicted(program).total().bytes

    (small, least), (large, most) = moved(64), moved(256)
    assert least == most
    assert large < 2 * small
