"""Long reductions become reductions of parts: into which parts, with the same results, for all units."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.compiler import transform
from jax_cocktail.device.nvidia import A100, H200
from jax_cocktail.stitch.split_reductions import split_reductions
from jax_cocktail.utask.candidate import way
from jax_cocktail.utask.ir import UOperator, UProgram, is_parallel, operators_in, walk
from tests.null.programs import arguments, build
from tests.oracle.interpreter.run import run


def reduction(
    shape: tuple[int, ...], axes: tuple[int, ...], op: str = "sum", dtype: str = "float32"
) -> UProgram:
    kept = tuple(n for d, n in enumerate(shape) if d not in axes)
    text = f"{dtype}[{','.join(map(str, shape))}]"
    return build([text], lambda b, x: (b.emit("reduce", (x,), dtype, kept, axes=axes, op=op),))


def stages(program: UProgram) -> list[tuple[int, ...]]:
    """The shape of the result of each reduction."""
    return [o.output.type.shape for o in operators_in(program.entry) if o.kind == "reduce"]


@pytest.mark.parametrize(
    ("shape", "axes", "core", "block"),
    [
        ((1024, 1024), (0, 1), [(128,), ()], [(1024,), ()]),  # runs of rows, or rows
        ((1 << 20,), (0,), [(128,), ()], [(256,), ()]),
        ((64, 30000), (1,), [(64,)], [(64, 240), (64,)]),  # AStitch, section 3.3: few long rows
        ((750000, 32), (1,), [(750000,)], [(750000,)]),  # and many short ones
        ((32, 56, 56, 64), (0, 1, 2), [(32, 28, 64), (64,)], [(32, 28, 64), (64,)]),  # images
        ((256, 16, 8, 8), (0, 2, 3), [(256, 16), (16,)], [(256, 16), (16,)]),
        ((100000, 64), (0,), [(800, 64), (64,)], [(800, 64), (64,)]),  # columns
        ((8, 4096, 16), (1,), [(8, 128, 16), (8, 16)], [(8, 128, 16), (8, 16)]),
        ((4096, 1024), (1,), [(4096,)], [(4096,)]),  # enough rows
        ((128, 128), (0, 1), [()], [()]),  # too small
        ((1000003,), (0,), [(64,), (), ()], [(256,), (), ()]),  # a prime: what is left over, by itself
        ((1 << 25, 2), (0,), [(1 << 17, 2), (512, 2), (2,)], [(1 << 17, 2), (512, 2), (2,)]),  # split again
    ],
)
def test_the_parts_follow_from_the_shape(shape, axes, core, block):
    program = reduction(shape, axes)
    for machine, expected in ((HOST, core), (machine_of(H200), block)):
        found = split_reductions(program, machine)
        verify(found)
        assert stages(found) == expected
        assert (found is program) == (len(expected) == 1)


def test_a_long_column_is_split_soon():
    """Nobody tries every number of parts of eight billion rows."""
    found = split_reductions(reduction((2**33, 3), (0,)), HOST)
    assert stages(found)[0] == (2**25, 3)


NUMBERS = {
    "sum": "float32",
    "prod": "float32",
    "max": "float32",
    "min": "int32",
    "and": "bool",
    "or": "uint8",
}


@pytest.mark.parametrize("op", [*NUMBERS, "xor"])
@pytest.mark.parametrize(("shape", "axes"), [((500, 400), (0, 1)), ((40009, 5), (0,)), ((7, 40009), (1,))])
def test_parts_give_the_same_result(op, shape, axes):
    dtype = NUMBERS.get(op, "int32")
    program = reduction(shape, axes, op, dtype)
    found = split_reductions(program, HOST)
    if prod(shape) * np.dtype(dtype).itemsize >= 128 << 10:
        assert found is not program
    (x,) = arguments(program)
    x = 1 + x / 10000 if op == "prod" else x
    (expected,), (result,) = run(program, [x]), run(found, [x.astype(np.dtype(dtype))])
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_short_floats_are_rounded_once(dtype):
    found = split_reductions(reduction((1 << 18,), (0,), "sum", dtype), HOST)
    verify(found)
    kinds = {o.output.type.dtype for o in operators_in(found.entry) if o.kind == "reduce"}
    assert kinds == {"float32", "float64"}
    last = found.entry.body[-1]
    assert isinstance(last, UOperator) and (last.kind, last.output.type.dtype) == ("convert", dtype)


def test_no_number_and_infinity_pass_through():
    program = reduction((1 << 17,), (0,), "max")
    x = np.zeros(1 << 17, np.float32)
    for value, place in ((np.inf, 5), (np.nan, 1 << 16)):
        x[place] = value
        (result,) = run(split_reductions(program, HOST), [x])
        np.testing.assert_equal(result, value)


# -- <rows, columns> of AStitch, section 3.3 -----------------------------------------------------------------
V100 = replace(A100, name="like V100", units=80)


PARTS = {  # the parts of each parallel loop
    (750000, 32): ([80], [120], [2]),  # whole rows for every unit
    (64, 30000): ([64], [64], [2]),  # a barrier would take longer than the second half of a row
    (8, 1 << 19): ([64], [128], [2]),  # parts of rows
    (1 << 22,): ([64], [128], [2]),
}


@pytest.mark.parametrize("shape", PARTS, ids=str)
def test_rows_occupy_all_units(shape):
    """Many short rows by runs of rows; few long rows, and one, by parts of each."""
    program, found = reduction(shape, (len(shape) - 1,)), []
    for spec in (V100, H200, None):
        candidate = way(units=2 if spec is None else spec.units, distribute=True)
        machine = HOST if spec is None else machine_of(spec)
        placed = transform(program, candidate=candidate, machine=machine)
        found.append([s.trip_count for s in walk(placed.entry) if is_parallel(s)])
    assert tuple(found) == PARTS[shape]
