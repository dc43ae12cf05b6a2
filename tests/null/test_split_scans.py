"""Long running totals and searches for extremes become those of parts, with the same results."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.device.nvidia import H200
from jax_cocktail.stitch.split_scans import split_scans
from jax_cocktail.utask.ir import UProgram, operators_in
from tests.null.programs import build
from tests.oracle.interpreter.run import run

GPU = machine_of(H200)
NAN = np.nan


def text_of(shape: tuple[int, ...], dtype: str = "float32") -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def extreme(shape: tuple[int, ...], axis: int, op: str = "max", result: str = "int32") -> UProgram:
    kept = tuple(n for d, n in enumerate(shape) if d != axis)
    return build([text_of(shape)], lambda b, x: (b.emit("arg_reduce", (x,), result, kept, axis=axis, op=op),))


def totals(
    shape: tuple[int, ...], axis: int, op: str = "sum", reverse: bool = False, dtype: str = "float32"
) -> UProgram:
    def body(b, x):
        return (b.emit("cumulative", (x,), x.type, axis=axis, op=op, reverse=reverse),)

    return build([text_of(shape, dtype)], body)


def stages(program: UProgram, kind: str) -> list[tuple[int, ...]]:
    """The shape of the operand of each operator of a kind."""
    return [o.inputs[0].type.shape for o in operators_in(program.entry) if o.kind == kind]


@pytest.mark.parametrize(
    ("shape", "axis", "core", "block"),
    [
        ((1 << 20,), 0, [(128, 8192), (128,)], [(256, 4096), (256,)]),
        ((1, 50257), 1, [(1, 64, 785), (1, 17), (1, 65)], [(1, 256, 196), (1, 81), (1, 257)]),  # a prime
        ((64, 50256), 1, [(64, 50256)], None),  # enough rows for cores
        ((50000, 64), 0, [(80, 625, 64), (80, 64)], [(400, 125, 64), (400, 64)]),
        ((4, 9000, 8), 1, [(4, 72, 125, 8), (4, 72, 8)], None),
        ((1000,), 0, [(1000,)], [(1000,)]),  # too small
    ],
)
def test_the_parts_of_a_search_follow_from_the_shape(shape, axis, core, block):
    program = extreme(shape, axis)
    for machine, expected in ((HOST, core), (GPU, block)):
        found = split_scans(program, machine)
        verify(found)
        if expected is not None:
            assert stages(found, "arg_reduce") == expected
            assert (found is program) == (len(expected) == 1)


@pytest.mark.parametrize("shape", [(40000,), (40009,), (3, 40009), (40009, 2), (2, 20011, 3)])
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("machine", [HOST, GPU], ids=["host", "gpu"])
def test_the_first_extreme_is_found(shape, op, machine):
    axis = int(np.argmax(shape))
    program = extreme(shape, axis, op, "uint32")
    found = split_scans(program, machine)
    assert found is not program
    random = np.random.default_rng(0)
    for x in (random.integers(-9, 9, shape), random.standard_normal(shape), np.zeros(shape)):
        for missing in (0, 1, 5):
            x = x.astype(np.float32)
            x[random.random(shape) < missing / x.size] = NAN
            np.testing.assert_array_equal(run(found, [x])[0], run(program, [x])[0])
    last = np.zeros(shape, np.float32)  # in what the parts leave over, if they do
    last[tuple(-1 if d == axis else slice(None) for d in range(len(shape)))] = 1 if op == "max" else -1
    assert (run(found, [last])[0] == shape[axis] - 1).all()


@pytest.mark.parametrize(("shape", "axis", "whole"), [((63, 3800), 1, True), ((3800, 63), 0, False)])
def test_blocks_take_short_rows_whole(shape, axis, whole):
    """Of a matrix that units of a core divide further; one thread takes a column."""

    def body(b, x):
        return (b.emit("arg_reduce", (x,), "int32", (63,), axis=axis, op="max"),)

    program = build([f"float32[{shape[0]},{shape[1]}]"], body)
    assert (split_scans(program, GPU) is program) == whole
    assert split_scans(program, HOST) is not program


def test_only_gpus_split_running_totals():
    program = totals((1 << 20,), 0)
    assert split_scans(program, HOST) is program
    found = split_scans(program, GPU)
    verify(found)
    assert stages(found, "cumulative") == [(256, 4096), (256,)]
    assert split_scans(totals((1 << 20,), 0, "logsumexp"), GPU).entry.body[0].kind == "cumulative"


@pytest.mark.parametrize("shape", [(65536,), (65537,), (2, 40009), (40009, 3), (2, 20011, 3)])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_totals(shape, op, reverse):
    axis = int(np.argmax(shape))
    program = totals(shape, axis, op, reverse)
    found = split_scans(program, GPU)
    assert found is not program
    verify(found)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if op == "prod":
        x = np.exp(x / 100).astype(np.float32)
    np.testing.assert_allclose(run(found, [x])[0], run(program, [x])[0], rtol=2e-6, atol=2e-5)
    x.flat[x.size // 3] = NAN
    np.testing.assert_array_equal(np.isnan(run(found, [x])[0]), np.isnan(run(program, [x])[0]))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64"])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_running_totals_of_integers_are_exact(op, dtype):
    program = totals((70001,), 0, op, dtype=dtype)
    x = np.random.default_rng(1).integers(0, 1 << 31, 70001).astype(dtype)
    found = split_scans(program, GPU)
    assert found is not program
    np.testing.assert_array_equal(run(found, [x])[0], run(program, [x])[0])


def test_running_sums_of_16_bit_floats_are_rounded_once():
    program = totals((1 << 17,), 0, dtype="float16")
    x = np.full(1 << 17, 1 / 16, np.float16)
    found = run(split_scans(program, GPU), [x])[0]
    expected = np.cumsum(x.astype(np.float64)).astype(np.float16)
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=1e-3)
