"""Sums and sums of squared deviations of large arrays: which, with which results, in how many passes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import emit, passes
from jax_cocktail.device.spec import H200
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.split_moments import split_moments
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.candidate import SINGLE, Candidate
from jax_cocktail.utask.interpreter.run import run
from jax_cocktail.utask.ir import UProgram, is_parallel, operators_in, walk
from jax_cocktail.utask.types import Value
from tests.null.programs import build
from tests.oracle.mesh_interpreter import run_mesh

Shape = tuple[int, ...]
Centre = Callable[[Builder, Value, Value], Value]  # from the sum and the mean


def kept_of(shape: Shape, axes: Shape) -> list[int]:
    return [d for d in range(len(shape)) if d not in axes]


def the_mean(b: Builder, total: Value, mean: Value) -> Value:
    return mean


def moments(
    shape: Shape, axes: Shape, dtype: str = "float32", centre: Centre = the_mean, power: bool = False
) -> UProgram:
    """The sum, and the sum of squared deviations from a centre, the mean unless said otherwise."""
    kept = kept_of(shape, axes)
    left, count = [shape[d] for d in kept], prod(shape[d] for d in axes)

    def body(b: Builder, x: Value) -> tuple[Value, ...]:
        total = b.emit("reduce", (x,), dtype, left, axes=axes, op="sum")
        mean = b.binary("div", total, b.full(float(count), dtype, left))
        about = centre(b, total, mean)
        dimensions = kept if about.type.rank == len(kept) else range(len(shape))
        d = b.binary("sub", x, b.broadcast(about, shape, dimensions))
        squares = b.emit("integer_pow", (d,), d.type, exponent=2) if power else b.binary("mul", d, d)
        return total, b.emit("reduce", (squares,), dtype, left, axes=axes, op="sum")

    return build([f"{dtype}[{','.join(map(str, shape))}]"], body)


def parts(program: UProgram) -> list[Shape]:
    """The shapes of the deviations, each once."""
    found = (o for o in operators_in(program.entry) if o.kind == "sub")
    return sorted({o.output.type.shape for o in found if o.output.type.dtype != "float64"}, reverse=True)


TAKEN = {  # shape and axes -> the shapes of the parts, and of what they leave over
    ((4096, 1024), (0, 1)): [(256, 16, 1024)],
    ((1 << 20,), (0,)): [(128, 8192)],
    ((100000, 64), (0,)): [(800, 125, 64)],
    ((32, 56, 56, 64), (0, 1, 2)): [(32, 28, 2, 56, 64)],
    ((1000003,), (0,)): [(64, 15625), (3,)],
    ((4093, 1021), (0, 1)): [(272, 15, 1021), (13, 1021)],
    ((5000, 1, 64), (0,)): [(200, 25, 1, 64)],
}


@pytest.mark.parametrize(("shape", "axes"), TAKEN, ids=str)
@pytest.mark.parametrize("power", [False, True])
def test_the_parts_follow_from_the_shape(shape: Shape, axes: Shape, power: bool) -> None:
    program = moments(shape, axes, power=power)
    found = split_moments(program)
    verify(found)
    assert parts(found) == TAKEN[shape, axes]
    assert split_moments(found) is found


LEFT = {
    "in the cache": ((256, 512), (0, 1)),
    "rows": ((4096, 1024), (1,)),
    "many columns": ((4096, 1024), (0,)),
    "images": ((4, 64, 64, 320), (1, 2, 3)),
    "values of tiles that are long themselves": ((1 << 20, 64), (0,)),
    "large images": ((32, 112, 112, 64), (0, 1, 2)),
}


@pytest.mark.parametrize("name", LEFT)
def test_others_stay_as_they_are(name: str) -> None:
    program = moments(*LEFT[name])
    assert split_moments(program) is program


def test_cores_alone_gain() -> None:
    names = {name for name, _ in passes(SINGLE, machine=machine_of(H200))}
    assert "split_moments" not in names and "split_moments" in {name for name, _ in passes(SINGLE)}


def test_short_floats_stay_as_they_are() -> None:
    program = moments((1 << 20,), (0,), "bfloat16")
    assert split_moments(program) is program


OTHER_CENTRES: dict[str, Centre] = {
    "no sum": lambda b, total, mean: b.full(0.5, mean.type.dtype, mean.type.shape),
    "one per row": lambda b, total, mean: b.full(0.5, "float32", (5000, 1)),
}


@pytest.mark.parametrize("name", OTHER_CENTRES)
def test_a_centre_that_needs_no_sum_stays(name: str) -> None:
    """One pass computes both sums already."""
    program = moments((5000, 64), (0,), centre=OTHER_CENTRES[name])
    assert split_moments(program) is program


CENTRES: dict[str, Centre] = {
    "mean": the_mean,
    "with reduced axes": lambda b, total, mean: b.reshape(mean, (1, 64)),
    "far from the mean": lambda b, total, mean: b.binary("add", total, total),
    "the same for all columns": lambda b, total, mean: b.reshape(
        b.emit("reduce", (mean,), "float32", (), axes=(0,), op="max"), (1, 1)
    ),
}


@pytest.mark.parametrize("name", CENTRES)
@pytest.mark.parametrize("rows", [5000, 5003])
def test_any_centre_gives_the_same_result(name: str, rows: int) -> None:
    program = moments((rows, 64), (0,), centre=CENTRES[name])
    found = split_moments(program)
    assert found is not program
    x = np.random.default_rng(1).standard_normal((rows, 64)).astype(np.float32)
    for result, expected in zip(run(found, [x]), run(program, [x]), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("late", [False, True])
def test_another_sum_of_deviations_keeps_both(late: bool) -> None:
    """It shares the second pass, unless it needs the squares."""
    n = 1 << 19

    def body(b: Builder, x: Value) -> tuple[Value, ...]:
        def total(x: Value) -> Value:
            return b.emit("reduce", (x,), "float32", (), axes=(0,), op="sum")

        d = b.binary("sub", x, b.broadcast(b.binary("mul", total(x), b.constant(1 / n, "float32")), (n,), ()))
        squares = total(b.binary("mul", d, d))
        scaled = b.binary("mul", d, b.broadcast(squares, (n,), ())) if late else d
        return squares, total(b.emit("integer_pow", (scaled,), d.type, exponent=4))

    program = simplify(build([f"float32[{n}]"], body))
    found = split_moments(program)
    assert (found is not program) == late


def test_a_sum_of_squares_that_is_a_total_itself() -> None:
    """The squared deviations have a mean, and deviations from it."""
    n = 1 << 19

    def body(b: Builder, x: Value) -> tuple[Value, ...]:
        found = []
        for _ in range(2):
            total = b.emit("reduce", (x,), "float32", (), axes=(0,), op="sum")
            mean = b.binary("div", total, b.constant(float(n), "float32"))
            d = b.binary("sub", x, b.broadcast(mean, (n,), ()))
            x = b.binary("mul", d, d)
            found += [total, b.emit("reduce", (x,), "float32", (), axes=(0,), op="sum")]
        return tuple(found)

    program = simplify(build([f"float32[{n}]"], body))
    found = split_moments(program)
    verify(found)
    assert found is not program
    x = np.random.default_rng(2).standard_normal(n).astype(np.float32)
    for result, expected in zip(run(found, [x]), run(program, [x]), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-1)


# -- passes over memory --------------------------------------------------------------------------------------
@pytest.mark.parametrize("units", [1, 2, 8])
@pytest.mark.parametrize("case", [((4096, 1024), (0, 1)), ((100000, 64), (0,))], ids=str)
def test_one_tile_computes_both_sums_in_its_cache(case: tuple[Shape, Shape], units: int) -> None:
    candidate = SINGLE if units == 1 else Candidate(units=units, distribute=True)
    placed = emit(moments(*case), candidate=candidate).program
    (parameter,) = placed.entry.parameters
    tiles = []
    for loop in walk(placed.entry):
        if is_parallel(loop):
            tiles += [o.output for o in operators_in(loop) if o.inputs[:1] == (parameter,)]
    assert len(tiles) == 1, "one loop reads the array"
    assert tiles[0].type.nbytes <= 768 << 10, "by tiles that stay in the cache"


@pytest.mark.parametrize("units", [1, 2, 3])
@pytest.mark.parametrize("case", [((5003, 64), (0,)), ((331, 40, 30), (0, 1)), ((263001,), (0,))], ids=str)
def test_units_share_the_parts(case: tuple[Shape, Shape], units: int) -> None:
    program = moments(*case)
    candidate = SINGLE if units == 1 else Candidate(units=units, distribute=True)
    emitted = emit(program, candidate=candidate)
    assert "split_moments" in emitted.fired
    x = np.random.default_rng(3).standard_normal(case[0]).astype(np.float32)
    found = run_mesh(emitted.program, emitted.plan, [x], units)
    for result, expected in zip(found, run(program, [x]), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-3)
