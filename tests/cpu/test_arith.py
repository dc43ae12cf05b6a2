"""Arithmetic, order, bits, conversions and random bits of cpu_src: exact results and edge cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import pytest

from tests.cpu.arrays import (
    BF16,
    COMPARISONS,
    DTYPES,
    FLOATS,
    INTEGERS,
    SPECIAL,
    Library,
    compiled,
    map_source,
    same,
)

FLOAT_UNARY = ("neg", "abs", "sign", "floor", "round_even", "round_away", "exp", "log", "tanh")
FLOAT_BINARY = ("add", "sub", "mul", "div", "rem", "max", "min", "nextafter")
INTEGER_UNARY = ("neg", "abs", "sign", "not", "population_count", "clz")
SHIFTS = ("shift_left", "shift_right_logical", "shift_right_arithmetic")
INTEGER_BINARY = ("add", "sub", "mul", "div", "rem", "max", "min", "and", "or", "xor", *SHIFTS)
BOOL_BINARY = ("and", "or", "xor", "max", "min")
POWERS = (-3, -1, 0, 1, 2, 3, 7, 10)
PRECISIONS = ((5, 10), (8, 7), (5, 2), (4, 3), (8, 23), (11, 52), (2, 1))


def _float_source(t: str) -> list[str]:
    lines = [map_source(f"{n}_{t}", (t,), t, f"ck_{n}") for n in FLOAT_UNARY]
    lines += [map_source(f"{n}_{t}", (t, t), t, f"ck_{n}") for n in FLOAT_BINARY]
    lines.append(map_source(f"is_finite_{t}", (t,), "bool", "ck_is_finite"))
    lines += [map_source(f"pow{p}_{t}".replace("-", "m"), (t,), t, f"ck_integer_pow<{p}>") for p in POWERS]
    for e, m in PRECISIONS:
        lines.append(map_source(f"reduce{e}_{m}_{t}", (t,), t, f"ck_reduce_precision<{e}, {m}>"))
    lines.append(map_source(f"select_{t}", ("bool", t, t), t, "ck_select"))
    return lines


def _source() -> str:
    lines = ['#include "cocktail_math.h"\n']
    for t in FLOATS:
        lines += _float_source(t)
    for t in INTEGERS:
        lines += [map_source(f"{n}_{t}", (t,), t, f"ck_{n}") for n in INTEGER_UNARY]
        lines += [map_source(f"{n}_{t}", (t, t), t, f"ck_{n}") for n in INTEGER_BINARY]
    for t in DTYPES:
        lines += [map_source(f"{n}_{t}", (t, t), "bool", f"ck_{n}") for n in COMPARISONS]
        lines += [map_source(f"convert_{t}_{u}", (t,), u, f"ck_convert<{u}>") for u in DTYPES]
        if t != "bool":
            lines.append(map_source(f"clamp_{t}", (t, t, t), t, "ck_clamp"))
    lines += [map_source(f"{n}_bool", ("bool", "bool"), "bool", f"ck_{n}") for n in BOOL_BINARY]
    lines.append(map_source("not_bool", ("bool",), "bool", "ck_not"))
    for word in (0, 1):
        types = ("u32", "u32", "u32", "u32")
        lines.append(map_source(f"threefry{word}", types, "u32", f"ck_threefry2x32<{word}>"))
    lines.append(map_source("bitcast_f32_i32", ("f32",), "i32", "ck_bitcast<i32>"))
    return "".join(lines)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with compiled(_source(), tmp_path_factory.mktemp("cache")) as library:
        yield library


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_simple_float_operators(library: Library, dtype: str) -> None:
    values = np.array(SPECIAL, DTYPES[dtype])
    x, y = (grid.ravel() for grid in np.meshgrid(values, values))
    references = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "rem": np.fmod}
    for name, function in references.items():
        matching = same(library.call(f"{name}_{dtype}", dtype, x, y), function(x, y), 0)
        assert matching.all(), name
    unary = {"neg": np.negative, "abs": np.abs, "is_finite": np.isfinite}
    for name, operator in unary.items():
        result = "bool" if name == "is_finite" else dtype
        np.testing.assert_array_equal(library.call(f"{name}_{dtype}", result, values), operator(values))
    sign = library.call(f"sign_{dtype}", dtype, values)
    assert same(
        sign, np.where(values == 0, values, np.copysign(np.where(np.isnan(values), np.nan, 1), values)), 0
    ).all()
    halves = np.array(
        [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, -0.2, 1e30, math.inf, math.nan], DTYPES[dtype]
    )
    expected = [1, 2, 3, -1, -2, -3, 0, -0.0, DTYPES[dtype].type(1e30), math.inf, math.nan]
    assert same(
        library.call(f"round_away_{dtype}", dtype, halves), np.array(expected, DTYPES[dtype]), 0
    ).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", FLOATS)
def test_order(library: Library, dtype: str) -> None:
    values = np.array([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.5], DTYPES[dtype])
    x, y = (grid.ravel() for grid in np.meshgrid(values, values))
    for name in COMPARISONS:
        expected = getattr(x.astype("d"), f"__{name}__")(y.astype("d"))
        np.testing.assert_array_equal(library.call(f"{name}_{dtype}", "bool", x, y), expected)
    for name, function in (("max", np.maximum), ("min", np.minimum)):
        expected = function(x.astype("d"), y.astype("d"))
        zeros = (x.astype("d") == 0) & (y.astype("d") == 0)
        negative = np.signbit(x.astype("d")) | np.signbit(y.astype("d"))
        both = np.signbit(x.astype("d")) & np.signbit(y.astype("d"))
        expected = np.where(zeros, np.where(both if name == "max" else negative, -0.0, 0.0), expected)
        assert same(library.call(f"{name}_{dtype}", dtype, x, y).astype("d"), expected, 0).all(), name
    low, high = np.full_like(x, 0), np.full_like(x, 2)
    expected = np.minimum(np.maximum(x.astype("d"), 0), 2)
    actual = library.call(f"clamp_{dtype}", dtype, low, x, high).astype("d")
    np.testing.assert_array_equal(actual, expected)
    nan = np.full_like(x, math.nan)
    assert np.isnan(library.call(f"clamp_{dtype}", dtype, nan, low, high).astype("d")).all()
    assert np.isnan(library.call(f"clamp_{dtype}", dtype, low, high, nan).astype("d")).all()
    condition = np.arange(x.size) % 3 == 0
    actual = library.call(f"select_{dtype}", dtype, condition, x, y).astype("d")
    np.testing.assert_array_equal(actual, np.where(condition, x.astype("d"), y.astype("d")))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nextafter_is_exact(library: Library, dtype: str) -> None:
    kind = DTYPES[dtype]
    tiny = np.array([1], f"u{kind.itemsize}").view(kind)[0]
    limit = ml_dtypes.finfo(kind)
    values = [0.0, -0.0, 1.0, -1.0, tiny, -tiny, limit.tiny, -limit.tiny, limit.max, -limit.max]
    values += [math.inf, -math.inf, math.nan, 1.5]
    x, y = (grid.ravel() for grid in np.meshgrid(np.array(values, kind), np.array(values, kind)))
    with np.errstate(over="ignore"):
        expected = np.where(x == y, y, np.nextafter(x, y))  # of unequal zeros, NumPy's float16 returns x
    actual = library.call(f"nextafter_{dtype}", dtype, x, y)
    nan = np.isnan(x.astype("d")) | np.isnan(y.astype("d"))
    assert np.isnan(actual[nan].astype("d")).all()
    bits = f"u{kind.itemsize}"
    np.testing.assert_array_equal(actual[~nan].view(bits), expected[~nan].view(bits))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("power", POWERS)
def test_integer_power(library: Library, dtype: str, power: int) -> None:
    x = np.array([0.0, -0.0, 1.5, -1.5, 3.0, -0.25, math.inf, -math.inf, math.nan], DTYPES[dtype])
    expected = np.power(x.astype("d"), float(power)).astype(DTYPES[dtype]).astype("d")
    actual = library.call(f"pow{power}_{dtype}".replace("-", "m"), dtype, x).astype("d")
    assert same(actual, expected, 1e-2 if dtype in ("bf16", "f16") else 3e-7).all()


def test_half_precision_storage_is_exhaustive(library: Library) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    for name, kind in (("bf16", BF16), ("f16", np.dtype(np.float16))):
        x = bits.view(kind)
        up = library.call(f"convert_{name}_f32", "f32", x)
        assert same(up, x.astype(np.float32), 0).all()
        down = library.call(f"convert_f32_{name}", name, up).view(np.uint16)
        nan = np.isnan(up)
        np.testing.assert_array_equal(down[~nan], bits[~nan])
        assert np.isnan(down[nan].view(kind).astype(np.float32)).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_half_precision_rounding(library: Library, name: str) -> None:
    bits = np.random.default_rng(2).integers(0, 1 << 32, 200000, dtype=np.uint32)
    ties = (np.arange(65536, dtype=np.uint32) << 16) + 0x8000
    x = np.concatenate([bits, ties, ties + 1, ties - 1]).view(np.float32)
    expected = x.astype(DTYPES[name]).astype(np.float32)
    assert same(library.call(f"convert_f32_{name}", name, x).astype(np.float32), expected, 0).all()
    wide = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-11 + 2.0**-40, 65519.999999, -1 - 2.0**-8 - 2.0**-40])
    exact = {
        "bf16": [1.0078125, 1.0, 65536.0, -1.0078125],
        "f16": [1.00390625, 1.0009765625, 65504.0, -1.00390625],
    }
    actual = library.call(f"convert_f64_{name}", name, wide).astype("d")
    np.testing.assert_array_equal(actual, exact[name])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["bf16", "f16"])
@pytest.mark.parametrize("function", ["exp", "log", "tanh", "floor", "round_even", "abs", "neg", "sign"])
def test_half_precision_functions(library: Library, name: str, function: str) -> None:
    x = np.arange(65536, dtype=np.uint16).view(DTYPES[name])
    operator = {"round_even": np.rint, "abs": np.abs, "neg": np.negative}.get(function) or getattr(
        np, function
    )
    expected = operator(x.astype("d")).astype(np.float32).astype(DTYPES[name]).astype("d")
    actual = library.call(f"{function}_{name}", name, x).astype("d")
    exact = function not in ("exp", "log", "tanh")
    step = 0.0 if exact else (2.0**-7 if name == "bf16" else 2.0**-10)
    if function == "sign":
        expected = np.where(x.astype("d") == 0, x.astype("d"), expected)
    matching = same(actual, expected, step) | (np.abs(actual - expected) < (0 if exact else 1e-7))
    assert matching.all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_reduce_precision(library: Library, precision: tuple[int, int]) -> None:
    exponent, mantissa = precision
    bits = np.random.default_rng(3).integers(0, 1 << 32, 20000, dtype=np.uint32)
    x = np.concatenate([bits.view(np.float32), np.array(SPECIAL, np.float32)])
    x = np.concatenate(
        [x, np.float32(2.0) ** np.random.default_rng(4).uniform(-20, 20, 20000).astype(np.float32)]
    )
    x = x[(np.abs(x) >= 1.1754944e-38) | ~np.isfinite(x) | (x == 0)]
    scaled, power = np.frexp(x.astype("d"))
    kept = min(mantissa, 23)
    rounded = np.ldexp(np.rint(np.ldexp(scaled, kept + 1)), power - kept - 1)
    if exponent < 8:
        bias = (1 << (exponent - 1)) - 1
        largest = 2.0**bias * (2 - 2.0**-kept)
        rounded = np.where(np.abs(rounded) > largest, np.copysign(math.inf, x), rounded)
        rounded = np.where(np.abs(rounded) < 2.0 ** (1 - bias), np.copysign(0.0, x), rounded)
    expected = np.where(np.isfinite(x), rounded, x.astype("d")).astype(np.float32)
    actual = library.call(f"reduce{exponent}_{mantissa}_f32", "f32", x)
    assert same(actual, expected, 0).all()


def _integer_pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    info = np.iinfo(DTYPES[dtype])
    if info.bits == 8:
        values = np.arange(info.min, info.max + 1).astype(DTYPES[dtype])
    else:
        edges = {
            0,
            1,
            2,
            3,
            7,
            31,
            32,
            33,
            63,
            64,
            100,
            info.max,
            info.max - 1,
            info.max // 2,
            info.min,
            info.min + 1,
        }
        edges |= {-1, -2, -7, -64} if info.min < 0 else set()
        values = np.array(sorted(edges), DTYPES[dtype])
    x, y = (grid.ravel() for grid in np.meshgrid(values, values))
    return np.ascontiguousarray(x), np.ascontiguousarray(y)


def _integer_reference(name: str, a: int, b: int, bits: int) -> int:
    """Exact arithmetic; the caller wraps."""
    mask = (1 << bits) - 1
    count = b & mask
    if name in ("div", "rem"):
        if b == 0:
            return -1 if name == "div" else a
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if name == "div" else a - quotient * b
    if name == "shift_left":
        return a << count if count < bits else 0
    if name == "shift_right_logical":
        return (a & mask) >> count if count < bits else 0
    if name == "shift_right_arithmetic":
        top = (a & mask) - (1 << bits) if (a & mask) >> (bits - 1) else a & mask
        return top >> min(count, bits - 1)
    table: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "max": max,
        "min": min,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
    }
    return table[name](a, b)


def _wrap(values: list[int], dtype: str) -> np.ndarray:
    bits = np.iinfo(DTYPES[dtype]).bits
    words = np.array([value & ((1 << bits) - 1) for value in values], f"u{bits // 8}")
    return words.view(DTYPES[dtype])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_operators(library: Library, dtype: str) -> None:
    info = np.iinfo(DTYPES[dtype])
    x, y = _integer_pairs(dtype)
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    for name in INTEGER_BINARY:
        expected = [_integer_reference(name, a, b, info.bits) for a, b in pairs]
        actual = library.call(f"{name}_{dtype}", dtype, x, y)
        np.testing.assert_array_equal(actual, _wrap(expected, dtype), err_msg=name)
    for name in COMPARISONS:
        actual = library.call(f"{name}_{dtype}", "bool", x, y)
        np.testing.assert_array_equal(actual, getattr(x, f"__{name}__")(y), err_msg=name)
    mask = (1 << info.bits) - 1
    unary: dict[str, Callable[[int], int]] = {
        "neg": lambda a: -a,
        "abs": abs,
        "sign": lambda a: (a > 0) - (a < 0),
        "not": lambda a: ~a,
        "population_count": lambda a: (a & mask).bit_count(),
        "clz": lambda a: info.bits - (a & mask).bit_length(),
    }
    for name, function in unary.items():
        actual = library.call(f"{name}_{dtype}", dtype, x)
        np.testing.assert_array_equal(actual, _wrap([function(a) for a in x.tolist()], dtype), err_msg=name)
    low, high = np.full_like(x, 3), np.full_like(x, 100)
    np.testing.assert_array_equal(library.call(f"clamp_{dtype}", dtype, low, x, high), np.clip(x, 3, 100))


def test_bool_operators(library: Library) -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    np.testing.assert_array_equal(library.call("not_bool", "bool", x), ~x)
    for name, expected in (("and", x & y), ("or", x | y), ("xor", x ^ y), ("max", x | y), ("min", x & y)):
        np.testing.assert_array_equal(library.call(f"{name}_bool", "bool", x, y), expected)
    for name in COMPARISONS:
        expected = getattr(x.astype(np.int8), f"__{name}__")(y.astype(np.int8))
        np.testing.assert_array_equal(library.call(f"{name}_bool", "bool", x, y), expected)


@pytest.mark.parametrize("source", list(DTYPES))
def test_conversions(library: Library, source: str) -> None:
    kind = DTYPES[source]
    if source == "bool":
        x = np.array([False, True])
    elif source in INTEGERS:
        x = _integer_pairs(source)[0]
    else:
        values = [*SPECIAL, 1.9, -1.9, 127.5, 128, -128.5, 255.9, 256, 32767, 32768, -32769, 65504, 1e5, 4e9]
        values += [2147483520.0, 2147483648.0, -2147483648.0, 9.2e18, 9.3e18, 1.8e19, 1.9e19, 1e-3]
        with np.errstate(over="ignore"):
            x = np.array(values).astype(kind)
    for target, wanted in DTYPES.items():
        actual = library.call(f"convert_{source}_{target}", target, x)
        if target == "bool":
            expected: np.ndarray = x.astype("d") != 0
        elif target in INTEGERS and source in FLOATS:
            info = np.iinfo(wanted)
            exact = [0 if math.isnan(v) else v for v in x.astype("d").tolist()]
            clipped = [
                int(min(max(v, float(info.min)), 1e30 if v > 0 else v + 0.0)) if abs(v) < 1e30 else v
                for v in exact
            ]
            bounded = [info.max if v >= info.max else info.min if v <= info.min else int(v) for v in clipped]
            expected = np.array(bounded, wanted)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                middle = x.astype(np.float32) if source in INTEGERS and target in ("bf16", "f16") else x
                expected = middle.astype(wanted)
        if target in FLOATS:
            assert same(actual.astype("d"), expected.astype("d"), 0).all(), target
        else:
            np.testing.assert_array_equal(actual, expected, err_msg=target)


def test_bitcast(library: Library) -> None:
    x = np.array(SPECIAL, np.float32)
    np.testing.assert_array_equal(library.call("bitcast_f32_i32", "i32", x), x.view(np.int32))


def test_threefry_known_answers(library: Library) -> None:
    """Vectors of the Random123 distribution (kat_vectors, threefry2x32 20)."""
    ones = 0xFFFFFFFF
    rows = (
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ones, ones), (ones, ones), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    )
    for key, counter, words in rows:
        arguments = [np.array([value], np.uint32) for value in (*key, *counter)]
        for word in (0, 1):
            assert library.call(f"threefry{word}", "u32", *arguments)[0] == words[word]
