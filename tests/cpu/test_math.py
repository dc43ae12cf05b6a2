"""The transcendental functions of cpu_src against float64 references: accuracy and special values."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from tests.cpu.arrays import SPECIAL, Library, compiled, map_source, same, ulps
from tests.cpu.functions import CASES, Case, samples

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


# Angles on processors without fused multiply-adds.
UNFUSED = (
    "CK_INLINE f32 sin_unfused(f32 x) {\n"
    "  i32 quadrant;\n"
    "  f64 r = ck_reduce_angle<false>(x, &quadrant);\n"
    "  f32 value = ck_sin_or_cos(r, quadrant);\n"
    "  return ck_bitcast<u32>(x) >> 31 ? -value : value;\n"
    "}\n"
)


def _source() -> str:
    lines = ['#include "cocktail_math.h"\n', UNFUSED, map_source("unfused", ("f32",), "f32", "sin_unfused")]
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
    x = samples(case, np.dtype(np.float32))
    actual = library.call(f"{case.name}_f32", "f32", x)
    assert ulps(actual, case.reference(x.astype(np.float64))) <= case.ulp


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_accuracy_f64(library: Library, case: Case) -> None:
    x = samples(case, np.dtype(np.float64), 1001)
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


# Functions that f32 and f64 compute in different ways, the latter mostly by the C library.
TWICE = (
    *("erfc", "lgamma", "digamma", "bessel_i0e", "bessel_i1e", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("asin", "acos", "atan", "cbrt", "tanh", "expm1", "sin", "cos"),
)


@pytest.mark.parametrize("name", TWICE)
def test_arguments_of_every_size(library: Library, name: str) -> None:
    """Of f32 against those of f64, which compute otherwise."""
    bits = np.arange(0, 1 << 32, 50021, dtype=np.uint64).astype(np.uint32)
    centers = np.array(
        [0.5, 1, 2, 5, 6, 8, 9.02, 10.05, 1.4616321, -1, -2.5, -3, 89, 1 << 27, 2**50, 2**77, 2**102, 1e36],
        np.float32,
    )
    close = (centers.view(np.int32)[:, None] + np.arange(-99, 100)).astype(np.int32).view(np.float32)
    x = np.concatenate([bits.view(np.float32), close.ravel()])
    with np.errstate(over="ignore", invalid="ignore"):
        exact = library.call(f"{name}_f64", "f64", x.astype("d"))
        expected = exact.astype(np.float32)
    actual = library.call(f"{name}_f32", "f32", x)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite])
    allowed = next(case.ulp for case in CASES if case.name == name)
    assert ulps(actual[finite], exact[finite]) <= allowed


def test_sine_without_fused_multiply_adds(library: Library) -> None:
    x = np.arange(0, 1 << 32, 30011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    exact = library.call("sin_f64", "f64", x.astype("d"))
    assert ulps(library.call("unfused", "f32", x), exact) <= 0.51


def test_angles(library: Library) -> None:
    """Quotients of all sizes, in all quadrants; zeros and infinities of both signs on the axes and beside."""
    generator = np.random.default_rng(0)
    y, x = (generator.standard_normal(20000) * np.exp(generator.uniform(-9, 9, 20000)) for _ in range(2))
    y, x = y.astype(np.float32), x.astype(np.float32)
    assert ulps(library.call("atan2_f32", "f32", y, x), np.arctan2(y.astype("d"), x.astype("d"))) <= 1.6
    y, x = (a.ravel() for a in np.meshgrid(np.array(SPECIAL, np.float32), np.array(SPECIAL, np.float32)))
    exact = np.array([0, 1, np.inf, -0.0, -1, -np.inf, np.nan], np.float32)
    simple = [0, 1, np.inf]
    chosen = np.isin(np.abs(x), simple) & np.isin(np.abs(y), simple) | np.isnan(x) | np.isnan(y)
    y, x = (
        np.concatenate([a[chosen], b.ravel()]) for a, b in zip((y, x), np.meshgrid(exact, exact), strict=True)
    )
    actual, expected = library.call("atan2_f32", "f32", y, x), np.arctan2(y.astype("d"), x.astype("d"))
    np.testing.assert_array_equal(actual, expected.astype(np.float32))
    assert (np.signbit(actual) == np.signbit(expected))[~np.isnan(expected)].all()


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
