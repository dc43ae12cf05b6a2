"""The interpreter: control flow, groups, arithmetic and movement against independent formulations."""

from __future__ import annotations

import math
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from jax_cocktail.errors import VerificationError
from jax_cocktail.stitch.fuse import fuse
from jax_cocktail.utask.operators import KINDS
from jax_cocktail.utask.types import FLOATS
from tests.null.programs import apply, branch, build, counted, elementwise, same_results, while_loop
from tests.oracle.interpreter.run import EVALUATE, run

INF, NAN = math.inf, math.nan


def unary(kind, x, dtype="float64", result="", **attributes):
    x = np.asarray(x, dtype)
    return apply(kind, [x], f"{result or dtype}[{len(x)}]", **attributes)


def binary(kind, x, y, dtype="float64", result=""):
    x, y = np.asarray(x, dtype), np.asarray(y, dtype)
    return apply(kind, [x, y], f"{result or dtype}[{len(x)}]")


def same_bits(x, y):
    x, y = np.asarray(x), np.asarray(y)
    assert x.dtype == y.dtype
    is_float = str(x.dtype) in FLOATS
    a, b = (x.astype(np.float64), y.astype(np.float64)) if is_float else (x, y)
    np.testing.assert_array_equal(a, b)
    if is_float:
        np.testing.assert_array_equal(np.signbit(a)[~np.isnan(a)], np.signbit(b)[~np.isnan(b)])


def test_every_kind_has_an_evaluator():
    assert set(EVALUATE) == set(KINDS)


# -- control flow --------------------------------------------------------------------------------------------
def test_counted_loop():
    def body(b, x):
        return counted(b, 4, [x], lambda i, c: [elementwise(b, "add", c, i)])

    assert run(build(["int64[]"], body), [np.int64(10)]) == [16]


def test_nested_loops_see_enclosing_values():
    def body(b, x):
        def outer(i, c):
            return counted(b, 3, [c], lambda j, d: [elementwise(b, "add", d, elementwise(b, "mul", i, j))])

        return counted(b, 4, [x], outer)

    assert run(build(["int64[]"], body), [np.int64(0)]) == [sum(i * j for i in range(4) for j in range(3))]


def test_while_loop():
    def collatz(b, n):
        one, two = b.constant(1, "int32"), b.constant(2, "int32")

        def step(n, count):
            odd = elementwise(b, "ne", elementwise(b, "rem", n, two), b.constant(0, "int32"), dtype="bool")
            up = elementwise(b, "add", elementwise(b, "mul", n, b.constant(3, "int32")), one)
            following = elementwise(b, "select", odd, up, elementwise(b, "div", n, two))
            return [following, elementwise(b, "add", count, one)]

        zero = b.constant(0, "int32")
        return while_loop(b, [n, zero], lambda n, c: elementwise(b, "ne", n, one, dtype="bool"), step)

    program = build(["int32[]"], collatz)
    assert run(program, [np.int32(27)]) == [1, 111]
    assert run(program, [np.int32(1)]) == [1, 0]


@pytest.mark.parametrize(("selector", "expected"), [(-7, -3), (0, -3), (1, 6), (2, 9), (50, 9)])
def test_branch_clamps_its_selector(selector, expected):
    def body(b, s, x):
        def with_kind(kind):
            return lambda: [elementwise(b, kind, x, x)]

        return branch(b, s, lambda: [elementwise(b, "neg", x)], with_kind("add"), with_kind("mul"))

    assert run(build(["int32[]", "int32[]"], body), [np.int32(selector), np.int32(3)]) == [expected]


def test_groups_run_their_members():
    def body(b, x):
        y = elementwise(b, "exp", elementwise(b, "neg", x))
        return [b.emit("reduce", (elementwise(b, "mul", y, x),), "float32", (), axes=(0,), op="sum"), y]

    program = build(["float32[5]"], body)
    same_results(program, fuse(program))


def test_results_are_the_callers_own():
    program = build(["float32[2]"], lambda b, x: [x, b.broadcast(b.reshape(x, (1, 2)), (3, 2), (0, 1))])
    given = np.array([1, 2], np.float32)
    first, second = run(program, [given])
    first[0] = second[0, 0] = 9
    np.testing.assert_array_equal(given, [1, 2])
    np.testing.assert_array_equal(second[1], [1, 2])


def test_wrong_arguments():
    program = build(["float32[2]"], lambda b, x: [x])
    for arguments in ([], [np.zeros(2)], [np.zeros(3, np.float32)]):
        with pytest.raises(VerificationError, match="argument"):
            run(program, arguments)


def test_flushing_denormals():
    tiny = np.array([1e-40, -1e-40, 1e-38 * 2], np.float32)
    double = build(["float32[3]"], lambda b, x: [elementwise(b, "add", x, x)])
    assert run(double, [tiny])[0][0] > 0
    same_bits(run(double, [tiny], flush_denormals=True)[0], np.array([0, -0.0, 4e-38], np.float32))
    positive = build(
        ["float32[3]"], lambda b, x: [elementwise(b, "gt", x, b.full(0, "float32", (3,)), dtype="bool")]
    )
    assert run(positive, [tiny], flush_denormals=True)[0].tolist() == [False, False, True]
    moved = build(["float32[3]"], lambda b, x: [b.reshape(x, (1, 3)), elementwise(b, "neg", x)])
    same_bits(run(moved, [tiny], flush_denormals=True)[1], -tiny)
    brain = build(["bfloat16[3]"], lambda b, x: [elementwise(b, "add", x, b.full(0, "bfloat16", (3,)))])
    small = tiny.astype(ml_dtypes.bfloat16)
    same_bits(run(brain, [small], True)[0], np.where(tiny < 1e-38, 0, small).astype(ml_dtypes.bfloat16))
    half = build(["float16[1]"], lambda b, x: [elementwise(b, "add", x, x)])
    same_bits(run(half, [np.array([1e-6], np.float16)], True)[0], np.array([1e-6], np.float16) * 2)


# -- elementwise ---------------------------------------------------------------------------------------------
MATH = {
    "sqrt": (math.sqrt, 0, 50),
    "exp": (math.exp, -30, 30),
    "exp2": (lambda x: 2**x, -30, 30),
    "expm1": (math.expm1, -5, 5),
    "log": (math.log, 1e-3, 50),
    "log1p": (math.log1p, -0.9, 50),
    "tanh": (math.tanh, -5, 5),
    "sin": (math.sin, -50, 50),
    "cos": (math.cos, -50, 50),
    "erf": (math.erf, -4, 4),
    "tan": (math.tan, -5, 5),
    "asin": (math.asin, -1, 1),
    "acos": (math.acos, -1, 1),
    "atan": (math.atan, -9, 9),
    "sinh": (math.sinh, -5, 5),
    "cosh": (math.cosh, -5, 5),
    "asinh": (math.asinh, -9, 9),
    "acosh": (math.acosh, 1, 9),
    "atanh": (math.atanh, -0.9, 0.9),
    "erfc": (math.erfc, -4, 10),
    "lgamma": (math.lgamma, 0.1, 30),
    "cbrt": (lambda x: math.copysign(abs(x) ** (1 / 3), x), -9, 9),
    "rsqrt": (lambda x: x**-0.5, 0.1, 9),
    "logistic": (lambda x: 1 / (1 + math.exp(-x)), -30, 30),
    "floor": (math.floor, -5, 5),
    "ceil": (math.ceil, -5, 5),
    "neg": (lambda x: -x, -5, 5),
    "abs": (abs, -5, 5),
    "sign": (lambda x: (x > 0) - (x < 0), -5, 5),
    "round_even": (round, -5, 5),
}


@pytest.mark.parametrize("kind", MATH)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_functions_of_one_float(kind, dtype):
    function, low, high = MATH[kind]
    kept = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x = np.random.default_rng(0).uniform(low, high, 40).astype(kept)
    x = x[(x.astype(np.float64) >= low) & (x.astype(np.float64) <= high)]
    expected = np.array([float(function(float(v))) for v in x])
    epsilon = float(ml_dtypes.finfo(kept).eps)
    expected[np.abs(expected) > float(ml_dtypes.finfo(kept).max)] *= INF
    got = unary(kind, x, dtype) if dtype != "bfloat16" else apply(kind, [x], f"bfloat16[{len(x)}]")
    tolerance = max(0.51 * epsilon, 4e-15)
    np.testing.assert_allclose(
        got.astype(np.float64), expected, rtol=tolerance, atol=float(ml_dtypes.finfo(kept).tiny)
    )


def test_special_values_of_float_functions():
    same_bits(unary("sign", [0.0, -0.0, -INF, 3]), [0.0, -0.0, -1.0, 1.0])
    assert np.isnan(unary("sign", [NAN]))
    same_bits(
        unary("round_away", [0.5, -0.5, 1.5, 2.5, -2.5, 0.4, -0.4]), [1.0, -1.0, 2.0, 3.0, -3.0, 0.0, -0.0]
    )
    same_bits(unary("round_away", [0.49999997, 8388609.0], "float32"), np.float32([0, 8388609]))
    same_bits(unary("round_even", [0.5, -0.5, 1.5, 2.5, -2.5]), [0.0, -0.0, 2.0, 2.0, -2.0])
    same_bits(unary("is_finite", [1, INF, -INF, NAN], result="bool"), [True, False, False, False])
    assert np.isnan(unary("log", [-1])) and unary("log", [0])[0] == -INF
    same_bits(unary("rsqrt", [0.0, -0.0, INF]), [INF, -INF, 0.0])
    same_bits(unary("logistic", [-1000, 1000, 0]), [0.0, 1.0, 0.5])
    same_bits(unary("exp", [89, -110], "float32"), np.float32([INF, 0]))


def test_special_functions():
    gamma = 0.5772156649015329
    got = unary("digamma", [1, 0.5, 2, 10.5, 1e5, -0.5, -2.25])
    expected = [
        -gamma,
        -gamma - 2 * math.log(2),
        1 - gamma,
        2.303001034297588,
        11.512920464961896,
        0.03648997397857652,
    ]
    np.testing.assert_allclose(got[:6], expected, rtol=1e-12)
    # recurrence: psi(x + 1) = psi(x) + 1 / x
    np.testing.assert_allclose(
        got[6] + 1 / -2.25 + 1 / -1.25 + 1 / -0.25, unary("digamma", [0.75])[0], rtol=1e-12
    )
    assert np.isnan(unary("digamma", [0, -1, -INF, NAN])).all() and unary("digamma", [INF])[0] == INF
    same_bits(unary("lgamma", [0, -1, -3, INF, -INF, 1]), [INF, INF, INF, INF, INF, 0.0])
    x = np.concatenate([np.linspace(-0.999999, 0.999999, 101), [1e-12, 1 - 1e-15]])
    np.testing.assert_allclose([math.erf(y) for y in unary("erf_inv", x)], x, rtol=1e-14)
    same_bits(unary("erf_inv", [1, -1, -0.0]), [INF, -INF, -0.0])
    assert np.isnan(unary("erf_inv", [1.5, NAN])).all()


@pytest.mark.parametrize("order", [0, 1])
def test_scaled_bessel_functions(order):
    """I_n(x) exp(-x) is the mean of exp(x (cos t - 1)) cos(n t) over a period (DLMF 10.32.3)."""
    angles = np.arange(4096) * (2 * np.pi / 4096)
    for x in (0.0, 0.3, 1.0, 7.5, 29.9, 30.1, 200.0):
        expected = np.mean(np.exp(x * (np.cos(angles) - 1)) * np.cos(order * angles))
        got = unary(f"bessel_i{order}e", [x, -x])
        np.testing.assert_allclose(got, [expected, expected * (-1) ** order], rtol=1e-12, atol=1e-16)
    same_bits(unary(f"bessel_i{order}e", [INF]), [0.0])
    assert np.isnan(unary(f"bessel_i{order}e", [NAN]))


@pytest.mark.parametrize("exponent", [-3, -1, 0, 1, 2, 5, 10])
def test_integer_pow(exponent):
    np.testing.assert_allclose(
        unary("integer_pow", [1.5, -2, 3], exponent=exponent), np.float64([1.5, -2, 3]) ** exponent
    )
    if exponent >= 0:
        expected = [(n**exponent + 128) % 256 - 128 for n in (3, -7, 5)]
        assert unary("integer_pow", [3, -7, 5], "int8", exponent=exponent).tolist() == expected


LIMITS = [(f"{sign}int{width}", width, sign == "") for sign in ("", "u") for width in (8, 16, 32, 64)]


@pytest.mark.parametrize(("dtype", "width", "signed"), LIMITS)
def test_integer_arithmetic_is_exact_modulo_the_width(dtype, width, signed):
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
    numbers = sorted(
        {
            low,
            low + 1,
            high,
            high - 1,
            0,
            1,
            2,
            3,
            7,
            width - 1,
            width,
            width + 1,
            *((-1, -2, -7) if signed else ()),
        }
    )
    pairs = [(x, y) for x, y in product(numbers, numbers)]
    x, y = ([p[i] for p in pairs] for i in (0, 1))

    def wrap(n):
        return (n - low) % 2**width + low

    def divide(a, b):
        if b == 0:
            return wrap(-1)
        return wrap(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))

    def shift(a, b, fill, apply_):
        return wrap(apply_(a, b)) if 0 <= b < width else fill(a)

    expected = {
        "add": lambda a, b: wrap(a + b),
        "sub": lambda a, b: wrap(a - b),
        "mul": lambda a, b: wrap(a * b),
        "max": max,
        "min": min,
        "div": divide,
        "rem": lambda a, b: a if b == 0 else wrap(a - divide(a, b) * b),
        "and": lambda a, b: wrap(a & b),
        "or": lambda a, b: wrap(a | b),
        "xor": lambda a, b: wrap(a ^ b),
        "shift_left": lambda a, b: shift(a, b, lambda a: 0, lambda a, b: a << b),
        "shift_right_logical": lambda a, b: shift(a, b, lambda a: 0, lambda a, b: (a % 2**width) >> b),
        "shift_right_arithmetic": lambda a, b: shift(
            a, b, lambda a: wrap(-1) if wrapped_sign(a) else 0, lambda a, b: as_signed(a) >> b
        ),
    }

    def as_signed(a):
        return (a + 2 ** (width - 1)) % 2**width - 2 ** (width - 1)

    def wrapped_sign(a):
        return as_signed(a) < 0

    for kind, function in expected.items():
        assert binary(kind, x, y, dtype).tolist() == [function(a, b) for a, b in pairs], kind
    for kind, function in {
        "neg": lambda a: wrap(-a),
        "not": lambda a: wrap(~a),
        "abs": lambda a: wrap(abs(a)),
        "sign": lambda a: (a > 0) - (a < 0),
        "population_count": lambda a: (a % 2**width).bit_count(),
        "clz": lambda a: width - (a % 2**width).bit_length(),
    }.items():
        assert unary(kind, numbers, dtype).tolist() == [function(a) for a in numbers], kind
    for kind, function in {
        "eq": "__eq__",
        "ne": "__ne__",
        "lt": "__lt__",
        "le": "__le__",
        "gt": "__gt__",
        "ge": "__ge__",
    }.items():
        assert binary(kind, x, y, dtype, "bool").tolist() == [getattr(a, function)(b) for a, b in pairs]


def test_comparisons_with_nan():
    x, y = [NAN, NAN, 1], [NAN, 1, NAN]
    for kind in ("eq", "lt", "le", "gt", "ge"):
        assert not binary(kind, x, y, result="bool").any()
    assert binary("ne", x, y, result="bool").all()


def test_bools():
    x, y = [True, True, False, False], [True, False, True, False]
    assert binary("and", x, y, "bool").tolist() == [True, False, False, False]
    assert binary("or", x, y, "bool").tolist() == [True, True, True, False]
    assert binary("xor", x, y, "bool").tolist() == [False, True, True, False]
    assert unary("not", x, "bool").tolist() == [False, False, True, True]
    assert binary("lt", x, y, "bool", "bool").tolist() == [False, False, True, False]


def test_extremes_propagate_nan_and_order_zeros():
    same_bits(binary("max", [NAN, 1, -0.0, 0.0, -INF], [1, NAN, 0.0, -0.0, 2]), [NAN, NAN, 0.0, 0.0, 2])
    same_bits(binary("min", [NAN, 1, -0.0, 0.0, -INF], [1, NAN, 0.0, -0.0, 2]), [NAN, NAN, -0.0, -0.0, -INF])
    low, x, high = np.float32([0, 0, 5, 0, NAN]), np.float32([-1, 3, 3, NAN, 1]), np.float32([2, 2, 4, 2, 2])
    same_bits(apply("clamp", [low, x, high], "float32[5]"), np.float32([0, 2, 4, NAN, NAN]))
    assert apply("clamp", [np.int8([9]), np.int8([1]), np.int8([3])], "int8[1]") == 3


def test_floats_divide_and_take_remainders():
    same_bits(binary("div", [1, -1, 0.0, 1], [0.0, 0.0, 0.0, INF]), [INF, -INF, NAN, 0.0])
    same_bits(binary("rem", [5.5, -5.5, 5.5, 1, INF], [2, 2, -2, 0, 2]), [1.5, -1.5, 1.5, NAN, NAN])
    np.testing.assert_allclose(binary("pow", [2, 9, 0, NAN], [10, 0.5, -1, 0]), [1024, 3, INF, 1])
    assert np.isnan(binary("pow", [-2], [0.5]))
    np.testing.assert_allclose(
        binary("atan2", [1, -0.0, 0.0], [-1, -1, -1]), [0.75 * math.pi, -math.pi, math.pi]
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nextafter(dtype):
    numbers = np.array([0.0, -0.0, 1, -1, 1.5, INF, -INF, NAN, 65504, 6e-8, 1e-45], dtype)
    x, y = (np.array(side, dtype) for side in zip(*product(numbers, numbers), strict=True))
    same_bits(binary("nextafter", x, y, dtype), np.nextafter(x, y))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_nextafter_visits_every_16_bit_number(dtype):
    with np.errstate(invalid="ignore"):  # signalling NaN
        numbers = np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float64)
    line = np.unique(numbers[~np.isnan(numbers)]).astype(dtype)
    for x, y in ((line[:-1], line[1:]), (line[1:], line[:-1])):
        far = np.full(x.shape, INF if y[0] > x[0] else -INF, dtype)
        got = apply("nextafter", [x, far], f"{np.dtype(dtype)}[{len(x)}]")
        np.testing.assert_array_equal(got.astype(np.float64), y.astype(np.float64))


def test_16_bit_floats_round_once_to_even():
    one = np.array([256, 258], ml_dtypes.bfloat16)
    same_bits(
        apply("add", [one, np.array([1, 1], ml_dtypes.bfloat16)], "bfloat16[2]"),
        np.array([256, 260], ml_dtypes.bfloat16),
    )
    same_bits(binary("mul", [300], [300], "float16"), np.float16([INF]))


FLOAT_TO_INT = [
    0.0,
    -0.9,
    0.9,
    2.5,
    -2.5,
    127.5,
    128,
    -128.9,
    255,
    256,
    1e10,
    -1e10,
    1e30,
    -1e30,
    INF,
    -INF,
    NAN,
]


@pytest.mark.parametrize(("dtype", "width", "signed"), LIMITS)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_floats_saturate_to_integers(source, dtype, width, signed):
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
    numbers = np.array([*FLOAT_TO_INT, float(high), float(low), 2.0**62], source)
    expected = [
        0 if v != v else low if v == -INF else high if v == INF else min(max(int(v), low), high)
        for v in map(float, numbers)
    ]
    assert unary("convert", numbers, source, dtype).tolist() == expected


def test_conversions():
    assert unary("convert", [300, -1, 2**40 + 5], "int64", "uint8").tolist() == [44, 255, 5]
    assert unary("convert", [0.0, -0.0, NAN, 0.1], "float64", "bool").tolist() == [False, False, True, True]
    assert unary("convert", [0, -3], "int8", "bool").tolist() == [False, True]
    assert unary("convert", [True, False], "bool", "float32").tolist() == [1.0, 0.0]
    same_bits(unary("convert", [2**24 + 1, 2**24 + 3], "int32", "float32"), np.float32([2**24, 2**24 + 4]))
    same_bits(unary("convert", [1e5, 1e-9, NAN], "float32", "float16"), np.float16([INF, 0, NAN]))
    same_bits(
        unary("convert", [1 + 2**-8, 3.4e38], "float32", "bfloat16"), np.array([1, INF], ml_dtypes.bfloat16)
    )


def test_bitcasts():
    assert unary("bitcast", [1.0, -0.0], "float32", "uint32").tolist() == [0x3F800000, 0x80000000]
    assert unary("bitcast", [255], "uint8", "int8").tolist() == [-1]
    same_bits(unary("bitcast", [0x3F80], "int16", "bfloat16"), np.array([1], ml_dtypes.bfloat16))


def test_reduce_precision():
    x = np.float32([1.0 + 2**-10, 1 + 3 * 2**-11, 1e6, -1e6, 1e-6, NAN, 65504, 65520, INF, 1 / 3])
    with np.errstate(over="ignore"):
        half = x.astype(np.float16).astype(np.float32)
    expected = np.where(np.abs(half) < 2**-14, 0, half)  # below the normal range: zero
    same_bits(
        unary("reduce_precision", x, "float32", exponent_bits=5, mantissa_bits=10),
        expected.astype(np.float32),
    )
    same_bits(unary("reduce_precision", x, "float32", exponent_bits=8, mantissa_bits=23), x)
    brain = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    same_bits(unary("reduce_precision", x, "float32", exponent_bits=8, mantissa_bits=7), brain)
    same_bits(
        unary("reduce_precision", [1.3, 1e300], exponent_bits=8, mantissa_bits=23),
        [float(np.float32(1.3)), INF],
    )
    same_bits(
        unary("reduce_precision", [1.2, 1.3], "float16", exponent_bits=5, mantissa_bits=2),
        np.float16([1.25, 1.25]),
    )


def test_select():
    p, x, y = np.array([True, False]), np.float32([1, 2]), np.float32([NAN, 4])
    same_bits(apply("select", [p, x, y], "float32[2]"), np.float32([1, 4]))


def test_threefry_known_answers():
    """The vectors of the Random123 distribution (20 rounds)."""
    ones = 0xFFFFFFFF
    for key, counter, expected in [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ones, ones), (ones, ones), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]:
        operands = [np.uint32([n]) for n in (*key, *counter)]
        got = [apply("threefry2x32", operands, "uint32[1]", word=word)[0] for word in (0, 1)]
        assert tuple(got) == expected
