"""Equations to uTask IR, with hand-made programs: neither JAX nor a compiler is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives import CONTROL_FLOW, RULES, physical_type, translate, why_unsupported
from jax_cocktail.primitives.equation import Atom, Equation, Literal, Program, Variable
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, UOperator, UProgram, walk
from jax_cocktail.utask.types import Source, TensorType
from tests.oracle.interpreter.run import run

HERE = Source("model.py", 7, "step")


def var(dtype: str, *shape: int, key_impl: str = "") -> Variable:
    return Variable(dtype, shape, key_impl)


def equation(
    primitive: str, inputs: Sequence[Atom], *outputs: Variable, effects: bool = False, **params: Any
) -> Equation:
    return Equation(primitive, tuple(inputs), outputs, params, HERE, effects)


def single(primitive: str, inputs: Sequence[Variable], output: Variable, **params: Any) -> UProgram:
    return translate(Program(tuple(inputs), (equation(primitive, inputs, output, **params),), (output,)), "p")


def kinds(program: UProgram) -> list[str]:
    return [s.kind if isinstance(s, UOperator) else type(s).__name__ for s in walk(program.entry)]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def test_jax_is_not_imported() -> None:
    program = "import sys, jax_cocktail.primitives; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_operands_are_broadcast() -> None:
    x, y, z = var("float32", 3, 4), var("float32", 1, 4), var("float32", 3, 4)
    program = single("add", (x, y), z)
    assert kinds(program) == ["broadcast", "add"]
    a, b = floats(3, 4), floats(1, 4)
    np.testing.assert_array_equal(run(program, [a, b])[0], a + b)


def test_scalar_literal() -> None:
    x, y = var("float32", 3), var("float32", 3)
    two = Literal(np.float32(2))
    program = translate(Program((x,), (equation("mul", (x, two), y),), (y, two)), "p")
    results = run(program, [np.arange(3, dtype=np.float32)])
    np.testing.assert_array_equal(results[0], [0, 2, 4])
    assert results[1] == 2


def test_out_dtype_widens_first() -> None:
    x, y, z = var("int8", 3), var("int8", 3), var("int32", 3)
    program = single("mul", (x, y), z, out_dtype=np.dtype("int32"))
    a = np.int8([100, -100, 3])
    np.testing.assert_array_equal(run(program, [a, a])[0], [10000, 10000, 9])


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32"])
def test_mulhi(dtype: str) -> None:
    info = np.iinfo(dtype)
    a, b = np.array([info.min, info.max, 3], dtype), np.array([info.max, info.max, 5], dtype)
    program = single("mulhi", (var(dtype, 3), var(dtype, 3)), var(dtype, 3))
    exact = [int(x) * int(y) >> info.bits for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(run(program, [a, b])[0], np.array(exact, dtype))


@pytest.mark.parametrize("index", [-5, 0, 1, 2, 3, 4, 9])
def test_select_n_takes_the_case_that_stock_takes(index: int) -> None:
    which, cases, out = var("int32"), [var("float32", 2) for _ in range(5)], var("float32", 2)
    program = single("select_n", (which, *cases), out)
    arrays = [np.full(2, i, np.float32) for i in range(5)]
    result = run(program, [np.int32(index), *arrays])[0]
    np.testing.assert_array_equal(result, arrays[min(max(index, 0), 4)])


def test_total_order() -> None:
    x, y, z = var("float32", 5), var("float32", 5), var("bool", 5)
    a, b = np.float32([-0.0, 0.0, np.nan, -np.inf, 1]), np.float32([0.0, -0.0, np.inf, -np.nan, 1])
    program = single("lt_to", (x, y), z)
    np.testing.assert_array_equal(run(program, [a, b])[0], [True, False, False, False, False])


@pytest.mark.parametrize("source, target", [("uint32", "uint8"), ("float64", "int16"), ("uint16", "uint8")])
def test_bitcast_narrows_and_widens(source: str, target: str) -> None:
    ratio = np.dtype(source).itemsize // np.dtype(target).itemsize
    data = np.arange(1, 7).astype(source).reshape(2, 3)
    narrow = single("bitcast_convert_type", (var(source, 2, 3),), var(target, 2, 3, ratio))
    pieces = run(narrow, [data])[0]
    np.testing.assert_array_equal(pieces, data.view(target).reshape(2, 3, ratio))
    wide = single("bitcast_convert_type", (var(target, 2, 3, ratio),), var(source, 2, 3))
    np.testing.assert_array_equal(run(wide, [pieces])[0], data)


def test_keys_are_pairs_of_words() -> None:
    keys = var("uint32", 3, key_impl="fry")
    assert physical_type(keys) == TensorType("uint32", (3, 2))
    program = single("rev", (keys,), var("uint32", 3, key_impl="fry"), dimensions=(0,))
    data = np.arange(6, dtype=np.uint32).reshape(3, 2)
    np.testing.assert_array_equal(run(program, [data])[0], data[::-1])
    with pytest.raises(UnsupportedError, match="rbg"):
        physical_type(var("uint32", key_impl="rbg"))


def test_fold_in_known_answer() -> None:
    key, data, out = var("uint32", key_impl="fry"), var("int32"), var("uint32", key_impl="fry")
    program = single("random_fold_in", (key, data), out)
    # Random123's known-answer vector of threefry2x32 with 20 rounds for an all-zero key and counter
    result = run(program, [np.zeros(2, np.uint32), np.int32(0)])[0]
    np.testing.assert_array_equal(result, np.uint32([0x6B200159, 0x99BA4EFE]))


def accumulate(reverse: bool, length: int) -> Program:
    c, x, total, y = var("float32"), var("float32"), var("float32"), var("float32")
    body = Program((c, x), (equation("add", (c, x), total), equation("neg", (total,), y)), (total, y))
    start, xs, end, ys = var("float32"), var("float32", length), var("float32"), var("float32", length)
    params = {"jaxpr": body, "num_consts": 0, "num_carry": 1, "length": length, "reverse": reverse}
    return Program((start, xs), (equation("scan", (start, xs), end, ys, **params),), (end, ys))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_scan(reverse: bool, length: int) -> None:
    program = translate(accumulate(reverse, length), "p")
    xs = floats(length)
    end, ys = run(program, [np.float32(1), xs])
    order = xs[::-1] if reverse else xs
    sums = np.add.accumulate(np.concatenate([np.float32([1]), order]), dtype=np.float32)
    np.testing.assert_allclose(end, sums[-1], rtol=1e-6)
    expected = -sums[1:]
    np.testing.assert_allclose(ys, expected[::-1] if reverse else expected, rtol=1e-6)


def halve(*lanes: int) -> Program:
    """while x > limit: x = x / 2, with a constant of the condition and one of the body."""
    limit, x, going = var("float32"), var("float32", *lanes), var("bool", *lanes)
    condition = Program((limit, x), (equation("gt", (x, limit), going),), (going,))
    half, y, z = var("float32"), var("float32", *lanes), var("float32", *lanes)
    body = Program((half, y), (equation("mul", (y, half), z),), (z,))
    inputs = (var("float32"), var("float32"), var("float32", *lanes))
    params = {"cond_jaxpr": condition, "body_jaxpr": body, "cond_nconsts": 1, "body_nconsts": 1}
    out = var("float32", *lanes)
    return Program(inputs, (equation("while", inputs, out, **params),), (out,))


def test_while() -> None:
    program = translate(halve(), "p")
    (loop,) = [s for s in walk(program.entry) if isinstance(s, LoopUTask)]
    assert loop.trip_count is None and loop.source == HERE
    assert run(program, [np.float32(1), np.float32(0.5), np.float32(20)])[0] == 0.625


def test_while_with_a_predicate_per_lane() -> None:
    program = translate(halve(3), "p")
    start = np.float32([20, 0.5, 3])
    result = run(program, [np.float32(1), np.float32(0.5), start])[0]
    np.testing.assert_array_equal(result, np.float32([0.625, 0.5, 0.75]))


def choose(selector: Variable, branches: int) -> Program:
    programs = []
    for i in range(branches):
        x, y = var("float32", 2), var("float32", 2)
        programs.append(Program((x,), (equation("add", (x, Literal(np.float32(i))), y),), (y,)))
    operand, out = var("float32", 2), var("float32", 2)
    inputs = (selector, operand)
    return Program(inputs, (equation("cond", inputs, out, branches=tuple(programs)),), (out,))


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 7])
def test_switch_clamps(index: int) -> None:
    program = translate(choose(var("int32"), 3), "p")
    assert any(isinstance(s, BranchUTask) for s in walk(program.entry))
    result = run(program, [np.int32(index), np.zeros(2, np.float32)])[0]
    np.testing.assert_array_equal(result, np.full(2, min(max(index, 0), 2), np.float32))


@pytest.mark.parametrize("flag", [False, True])
def test_cond(flag: bool) -> None:
    program = translate(choose(var("bool"), 2), "p")
    assert run(program, [np.bool_(flag), np.zeros(2, np.float32)])[0][0] == float(flag)


def test_one_branch_is_inlined() -> None:
    assert kinds(translate(choose(var("int32"), 1), "p")) == ["constant", "broadcast", "add"]


def test_unknown_primitive() -> None:
    x, y = var("float32", 2), var("float32", 2)
    with pytest.raises(UnsupportedError, match="operation 'fft' is not supported") as caught:
        single("fft", (x,), y)
    assert caught.value.where == "model.py:7 (step)"


@pytest.mark.parametrize("dtype", ["complex64", "int4", "float8_e4m3fn", "float0"])
def test_unsupported_dtype(dtype: str) -> None:
    error = why_unsupported(equation("neg", (var(dtype, 2),), var(dtype, 2)))
    assert error is not None and dtype in error.reason and error.where == "model.py:7 (step)"


def test_effects() -> None:
    error = why_unsupported(equation("neg", (var("int32"),), var("int32"), effects=True))
    assert error is not None and "side effects" in error.reason


def test_the_reason_inside_a_loop_is_found() -> None:
    x, y = var("float32"), var("float32")
    inner = Source("inner.py", 3, "body")
    body = Program((x,), (Equation("fft", (x,), (y,), {}, inner),), (y,))
    params = {"jaxpr": body, "num_consts": 0, "num_carry": 1, "length": 3, "reverse": False}
    error = why_unsupported(equation("scan", (var("float32"),), var("float32"), **params))
    assert error is not None and error.where == "inner.py:3 (body)"


def test_supported_equation() -> None:
    assert why_unsupported(equation("tanh", (var("float32", 3),), var("float32", 3), accuracy=None)) is None


def test_control_flow_has_rules() -> None:
    assert set(RULES) >= CONTROL_FLOW
