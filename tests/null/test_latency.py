"""The links of a block's chain of latencies: what the cost model counts for a statement, and for a kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.cost.gpu import Spent, kernel_spent
from jax_cocktail.cost.kernel import Branch, Kernel, Parts, Repeat, Sync, Work
from jax_cocktail.cost.latency import ArrayPlaces, Counts, copy_counts, counts_of
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.templates import FIRST
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import StitchedUTask, UOperator
from jax_cocktail.utask.layout import row_major
from jax_cocktail.utask.types import Value
from tests.null.programs import elementwise, fresh, matmul, tensor

MEET, CLOCK = H200.meet_clocks, H200.clock_rate


def memory(*far: Value, outlined: bool = False) -> ArrayPlaces:
    return ArrayPlaces(far.__contains__, lambda value: row_major(value.type.shape), BLOCK.dot_bytes, outlined)


def values(builder: Builder, *types: str) -> list[Value]:
    return [fresh(builder, tensor(text)) for text in types]


def group(builder: Builder, *outputs: Value) -> StitchedUTask:
    members = tuple(s for s in builder.out if isinstance(s, UOperator))
    inside = {v for m in members for v in m.outputs}
    inputs = dict.fromkeys(v for m in members for v in m.inputs if v not in inside)
    return StitchedUTask(members, tuple(inputs), outputs)


def gates(size: int, *, kind: str = "tanh") -> tuple[StitchedUTask, Value, Value]:
    """Of a sum of two arrays, four slices through a function, added up."""
    b = Builder()
    x, y = values(b, f"float32[4,{size}]", f"float32[4,{size}]")
    both = elementwise(b, "add", x, y)
    slices = [
        b.emit("slice", (both,), "float32", (1, size), starts=(gate, 0), strides=(1, 1)) for gate in range(4)
    ]
    made = [elementwise(b, kind, each) for each in slices]
    result = made[0]
    for each in made[1:]:
        result = elementwise(b, "add", result, each)
    return group(b, result), x, y


def test_every_slice_is_a_load_of_its_own():
    statement, x, y = gates(256)
    found = counts_of(statement, memory(x, y))
    assert (found["stage"], found["round"]) == (1, 1)
    assert found["operation"] == 4 * 20 + 4 + 3  # the sum is made for each slice
    assert (found["division"], found["far_load"], found["behind_division"]) == (4, 1, 7)
    half = counts_of(statement, memory(x))
    assert (half["far_load"], half["behind_division"]) == (1, 3)
    near = counts_of(statement, memory())
    assert (near["far_load"], near["behind_division"]) == (0, 0)


def test_loads_are_made_together_where_nothing_divides():
    statement, x, y = gates(256 * 16, kind="exp")
    found = counts_of(statement, memory(x, y))
    assert found["round"] == 16 and found["far_load"] == 16 // BLOCK.most_together
    assert found["division"] == found["behind_division"] == 0


def test_scalars_are_registers():
    b = Builder()
    (x,) = values(b, "float32[]")
    statement = group(b, elementwise(b, "tanh", elementwise(b, "neg", x)))
    assert counts_of(statement, memory(x)) == Counts({"scalar": 21})


def product(m: int, k: int, n: int, rounds: bool = True) -> tuple[UOperator, Value, Value]:
    b = Builder()
    x, w = values(b, f"float32[{m},{k}]", f"float32[{k},{n}]")
    matmul(b, x, w)
    (found,) = b.out
    assert isinstance(found, UOperator)
    return replace(found, attributes=(*found.attributes, ("precision", "default"))) if rounds else found, x, w


def test_a_product_of_one_row():
    operator, x, _ = product(1, 256, 80)
    near, far = counts_of(operator, memory()), counts_of(operator, memory(x))
    assert near["gemv"] == far["gemv"] == 1 and near["line"] == 256 * 80 * 4 / 128 - 128
    assert (near["far_load"], far["far_load"], far["serial_load"]) == (0, 1, 0)
    outlined = counts_of(operator, memory(x, outlined=True))
    assert (outlined["far_load"], outlined["serial_load"], outlined["serial_word"]) == (0, 8, 32)


def test_products_of_many_rows_are_tiles():
    few, many = (counts_of(product(m, 256, 64)[0], memory()) for m in (64, 128))
    assert few["mma"] > 0 and few["tile_step"] > 0 and few["gemv"] == few["fma"] == 0
    assert many["tile_copy"] > few["tile_copy"] and many["mma_word"] >= few["mma_word"]
    exact = counts_of(product(64, 256, 64, rounds=False)[0], memory())
    assert exact["fma"] > 0 and exact["mma"] == 0


@pytest.mark.parametrize(("columns", "boxes"), [(2, True), (32, False)])
def test_convolutions_with_few_features_are_boxes(columns, boxes):
    """Others are tiles, with as many steps as the depth asks for."""
    b = Builder()
    x, w = values(b, "float32[1,16,16,32]", f"float32[3,3,32,{columns}]")
    specs = {"lhs_spec": (0, 3, 1, 2), "rhs_spec": (3, 2, 0, 1), "out_spec": (0, 3, 1, 2)}
    strides = dict.fromkeys(("window_strides", "lhs_dilation", "rhs_dilation"), (1, 1))
    counts = {"feature_group_count": 1, "batch_group_count": 1, "padding": ((1, 1), (1, 1))}
    b.emit("conv", (x, w), "float32", (1, 16, 16, columns), precision="default", **specs, **strides, **counts)
    (operator,) = b.out
    assert isinstance(operator, UOperator)
    found = counts_of(operator, memory(x, w))
    assert (found["box_clock"] > 0, found["conv_step"] > 0) == (boxes, not boxes)


def test_axes_that_do_not_fit_are_loops():
    b = Builder()
    x, w = values(b, "float32[16,256]", "float32[256,4,64]")
    apart = replace(memory(), strides=lambda v: (64, 1, 1024) if v == w else row_major(v.type.shape))
    matmul(b, x, w)
    (operator,) = b.out
    assert isinstance(operator, UOperator)
    once, looped = counts_of(operator, memory()), counts_of(operator, apart)
    assert once["meet"] == 0 and looped["meet"] > 1


def test_reductions_and_positions():
    b = Builder()
    (x,) = values(b, "float32[2560]")
    b.emit("reduce", (x,), "float32", (), axes=(0,), op="max")
    b.emit("arg_reduce", (x,), "int32", (), axis=0, op="max")
    reduce, position = (counts_of(s, memory(x)) for s in b.out if isinstance(s, UOperator))
    assert (reduce["reduction"], reduce["argument"], reduce["compare"]) == (1, 0, 0)
    assert (position["reduction"], position["argument"], position["compare"]) == (0, 1, 10)
    assert reduce["far_load"] == position["far_load"] == 2


def test_reductions_of_one_pass_load_once():
    b = Builder()
    (x,) = values(b, "float32[2,4096]")
    found = [b.emit("reduce", (x,), "float32", (2,), axes=(1,), op=op) for op in ("max", "sum", "min")]
    three = counts_of(group(b, *found), memory(x))
    one = counts_of(replace(group(b, *found), members=(b.out[0],), outputs=found[:1]), memory(x))
    assert three["far_load"] == one["far_load"] > 0
    assert (three["reduction"], three["operation"]) == (3, 3 * one["operation"])


def test_a_copy_moves_packs():
    b = Builder()
    (x,) = values(b, "float32[64,256]")
    found = copy_counts(x, memory(x))
    assert (found["round"], found["far_load"]) == (16, 4)
    assert copy_counts(x, memory())["far_load"] == 0


# ---- kernels -----------------------------------------------------------------------------------------------


def spent(*nodes: object, units: int = 4, **facts: int) -> Spent:
    return kernel_spent(Kernel(nodes, units, **facts), H200, FIRST, 10)


def clocks(*nodes: object, units: int = 4, **facts: int) -> float:
    return spent(*nodes, units=units, **facts).seconds * CLOCK


STEP = Work({"meet": 100.0 / MEET})  # 100 clocks


def test_a_statement_takes_its_chain_or_its_rate():
    assert clocks(STEP) == pytest.approx(100)
    assert clocks(replace(STEP, seconds=300 / CLOCK)) == pytest.approx(300)


def test_loops_and_sides():
    assert clocks(Repeat((STEP,), 5)) == pytest.approx(500)
    assert clocks(Repeat((STEP,), None)) == pytest.approx(1000)
    assert clocks(Repeat((STEP,), None, doubled=True)) == pytest.approx(600)
    assert clocks(Branch(((STEP,), ()), stage=False)) == pytest.approx(50 + 2 * FIRST.scalar)
    assert clocks(Branch(((STEP,), ()), stage=True)) == pytest.approx(100)


def test_units_without_a_part_pass_it_too():
    full, half = Parts((STEP,), 0, 4), Parts((STEP,), 0, 2)
    assert clocks(full) == pytest.approx(100)
    assert clocks(half) == pytest.approx(100 + FIRST.foreign)
    assert clocks(Parts((STEP,), 0, 6)) == pytest.approx(200)


def test_crossings_publish():
    beyond = H200.barrier_seconds * CLOCK + FIRST.publish
    assert clocks(STEP, Sync()) == pytest.approx(100 + beyond)
    assert clocks(STEP, Sync(), units=1) == pytest.approx(100)
    assert clocks(Sync(256)) > FIRST.publish + FIRST.words


def test_blocks_run_in_waves():
    parts = Parts((STEP,), 0, 2 * H200.units)
    alone = {"units": 2 * H200.units, "shared": H200.shared_bytes}
    assert clocks(parts, **alone) == pytest.approx(200)
    assert clocks(parts, units=2 * H200.units, shared=1024) == pytest.approx(100)  # two on a multiprocessor
    waiting = clocks(parts, Sync(), units=2 * H200.units, shared=1024)
    assert waiting > 200  # those that wait for each other have a multiprocessor each
