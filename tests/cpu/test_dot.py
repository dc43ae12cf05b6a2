"""Matrix products, convolutions and sorting of cpu_src: every stride form and dtype against NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest

from tests.cpu.arrays import DTYPES, FLOATS, Library, compiled, pointer

Names = tuple[str, str, str]
# operands and result
TYPES = (
    ("f32", "f32", "f32"),
    ("f64", "f64", "f64"),
    ("bf16", "bf16", "bf16"),
    ("f16", "f16", "f16"),
    ("bf16", "bf16", "f32"),
    ("f32", "f32", "f64"),
    ("i32", "i32", "i32"),
    ("i8", "i8", "i32"),
    ("i8", "i8", "i8"),
    ("u16", "u16", "u16"),
    ("i64", "i64", "i64"),
    ("bool", "bool", "bool"),
)
CONV_TYPES = (("f32", 1), ("f32", 2), ("f32", 3), ("f64", 2), ("bf16", 2), ("i32", 1))
FIELDS = ("in_size", "out_size", "kernel", "stride", "pad_low", "lhs_dilation", "rhs_dilation")
# 1 is contiguous on that axis. First the axis order of the left, right and result matrix in memory.
ORDERS = tuple(product(("mk", "km"), ("kn", "nk"), ("mn", "nm")))
SIZES = ((1, 1, 1), (1, 64, 33), (64, 1, 33), (1, 3, 40), (5, 37, 19), (4, 130, 64), (3, 2, 5), (17, 16, 8))


def _source() -> str:
    lines = ['#include "cocktail_dot.h"\n#include "cocktail_conv.h"\n#include "cocktail_sort.h"\n']
    for a, b, o in TYPES:
        lines.append(
            f"CK_EXPORT void dot_{a}_{b}_{o}(const i64* s, const {a}* a, const {b}* b, {o}* o) {{\n"
            "  ck_dot(s[0], s[1], s[2], s[3], a, s[4], s[5], s[6], b, s[7], s[8], s[9],"
            " o, s[10], s[11], s[12]);\n"
            "}\n"
        )
    lines.append(
        "CK_EXPORT void dot_constant(const f32* a, const f32* b, f32* o) {\n"
        "  ck_dot(1, 1, 48, 32, a, 0, 32, 1, b, 0, 48, 1, o, 0, 48, 1);\n}\n"
    )
    for t, rank in CONV_TYPES:
        lines.append(
            f"CK_EXPORT void conv_{t}_{rank}(const CkConv<{rank}>* s, const {t}* x, const {t}* w, {t}* o)"
            " { ck_conv(*s, x, w, o); }\n"
        )
    lines.append(
        "CK_EXPORT void sort_f32(i64 n, const f32* x, i32* index, i32* scratch) {\n"
        "  ck_sort_index(n, index, scratch, [x](i32 i, i32 j) { return x[i] < x[j]; });\n}\n"
    )
    return "".join(lines)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with compiled(_source(), tmp_path_factory.mktemp("cache")) as library:
        yield library


def _array(generator: np.random.Generator, dtype: str, shape: Sequence[int]) -> np.ndarray:
    if dtype == "bool":
        return generator.random(shape) < 0.2
    if dtype in FLOATS:
        return generator.standard_normal(shape).astype(DTYPES[dtype])
    info = np.iinfo(DTYPES[dtype])
    return generator.integers(info.min, info.max, shape, DTYPES[dtype], endpoint=True)


def _laid_out(order: str, sizes: dict[str, int], extra: int) -> tuple[tuple[int, ...], list[int]]:
    """Shape in memory (padded in the minor axis) and the strides of the axes in the order named."""
    major, minor = order
    row = sizes[minor] + extra
    return (sizes[major], row), [row, 1]


def _reference(a: np.ndarray, b: np.ndarray, result: str) -> np.ndarray:
    if result == "bool":
        return (a[:, :, :, None] & b[:, None, :, :]).any(axis=2)
    if result in FLOATS:
        return np.einsum("imk,ikn->imn", a.astype("d"), b.astype("d"))
    with np.errstate(over="ignore"):
        kind = DTYPES[result]
        return np.einsum("imk,ikn->imn", a.astype(kind), b.astype(kind), dtype=kind)


def _check(actual: np.ndarray, expected: np.ndarray, operand: str, result: str, k: int) -> None:
    """Floats: the rounding of the result and of k sums."""
    if result not in FLOATS:
        np.testing.assert_array_equal(actual, expected)
        return
    sums = 2.0**-50 if operand == "f64" else 2.0**-21
    stored = {"bf16": 2.0**-8, "f16": 2.0**-11}.get(result, sums)
    np.testing.assert_allclose(actual.astype("d"), expected, rtol=stored, atol=sums * (k + 1))


def _dot(library: Library, types: Names, orders: Names, mnk: tuple[int, int, int], extra: int) -> None:
    generator = np.random.default_rng(5)
    sizes = dict(zip("mnk", mnk, strict=True))
    batch = 2
    views, strides, memory = [], [batch, *mnk], []
    for axes, order, dtype in zip(("mk", "kn", "mn"), orders, types, strict=True):
        shape, steps = _laid_out(order, sizes, extra)
        data = _array(generator, dtype, (batch, *shape))
        view = data[:, :, : shape[1] - extra]
        views.append(view if axes == order else view.swapaxes(1, 2))
        by_axis = dict(zip(order, steps, strict=True))
        strides += [shape[0] * shape[1], by_axis[axes[0]], by_axis[axes[1]]]
        memory.append(data)
    before = memory[2].copy()
    function = getattr(library.handle, "dot_" + "_".join(types))
    function(pointer(np.array(strides, np.int64)), *map(pointer, memory))
    _check(views[2], _reference(views[0], views[1], types[2]), types[0], types[2], mnk[2])
    edge = slice(before.shape[2] - extra, None)
    np.testing.assert_array_equal(memory[2][:, :, edge], before[:, :, edge])


@pytest.mark.parametrize("orders", ORDERS, ids="_".join)
@pytest.mark.parametrize("types", TYPES, ids="_".join)
def test_every_stride_form(
    library: Library, types: tuple[str, str, str], orders: tuple[str, str, str]
) -> None:
    for mnk in SIZES:
        for extra in (0, 3):
            _dot(library, types, orders, mnk, extra)


@pytest.mark.parametrize("types", TYPES, ids="_".join)
def test_empty_sum_is_zero(library: Library, types: Names) -> None:
    a, b = np.zeros(1, DTYPES[types[0]]), np.zeros(1, DTYPES[types[1]])
    o = np.ones((2, 9), DTYPES[types[2]])
    strides = np.array([1, 2, 9, 0, 0, 0, 1, 0, 9, 1, 0, 9, 1], np.int64)
    getattr(library.handle, "dot_" + "_".join(types))(pointer(strides), pointer(a), pointer(b), pointer(o))
    np.testing.assert_array_equal(o.astype("d"), np.zeros((2, 9)))


def test_constant_shapes(library: Library) -> None:
    generator = np.random.default_rng(6)
    a, b = _array(generator, "f32", (32,)), _array(generator, "f32", (32, 48))
    o = np.zeros(48, np.float32)
    library.handle.dot_constant(pointer(a), pointer(b), pointer(o))
    np.testing.assert_allclose(o, a.astype("d") @ b.astype("d"), rtol=1e-5, atol=1e-5)


def test_same_bits_for_a_row_alone_and_in_a_batch(library: Library) -> None:
    generator = np.random.default_rng(7)
    a, b = _array(generator, "f32", (4, 100)), _array(generator, "f32", (100, 70))
    whole, single = np.zeros((4, 70), np.float32), np.zeros((4, 70), np.float32)
    function = library.handle.dot_f32_f32_f32
    function(
        pointer(np.array([1, 4, 70, 100, 0, 100, 1, 0, 70, 1, 0, 70, 1])),
        pointer(a),
        pointer(b),
        pointer(whole),
    )
    for i in range(4):
        strides = np.array([1, 1, 70, 100, 0, 100, 1, 0, 70, 1, 0, 70, 1])
        function(pointer(strides), pointer(a[i : i + 1]), pointer(b), pointer(single[i : i + 1]))
    np.testing.assert_array_equal(whole, single)


# ---- convolution -------------------------------------------------------------------------------------------


def _conv_reference(x: np.ndarray, w: np.ndarray, spec: dict[str, Sequence[int]], groups: int) -> np.ndarray:
    """Element by element over positions and taps; features contracted by NumPy."""
    out = np.zeros((x.shape[0], *spec["out_size"], w.shape[-1]))
    channels, features = w.shape[-2], w.shape[-1] // groups
    rows = list(zip(*(spec[field] for field in FIELDS[3:]), spec["in_size"], strict=True))
    for position in product(*map(range, spec["out_size"])):
        for tap in product(*map(range, spec["kernel"])):
            source = []
            for at, k, (stride, low, dilation, reach, size) in zip(position, tap, rows, strict=True):
                place, hole = divmod(at * stride - low + k * reach, dilation)
                if hole == 0 and 0 <= place < size:
                    source.append(place)
            if len(source) < len(position):
                continue
            pixel, weight = x[(slice(None), *source)].astype("d"), w[tap].astype("d")
            for g in range(groups):
                here = slice(g * features, (g + 1) * features)
                part = pixel[:, g * channels : (g + 1) * channels] @ weight[:, here]
                out[(slice(None), *position, here)] += part
    return out


CONVS = {
    "plain": ({"kernel": 3, "stride": 1, "pad_low": 1, "lhs_dilation": 1, "rhs_dilation": 1}, 5, 40, 1),
    "strided": ({"kernel": 3, "stride": 2, "pad_low": 0, "lhs_dilation": 1, "rhs_dilation": 1}, 4, 7, 1),
    "dilated": ({"kernel": 2, "stride": 1, "pad_low": 2, "lhs_dilation": 1, "rhs_dilation": 3}, 3, 33, 1),
    "transposed": ({"kernel": 3, "stride": 1, "pad_low": 1, "lhs_dilation": 2, "rhs_dilation": 1}, 2, 16, 1),
    "grouped": ({"kernel": 3, "stride": 1, "pad_low": 1, "lhs_dilation": 1, "rhs_dilation": 1}, 6, 9, 3),
    "depthwise": ({"kernel": 2, "stride": 2, "pad_low": 1, "lhs_dilation": 1, "rhs_dilation": 1}, 4, 4, 4),
    "cropped": ({"kernel": 1, "stride": 1, "pad_low": -1, "lhs_dilation": 1, "rhs_dilation": 1}, 3, 5, 1),
}


@pytest.mark.parametrize("name", list(CONVS))
@pytest.mark.parametrize(("dtype", "rank"), CONV_TYPES)
def test_convolution(library: Library, dtype: str, rank: int, name: str) -> None:
    parameters, channels, features, groups = CONVS[name]
    generator = np.random.default_rng(8)
    spec: dict[str, Sequence[int]] = {key: [value] * rank for key, value in parameters.items()}
    spec["in_size"] = [7, 6, 5][:rank]
    spec["out_size"] = [6, 5, 4][:rank] if parameters["stride"] == 1 else [3, 3, 2][:rank]
    if name == "cropped":
        spec["out_size"] = [n - 1 for n in spec["in_size"]]
    x = _array(generator, "f32", (2, *spec["in_size"], channels))
    w = _array(generator, "f32", (*spec["kernel"], channels // groups, features))
    if dtype == "i32":
        x, w = np.rint(x * 10), np.rint(w * 10)
    x, w = x.astype(DTYPES[dtype]), w.astype(DTYPES[dtype])
    o = np.zeros((2, *spec["out_size"], features), DTYPES[dtype])
    words = [2, *(value for field in FIELDS for value in spec[field]), channels, features, groups]
    function = getattr(library.handle, f"conv_{dtype}_{rank}")
    function(*map(pointer, (np.array(words, np.int64), x, w, o)))
    tolerance = 2.0**-7 if dtype == "bf16" else 1e-5
    np.testing.assert_allclose(
        o.astype("d"), _conv_reference(x, w, spec, groups), rtol=tolerance, atol=tolerance
    )


# ---- sorting -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 15, 16, 17, 33, 100, 1000, 4097])
def test_sort_is_stable(library: Library, n: int) -> None:
    generator = np.random.default_rng(n)
    for x in (generator.integers(0, 5, n), generator.random(n), np.arange(n), -np.arange(n)):
        values = np.ascontiguousarray(x, np.float32)
        index, scratch = np.full(n + 1, -7, np.int32), np.full(n + 1, -7, np.int32)
        library.handle.sort_f32(ctypes.c_int64(n), pointer(values), pointer(index), pointer(scratch))
        np.testing.assert_array_equal(index[:n], np.argsort(values, kind="stable"))
        assert index[n] == scratch[n] == -7
