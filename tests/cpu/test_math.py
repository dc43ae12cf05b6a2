"""The transcendental functions of cpu_src against float64 references: accuracy and special values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from tests.cpu.arrays import SPECIAL, Library, compiled, map_source, same, ulps

# Calls a function with denormals flushed, as XLA does in its threads.
FLUSHED = (
    "#if defined(__x86_64__)\n"
    "CK_EXPORT int flushed(void (*f)(i64, const void*, void*), i64 n, const void* x, void* y) {\n"
    "  unsigned before = __builtin_ia32_stmxcsr();\n"
    "  __builtin_ia32_ldmxcsr(before | 0x8040);\n"
    "  f(n, x, y);\n"
    "  __builtin_ia32_ldmxcsr(before);\n"
    "  return 1;\n"
    "}\n"
    "#else\n"
    "CK_EXPORT int flushed(void (*)(i64, const void*, void*), i64, const void*, void*) { return 0; }\n"
    "#endif\n"
)


def _by_element(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return np.vectorize(function, otypes=[np.float64])


def _logistic(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _erf_inv(x: float) -> float:
    """Newton's method; on erfc near 1, where erf would cancel."""
    a = abs(x)
    if not a < 1:
        return math.copysign(math.inf, x) if a == 1 else math.nan
    y = math.sqrt(-math.log1p(-a)) if a > 0.5 else a
    for _ in range(60):
        error = math.erfc(y) - (1 - a) if a > 0.5 else a - math.erf(y)
        step = error * math.sqrt(math.pi) / 2 * math.exp(y * y)
        y += max(-0.5, min(0.5, step / (1 + abs(y * step))))
    return math.copysign(y, x)


def _digamma(x: float) -> float:
    if math.isnan(x) or x == -math.inf or (x <= 0 and x == math.floor(x)):
        return math.nan
    if x < 0:
        return _digamma(1 - x) - math.pi / math.tan(math.pi * math.remainder(x, 1))
    shift = 0.0
    while x < 60:
        shift, x = shift + 1 / x, x + 1
    return math.log(x) - 0.5 / x - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6) - shift


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _bessel(order: int) -> Callable[[np.ndarray], np.ndarray]:
    """exp(-|x|) I(x) by its power series, or for large x by the trapezoid rule on its integral."""
    angle = (np.arange(400) + 0.5) * math.pi / 400

    def one(x: float) -> float:
        a = abs(x)
        if a < 10:
            terms = (
                (a / 2) ** (2 * k + order) / (math.factorial(k) * math.factorial(k + order))
                for k in range(60)
            )
            value = math.exp(-a) * math.fsum(terms)
        else:
            value = float(np.mean(np.exp(-2 * a * np.sin(angle / 2) ** 2) * np.cos(order * angle)))
        return math.copysign(value, x) if order else value

    return _by_element(one)


@dataclass(frozen=True)
class Case:
    """A function, its reference, where it is tried, and the error allowed (ulp, in f32 and in f64)."""

    name: str
    reference: Callable[[np.ndarray], np.ndarray]
    intervals: tuple[tuple[float, float], ...]
    ulp: float = 1.0
    ulp_f64: float = 2.0


CASES = (
    Case("floor", np.floor, ((-100, 100), (-1e9, 1e9)), 0, 0),
    Case("ceil", np.ceil, ((-100, 100), (-1e9, 1e9)), 0, 0),
    Case("round_even", np.rint, ((-100, 100), (-1e9, 1e9)), 0, 0),
    Case("sqrt", np.sqrt, ((0, 100), (0, 1e30)), 0.51, 0.51),
    Case("rsqrt", lambda x: 1 / np.sqrt(x), ((0, 100), (1e-30, 1e30)), 1.6),
    Case("exp", np.exp, ((-87.3, 88.7), (-1, 1)), 1.1),
    Case("exp2", np.exp2, ((-126, 127.99), (-1, 1)), 1.0),
    Case("expm1", np.expm1, ((-20, 88.7), (-1, 1), (-1e-4, 1e-4)), 1.6),
    Case("log", np.log, ((0.4, 2.2), (1e-37, 1e-30), (1, 3e38)), 1.1),
    Case("log1p", np.log1p, ((-0.9999, 3), (-1e-4, 1e-4), (1, 3e38)), 1.6),
    Case("tanh", np.tanh, ((-10, 10), (-1, 1), (-1e-4, 1e-4)), 1.6),
    Case("logistic", _logistic, ((-87, 30), (-3, 3)), 2.6, 4.0),
    Case("sin", np.sin, ((-4, 4), (-100, 100), (-1e30, 1e30)), 0.7),
    Case("cos", np.cos, ((-4, 4), (-100, 100), (-1e30, 1e30)), 0.7),
    Case("erf", _by_element(math.erf), ((-5, 5), (-1, 1), (-1e-4, 1e-4)), 2.0),
    Case("erf_inv", _by_element(_erf_inv), ((-1, 1), (0.99, 1), (-1e-3, 1e-3)), 3.0, 8.0),
    Case("cbrt", np.cbrt, ((-100, 100), (-1e30, 1e30)), 0.51, 4.0),
    Case("tan", np.tan, ((-4, 4), (-100, 100)), 0.51),
    Case("asin", np.arcsin, ((-1, 1),), 0.51),
    Case("acos", np.arccos, ((-1, 1),), 0.51),
    Case("atan", np.arctan, ((-10, 10), (-1e6, 1e6)), 0.51),
    Case("sinh", np.sinh, ((-80, 80), (-1, 1)), 0.51),
    Case("cosh", np.cosh, ((-80, 80), (-1, 1)), 0.51),
    Case("asinh", np.arcsinh, ((-10, 10), (-1e30, 1e30)), 0.51),
    Case("acosh", np.arccosh, ((1, 10), (1, 1e30)), 0.51),
    Case("atanh", np.arctanh, ((-1, 1), (-1e-3, 1e-3)), 0.51),
    Case("erfc", _by_element(math.erfc), ((-5, 9),), 0.51),
    Case("lgamma", _by_element(_lgamma), ((3, 50), (3, 1e20)), 0.51, 16.0),
    Case("digamma", _by_element(_digamma), ((2, 50), (0.01, 1), (-1e-20, -1e-30)), 0.6, 60.0),
    Case("bessel_i0e", _bessel(0), ((-30, 30), (-1, 1)), 0.51, 16.0),
    Case("bessel_i1e", _bessel(1), ((-30, 30), (0.1, 1)), 0.51, 16.0),
)


def _samples(case: Case, dtype: np.dtype, count: int = 4001) -> np.ndarray:
    generator = np.random.default_rng(0)
    return np.concatenate([generator.uniform(a, b, count) for a, b in case.intervals]).astype(dtype)


def _source() -> str:
    lines = ['#include "cocktail_math.h"\n']
    for t in ("f32", "f64"):
        lines += [map_source(f"{case.name}_{t}", (t,), t, f"ck_{case.name}") for case in CASES]
        lines.append(map_source(f"pow_{t}", (t, t), t, "ck_pow"))
        lines.append(map_source(f"atan2_{t}", (t, t), t, "ck_atan2"))
    lines.append(FLUSHED)
    return "".join(lines)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with compiled(_source(), tmp_path_factory.mktemp("cache")) as library:
        yield library


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_accuracy_f32(library: Library, case: Case) -> None:
    x = _samples(case, np.dtype(np.float32))
    actual = library.call(f"{case.name}_f32", "f32", x)
    assert ulps(actual, case.reference(x.astype(np.float64))) <= case.ulp


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_accuracy_f64(library: Library, case: Case) -> None:
    x = _samples(case, np.dtype(np.float64), 1001)
    actual = library.call(f"{case.name}_f64", "f64", x)
    assert ulps(actual, case.reference(x)) <= case.ulp_f64


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("mode", ["plain", "flushed"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values(library: Library, case: Case, mode: str) -> None:
    if case.name in ("tan", "bessel_i0e", "bessel_i1e"):
        x = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -3.0, math.nan], np.float32)
    else:
        x = np.array(SPECIAL, np.float32)

    def reference(value: float) -> float:
        try:
            return float(case.reference(np.array([value]))[0])
        except (OverflowError, ValueError):
            return math.nan

    expected = np.array([reference(v) for v in x.astype(np.float64)]).astype(np.float32)
    actual = library.call(f"{case.name}_f32", "f32", x)
    if mode == "flushed":
        result = library.flushed(f"{case.name}_f32", x)
        if result is None:
            pytest.skip("this processor's flush mode is not known here")
        actual = result
        expected = np.where(np.abs(expected) < 1.1754944e-38, np.copysign(0, expected), expected)
        actual = np.where(np.abs(actual) < 1.1754944e-38, np.copysign(0, actual), actual)
    matching = same(actual, expected, 4e-7)
    assert matching.all(), list(zip(x[~matching], actual[~matching], expected[~matching], strict=True))


def test_bessel_infinity_and_poles(library: Library) -> None:
    x = np.array([math.inf, -math.inf, 1e30], np.float32)
    np.testing.assert_allclose(library.call("bessel_i0e_f32", "f32", x), [0, 0, 3.9894227e-16], rtol=1e-6)
    np.testing.assert_allclose(library.call("bessel_i1e_f32", "f32", x), [0, 0, 3.9894227e-16], rtol=1e-6)
    poles = np.array([0.0, -0.0, -1.0, -7.0], np.float32)
    assert np.isnan(library.call("digamma_f32", "f32", poles)).all()
    assert (library.call("lgamma_f32", "f32", poles) == math.inf).all()


def test_denormals_where_the_processor_has_them(library: Library) -> None:
    x = np.array([1e-40, -1e-40, 1e-45], np.float32)
    np.testing.assert_allclose(
        library.call("log_f32", "f32", np.abs(x)), np.log(np.abs(x).astype("d")), rtol=1e-6
    )
    np.testing.assert_array_equal(library.call("expm1_f32", "f32", x), x)
    np.testing.assert_array_equal(library.call("tanh_f32", "f32", x), x)
    low = np.array([-88.0, -95.0, -103.0], np.float32)
    np.testing.assert_allclose(
        library.call("exp_f32", "f32", low), np.exp(low.astype("d")), rtol=0, atol=2e-45
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_power(library: Library) -> None:
    values = np.array(SPECIAL, np.float32)
    x, y = (grid.ravel() for grid in np.meshgrid(values, values))
    expected = np.power(x.astype("d"), y.astype("d")).astype(np.float32)
    actual = library.call("pow_f32", "f32", x, y)
    matching = same(actual, expected, 1.2e-7)
    assert matching.all(), list(
        zip(x[~matching], y[~matching], actual[~matching], expected[~matching], strict=True)
    )
    generator = np.random.default_rng(1)
    x = generator.uniform(0.02, 50, 20000).astype(np.float32)
    y = generator.uniform(-20, 20, 20000).astype(np.float32)
    assert ulps(library.call("pow_f32", "f32", x, y), np.power(x.astype("d"), y.astype("d"))) <= 0.51
    x, y = x.astype("d"), y.astype("d")
    np.testing.assert_array_equal(
        library.call("pow_f64", "f64", x, y), [math.pow(a, b) for a, b in zip(x, y, strict=True)]
    )
