"""Placement on a GPU: what is cut, into how many parts, and what stays in one block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jax_cocktail.analysis.classes import AxisClass
from jax_cocktail.codegen.traffic import traffic
from jax_cocktail.cost.price import barriers_per_iteration
from jax_cocktail.cost.unit_time import Part, arithmetic, seconds_by_share, unit_seconds
from jax_cocktail.device.amd import MI250X, MI300X, RX_7900_XTX
from jax_cocktail.device.nvidia import A100, H200
from jax_cocktail.device.unit import unit_of
from jax_cocktail.placement.limits import limits_for
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.utask.candidate import way
from jax_cocktail.utask.ir import UOperator, UProgram, by_threads, is_parallel, operators_in, walk
from tests.null.gpus import iterated_product, plan_for, recurrence, rowwise, scalars
from tests.null.programs import arguments, build, counted, elementwise, matmul
from tests.oracle.interpreter.run import run

LIMITS = limits_for(H200)
UNIT = unit_of(H200)


def waits(program: UProgram) -> list[tuple[int | None, int]]:
    return [(loop.trip_count, n) for loop, n in barriers_per_iteration(program)]


def product(rows: int, depth: int, columns: int):
    """A product, and the class of its columns."""
    shapes = [f"float32[{rows},{depth}]", f"float32[{depth},{columns}]"]
    program = build(shapes, lambda b, x, w: (matmul(b, x, w),))
    (dot,) = program.entry.body
    assert isinstance(dot, UOperator)
    return dot, AxisClass({dot.output: 1}, columns, extents=frozenset({columns}))


# ---- the time of a unit ------------------------------------------------------------------------------------


def test_a_product_of_one_row_costs_its_weights():
    dot, cut = product(1, 256, 1024)
    whole = unit_seconds((dot,), UNIT)
    part = unit_seconds((dot,), UNIT, Part(cut.axes, 1 / 128))
    assert whole == pytest.approx(dot.inputs[1].type.nbytes / UNIT.rate(dot.inputs[1].type.nbytes), rel=0.1)
    assert part < whole / 20


def test_a_part_takes_as_long_as_a_program_of_its_size():
    def layer(columns):
        def body(b, x, w):
            return (elementwise(b, "tanh", matmul(b, x, w)),)

        return build(["float32[16,256]", f"float32[256,{columns}]"], body).entry.body

    whole = layer(4096)
    axes = {value: 1 for statement in whole for value in statement.outputs}
    seconds = seconds_by_share(whole, UNIT, Part(axes))
    for parts in (1, 2, 4, 8, 32, 128, 4096):
        assert seconds(1 / parts) == pytest.approx(unit_seconds(layer(4096 // parts), UNIT))


def test_what_does_not_fit_comes_from_further_away():
    assert UNIT.rate(UNIT.near) == UNIT.near_rate
    assert UNIT.far_rate < UNIT.rate(2 * UNIT.near) < UNIT.near_rate
    assert UNIT.near_share(4 * UNIT.near) == 0.25


def test_fewer_elements_than_lanes_cost_no_less():
    assert UNIT.steps(2) == UNIT.steps(UNIT.lanes) < UNIT.steps(UNIT.lanes + 1)


def test_narrow_products_use_tensor_cores():
    def body(b, x, w):
        return (matmul(b, x, w),)

    times = []
    for dtype in ("float32", "bfloat16"):
        program = build([f"{dtype}[512,512]", f"{dtype}[512,512]"], body)
        times.append(unit_seconds(program.entry.body, UNIT))
    assert times[1] < times[0] / 2


# ---- the number of parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "parts"), [(256, 128), (512, 128), (1024, 128), (4096, 128), (264, 132)])
def test_equal_parts_are_as_short_as_they_can_be(columns, parts):
    dot, cut = product(1, 1024, columns)
    assert LIMITS.communicating(cut, 132, (dot,)) == parts


@pytest.mark.parametrize("columns", [3797, 257, 1000, 131])
def test_what_is_left_over_stays_small(columns):
    """One unit computes it, after its own part."""
    dot, cut = product(1, 1024, columns)
    parts = LIMITS.communicating(cut, 132, (dot,))
    assert 2 <= parts <= 132
    assert columns // parts + columns % parts <= 1.5 * columns / 132 + 2


def test_axes_of_several_lengths_are_cut_evenly():
    dot, cut = product(1, 1024, 1000)
    assert LIMITS.communicating(replace(cut, extents=frozenset({1000, 2000})), 132, (dot,)) == 125


def test_a_prime_axis_of_several_lengths_cannot_be_cut():
    dot, cut = product(1, 1024, 257)
    assert LIMITS.communicating(replace(cut, extents=frozenset({257, 514})), 132, (dot,)) is None


def test_another_device_has_another_number():
    dot, cut = product(1, 1024, 1024)
    parts = limits_for(A100).communicating(cut, A100.units, (dot,))
    assert 64 <= parts <= A100.units


def test_cutting_has_to_be_worth_a_barrier():
    small, large = product(1, 64, 64), product(1, 512, 2048)
    assert not LIMITS.pays((small[0],)) and LIMITS.pays((large[0],))
    assert LIMITS.pays((large[0],), large[1].axes, 128)
    assert not LIMITS.pays((large[0],), large[1].axes, 1)


# ---- whole programs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        scalars(10**6),
        recurrence(1, 64, 1000),
        rowwise(1, 2, 10000),
        rowwise(8, 16, 10),
        recurrence(4, 32, None),
    ],
    ids=["scalars", "forward algorithm", "two numbers", "few rows", "while"],
)
def test_a_tiny_program_is_one_block(program):
    found = plan_for(program)
    assert found.parts == [] and found.mesh.units == 1 and waits(found.program) == []


@pytest.mark.parametrize("batch", [1, 64])
def test_a_recurrence_is_split_and_its_weights_stay(batch):
    """Rows would be domains, but then every unit read all weights in every step."""
    found = plan_for(recurrence(batch, 512, 100))
    assert set(found.parts) == ({128} if batch == 1 else {32, 128})  # 32 parts of the first state are copied
    if batch == 1:  # the state crosses as tagged words
        assert waits(found.program) == []
        assert sum(o.kind == "exchange" for o in operators_in(found.program.entry)) == 1
        assert found.plan.resident_bytes == 512 * 4 * 4 + 64  # with the own slice of the state
    else:
        assert waits(found.program) == [(50, 2)]  # two steps a trip, one barrier each
        assert found.plan.resident_bytes % (512 * 4 * 4) == 0 < found.plan.resident_bytes


def test_the_matrix_on_the_left_stays_too():
    """Its rows are dense already; only what is packed stays with its unit, and its slices of the vector."""
    found = plan_for(iterated_product(1024, 100))
    assert set(found.parts) == {128}
    assert max(part.bytes for part in found.plan.parts.values()) == 8 * 1024 * 4
    assert waits(found.program) == []


def test_a_matrix_that_fits_nowhere_is_not_copied():
    found = plan_for(iterated_product(8192, 100))
    assert found.parts == [126, 1, 126, 1] and found.plan.resident_bytes == 0  # two steps a trip


@pytest.mark.parametrize(("size", "many"), [(997, 83), (3797, 115)])
def test_a_unit_without_a_part_computes_the_remainder(size, many):
    """Units with a part do not wait for it longer than for each other."""
    found = plan_for(iterated_product(size, 4))
    loops = [s for s in walk(found.program.entry) if is_parallel(s)]
    assert {(s.trip_count, s.first) for s in loops} == {(many, 0), (1, many)}
    assert waits(found.program) == [(2, 2)]  # one barrier a step


def test_rows_are_domains():
    found = plan_for(rowwise(4096, 64, 50), way(H200.units, elements=False))
    assert found.parts == [128]
    assert waits(found.program) == []
    assert not any(isinstance(s, UOperator) and s.kind == "wait" for s in found.program.entry.body)


def test_few_rows_make_few_domains():
    assert plan_for(rowwise(12, 4096, 50)).parts == [12]


def test_a_block_has_lanes_to_fill():
    """4096 numbers: sixteen blocks of 256 threads do what 64 blocks of 64 do."""
    found = plan_for(rowwise(64, 64, 200), way(H200.units, elements=False))
    assert found.parts == [16]


def test_short_rows_have_a_thread_each():
    (loop,) = filter(by_threads, walk(plan_for(rowwise(4096, 3, 200)).program.entry))
    assert loop.trip_count == 4096


@pytest.mark.parametrize("spec", [H200, MI250X, MI300X, RX_7900_XTX], ids=lambda spec: spec.arch)
@pytest.mark.parametrize("rows", [4096, 4100])
def test_a_unit_takes_whole_warps_of_short_rows(spec, rows):
    """Of as many threads as the card's warps have, which load together. No other unit moves bytes."""
    found = plan_for(rowwise(rows, 3, 200), spec=spec)
    warps = -(-rows // spec.warp)
    assert found.plan.most_units == warps and found.mesh.units == min(warps, spec.units)
    units = traffic(found.program, found.plan, spec.units, vector=0, block=spec.block(256)).units
    assert len(units) == found.mesh.units
    taken = [unit["result 0"].stored / 12 for unit in units]  # rows, of three numbers
    assert sum(taken) == rows and max(taken) == -(-warps // len(units)) * spec.warp
    rest = [n % spec.warp for n in taken]
    last = (warps - 1) % len(units)
    assert rest.pop(last) == rows % spec.warp and not any(rest)


@pytest.mark.parametrize("batch", [1, 5])
def test_results_stay_the_same(batch):
    program = recurrence(batch, 256, 4)
    after = place(program, UnitMesh(units=132), limits=LIMITS)
    assert after is not program
    given = arguments(program)
    for x, y in zip(run(after, given), run(program, given), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_operands_are_not_copied_by_one_block():
    """A result that took the place of an operand would have to wait for a copy of it."""
    program = replace(rowwise(4096, 64, 50), donated=(0,))
    found = plan_for(program)
    kinds = [s.kind for s in found.program.entry.body if isinstance(s, UOperator)]
    assert "copy" not in kinds and "wait" not in kinds


def test_light_values_are_computed_by_all():
    """16384 numbers take a block less than a barrier."""

    def body(b, x, w):
        return (matmul(b, elementwise(b, "neg", x), w),)

    program = build(["float32[64,256]", "float32[256,1024]"], body)
    assert len(plan_for(program).parts) == 1


@pytest.mark.parametrize(
    ("rows", "dtype", "rounds", "expected"),
    [
        (64, "float32", True, "tensors"),
        (64, "float32", False, "products"),
        (1, "float32", True, "products"),
        (64, "bfloat16", False, "halves"),
        (64, "float64", True, "products"),
    ],
)
def test_which_arithmetic_a_product_uses(rows, dtype, rounds, expected):
    shapes = [f"{dtype}[{rows},256]", f"{dtype}[256,256]"]
    program = build(shapes, lambda b, x, w: (matmul(b, x, w),))
    (dot,) = program.entry.body
    if rounds:
        dot = replace(dot, attributes=(*dot.attributes, ("precision", "default")))
    assert arithmetic(dot) == expected


def test_a_vector_is_multiplied_by_itself():
    """A product of one matrix with itself has no other operand to stay in registers."""
    axes = {"lhs_batch": (), "lhs_contract": (0,), "rhs_batch": (), "rhs_contract": (0,)}

    def body(b, x):
        def step(_, x):
            square = b.broadcast(b.emit("dot", (x, x), "float32", (), **axes), x.type.shape, ())
            return (elementwise(b, "div", x, square),)

        return counted(b, 100, (x,), step)

    assert plan_for(build(["float32[4096]"], body)).mesh.units >= 1
