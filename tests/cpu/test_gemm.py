"""Products of known shape: every kernel of cpu_src against NumPy, with and without wide vectors."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jax_cocktail.build import host as build
from jax_cocktail.cost import cpu_products
from jax_cocktail.device.tuning import FACTORS, PROGRAM
from tests.cpu.arrays import DTYPES, FLOATS, Library, compiled, pointer

# Switches that take wide vectors away from -march=native.
MACHINES = {"native": (), "avx2": ("-mno-avx512f",), "sse": ("-mno-avx",)}
TYPES = (
    ("bf16", "bf16", "bf16"),
    ("f16", "f16", "f32"),
    ("f32", "bf16", "f32"),
    ("f32", "f32", "f64"),
    ("i8", "i8", "i32"),
    ("i8", "i8", "i8"),
    ("u8", "i8", "i16"),
    ("u16", "u16", "u32"),
    ("i32", "i32", "i32"),
    ("u32", "u32", "u64"),
    ("bool", "bool", "bool"),
)
FORMS = {"columns": "kn", "inner": "nk"}


@dataclasses.dataclass(frozen=True)
class Product:
    """o = a @ b. `b_order`: order of b's axes in memory; every row has a spare element."""

    types: tuple[str, str, str]
    m: int
    n: int
    k: int
    b_order: str = "kn"
    a_order: str = "mk"

    @property
    def name(self) -> str:
        return f"{'_'.join(self.types)}_{self.m}_{self.n}_{self.k}_{self.a_order}_{self.b_order}"

    def strides(self, axes: str, order: str) -> tuple[int, int]:
        steps = {order[0]: getattr(self, order[1]) + 1, order[1]: 1}
        return steps[axes[0]], steps[axes[1]]

    @property
    def shape(self) -> str:
        a, b = self.strides("mk", self.a_order), self.strides("kn", self.b_order)
        return ", ".join(map(str, (self.m, self.n, self.k, *a, *b)))


def _products() -> list[Product]:
    """Each number of rows, each way to split the columns, deep sums; then the other types."""
    f32 = ("f32", "f32", "f32")
    found = [Product(f32, m, n, 40) for m, n in itertools.product(range(1, 15), (36, 133, 250))]
    found += [Product(f32, m, n, 300, "nk") for m, n in itertools.product((1, 2, 3, 7, 19), (1, 5, 70))]
    found += [Product(f32, m, n, k) for m, n, k in ((100, 70, 300), (97, 1, 130), (7, 5, 9), (3, 3, 200))]
    # Blocks of five and six rows, the last of several tiles, narrow columns with blocks of up to twelve rows.
    found += [Product(f32, m, n, 140) for m, n in ((19, 70), (25, 20), (32, 64), (101, 90), (257, 30))]
    found += [Product(f32, 64, 40, 33, form, "km") for form in FORMS.values()]
    found += [Product(("f64",) * 3, m, 45, 150, form) for m in (1, 5, 20) for form in FORMS.values()]
    for types in TYPES:
        found += [Product(types, m, 83, 141, form) for m in (1, 3, 20) for form in FORMS.values()]
        found += [Product(types, 2, 12, 35), Product(types, 20, 10, 5, "nk")]
    return found


PRODUCTS = _products()
VISITED = (("f32", 3, 100, 200), ("f32", 100, 70, 130), ("f32", 1, 37, 64), ("bf16", 20, 20, 20))
LINE = 64  # bytes of a line of a panel
# Type, rows, panels of columns, k, stride of the result's columns.
PACKED = (
    *(("f32", m, 7, 40, 1) for m in (*range(1, 8), 19)),
    *(("f64", m, 3, 40, 1) for m in (1, 2, 7)),
    *(("f32", m, 5, k, 1) for m in (1, 40, 150) for k in (1, 530)),
    ("f32", 3, 3, 300, 2),
)
# Types of a, b and o, rows, columns, k, lines apart. The lines share sets of the caches.
LINED = (
    *((("f32",) * 3, m, 512, k, 1024) for m, k in ((1, 4), (2, 7), (3, 300), (4, 260))),
    *((("f32",) * 3, m, 528, 9, 2048) for m in (5, 12)),
    (("f32",) * 3, 2, 2576, 530, 3072),
    (("f32",) * 3, 6, 512, 1100, 1024),  # a large matrix
    (("f64",) * 3, 3, 272, 300, 512),
    (("f32", "f32", "bf16"), 3, 2064, 260, 2560),
    (("f32",) * 3, 12, 528, 600, 2048),
    (("i32",) * 3, 2, 512, 260, 512),
)
# Names in cpu_src of what prices assume.
CONSTANTS = {
    "kCkTileRows": cpu_products._TILE_ROWS,
    "kCkLinesTogether": cpu_products._LINES,
    "kCkLinesBytes": cpu_products._LINE_BYTES,
    "kCkLeastLinesBytes": cpu_products._LEAST_LINE,
    "kCkLinesRows": cpu_products._LINE_ROWS,
    "kCkFarRows": cpu_products._FAR_ROWS,
    "kCkFarBytes": cpu_products._FAR_BYTES,
    "kCkFarMatrix": cpu_products._FAR_MATRIX,
    "kCkAlikeBytes": FACTORS.alike_bytes,
    "kCkBlockRows": FACTORS.block_rows,
    "kCkPanelBytes": FACTORS.panel_bytes,
}


def _lined_source() -> Iterator[str]:
    """A product of a matrix whose lines share sets, of one whose lines do not, and with changed places."""
    for (a, b, o), m, n, k, apart in LINED:
        name = f"{a}_{b}_{o}_{m}_{n}_{k}_{apart}"
        arrays = f"const {a}* a, const {b}* b, {o}* o"
        for what, b_k in (("lines", apart), ("strips", apart + 16)):
            shape = f"{m}, {n}, {k}, {k + 1}, 1, {b_k}, 1, {n + 3}, 1"
            call = f"ck_dot_fixed<{a}, {b}, {o}, {shape}>(1, a, 0, b, 0, o, 0);"
            yield f"CK_EXPORT void {what}_{name}({arrays}) {{ {call} }}\n"
        shape = f"{n}, {m}, {k}, 1, {apart}, 1, {k + 1}, 1, {n + 3}"
        call = f"ck_dot_fixed<{b}, {a}, {o}, {shape}>(1, b, 0, a, 0, o, 0);"
        yield f"CK_EXPORT void turned_{name}({arrays}) {{ {call} }}\n"
        if a == b == o == "f32":
            shape = f"{m}, {n}, {k}, a, 0, {k + 1}, 1, b, 0, {apart}, 1, o, 0, {n + 3}, 1"
            yield f"CK_EXPORT void unknown_{name}({arrays}) {{ ck_dot<{a}, {b}, {o}>(1, {shape}); }}\n"
        for b_k, test in ((apart, "=="), (apart + 16, "!=")):
            plan = f"ck_plan_for<{a}, {b}, {o}>({{{m}, {n}, {k}, {k + 1}, 1, {b_k}, 1, {n + 3}, 1}}, true)"
            yield f'static_assert({plan}.kernel {test} CK_WHOLE_LINES, "{name}");\n'
    for name, value in CONSTANTS.items():
        yield f'static_assert({name} == {value}, "{name}");\n'


def _packed_source() -> Iterator[str]:
    """A product of the matrix, of its panels, and of many rows whose number is known at run time only."""
    for t, m, panels, k, o_n in PACKED:
        width = LINE // np.dtype(DTYPES[t]).itemsize
        n = panels * width
        o_m, name = n * o_n + 3, f"{t}_{m}_{panels}_{k}_{o_n}"
        arrays = f"const {t}* a, const {t}* b, {t}* o"
        for what, b_k, b_n in (("plain", str(n), "1"), ("panels", str(width), "kCkPanels")):
            shape = f"{m}, {n}, {k}, {k + 1}, 1, {b_k}, {b_n}, {o_m}, {o_n}"
            call = f"ck_dot_fixed<{t}, {t}, {t}, {shape}>(1, a, 0, b, 0, o, 0);"
            yield f"CK_EXPORT void {what}_{name}({arrays}) {{ {call} }}\n"
        if m < PROGRAM.some_rows:
            continue
        rows = "kCkMany" if m >= PROGRAM.many_rows else "kCkSome"
        shape = f"{n}, {k}, {k + 1}, 1, {width}, kCkPanels, {o_m}, {o_n}"
        call = f"ck_dot_sized<{t}, {t}, {t}, {rows}, {shape}>({{m, {shape}}}, 1, a, 0, b, 0, o, 0);"
        yield f"CK_EXPORT void sized_{name}({arrays}, i64 m) {{ {call} }}\n"


def _source() -> str:
    lines = ['#include "cocktail_dot.h"\n', *_packed_source(), *_lined_source()]
    for p in PRODUCTS:
        a, b, o = p.types
        lines.append(
            f"CK_EXPORT void dot_{p.name}(const {a}* a, const {b}* b, {o}* o) {{\n"
            f"  ck_dot_fixed<{a}, {b}, {o}, {p.shape}, {p.n + 1}, 1>(1, a, 0, b, 0, o, 0);\n}}\n"
        )
    for t, m, n, k in VISITED:
        for form, (b_k, b_n) in {"columns": (n, 1), "inner": (1, k)}.items():
            lines.append(
                f"CK_EXPORT void visit_{t}_{m}_{n}_{k}_{form}(const {t}* a, const {t}* b, f32* o) {{\n"
                f"  ck_dot_visit<{t}, {t}, f32, {m}, {n}, {k}, {k}, 1, {b_k}, {b_n}>(\n"
                f"    2, a, {m * k}, b, {k * n},\n"
                "    [&](i64 i, i64 r, i64 c, i64 rows, i64 columns, const f32* sums, i64 stride) {\n"
                "      for (i64 x = 0; x < rows; ++x)\n        for (i64 y = 0; y < columns; ++y)\n"
                f"          o[(i * {m} + r + x) * {n} + c + y] += sums[x * stride + y] + 1;\n    }});\n}}\n"
            )
    return "".join(lines)


@pytest.fixture(scope="module", params=list(MACHINES))
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    toolchain = build.host_toolchain()
    command = (*toolchain.command, *MACHINES[request.param])
    with pytest.MonkeyPatch.context() as patch:
        changed = dataclasses.replace(toolchain, command=command)
        patch.setattr(build, "host_toolchain", lambda: changed)
        folder: Path = tmp_path_factory.mktemp("cache")
        with compiled(_source(), folder) as found:
            yield found


def _operand(generator: np.random.Generator, dtype: str, order: str, product: Product) -> np.ndarray:
    shape = (getattr(product, order[0]), getattr(product, order[1]) + 1)
    if dtype == "bool":
        return generator.random(shape) < 0.1
    if dtype in FLOATS:
        return generator.standard_normal(shape).astype(DTYPES[dtype])
    info = np.iinfo(DTYPES[dtype])
    return generator.integers(info.min, info.max, shape, DTYPES[dtype], endpoint=True)


def _plain(data: np.ndarray, order: str, axes: str) -> np.ndarray:
    """Without the spare element, axes in the usual order."""
    inner = data[:, :-1]
    return inner if order == axes else inner.T


def _expected(a: np.ndarray, b: np.ndarray, result: str) -> np.ndarray:
    if result == "bool":
        return (a[:, :, None] & b[None]).any(axis=1)
    if result in FLOATS:
        return a.astype("d") @ b.astype("d")
    return np.einsum("mk,kn->mn", a.astype(DTYPES[result]), b.astype(DTYPES[result]))


@pytest.mark.sampled(120)
@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.name)
def test_product(library: Library, product: Product) -> None:
    generator = np.random.default_rng(3)
    a = _operand(generator, product.types[0], product.a_order, product)
    b = _operand(generator, product.types[1], product.b_order, product)
    o = np.zeros((product.m, product.n + 1), DTYPES[product.types[2]])
    getattr(library.handle, f"dot_{product.name}")(pointer(a), pointer(b), pointer(o))
    expected = _expected(_plain(a, product.a_order, "mk"), _plain(b, product.b_order, "kn"), product.types[2])
    assert not o[:, -1].any()  # the spare element is nobody's
    if product.types[2] not in FLOATS:
        np.testing.assert_array_equal(o[:, :-1], expected)
        return
    sums = 2.0**-50 if "f64" in product.types else 2.0**-21
    stored = {"bf16": 2.0**-8}.get(product.types[2], sums)
    np.testing.assert_allclose(o[:, :-1].astype("d"), expected, rtol=stored, atol=sums * product.k)


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize(("dtype", "m", "n", "k"), VISITED)
def test_every_sum_is_visited_once(library: Library, dtype: str, m: int, n: int, k: int, form: str) -> None:
    generator = np.random.default_rng(4)
    a = generator.standard_normal((2, m, k)).astype(DTYPES[dtype])
    b = generator.standard_normal((2, *((k, n) if form == "columns" else (n, k)))).astype(DTYPES[dtype])
    o = np.zeros((2, m, n), np.float32)
    getattr(library.handle, f"visit_{dtype}_{m}_{n}_{k}_{form}")(pointer(a), pointer(b), pointer(o))
    right = b if form == "columns" else b.swapaxes(1, 2)
    np.testing.assert_allclose(o, a.astype("d") @ right.astype("d") + 1, rtol=1e-5, atol=1e-4)


def test_rows_do_not_change_sums(library: Library) -> None:
    """A row has the same bits alone and beside others, whatever block it falls in."""
    generator = np.random.default_rng(5)
    a = generator.standard_normal((14, 41)).astype(np.float32)
    b = generator.standard_normal((40, 134)).astype(np.float32)
    results = []
    for m in range(1, 15):
        o = np.zeros((m, 134), np.float32)
        function = getattr(library.handle, f"dot_f32_f32_f32_{m}_133_40_mk_kn")
        function(pointer(a), pointer(b), pointer(o))
        results.append(o)
    for m, o in enumerate(results, 1):
        np.testing.assert_array_equal(o, results[-1][:m])


@pytest.mark.parametrize(("dtype", "m", "panels", "k", "o_n"), PACKED)
def test_panels_give_the_bits_of_the_matrix(
    library: Library, dtype: str, m: int, panels: int, k: int, o_n: int
) -> None:
    generator, width = np.random.default_rng(6), LINE // np.dtype(DTYPES[dtype]).itemsize
    n = panels * width
    a = generator.standard_normal((m, k + 1)).astype(DTYPES[dtype])
    b = generator.standard_normal((k, n)).astype(DTYPES[dtype])
    b[:, -1] = np.nan  # stays in its column
    packed = np.ascontiguousarray(b.reshape(k, panels, width).swapaxes(0, 1))
    found, ways = {}, {"plain": b, "panels": packed} | ({"sized": packed} if m >= PROGRAM.some_rows else {})
    for what, matrix in ways.items():
        found[what] = np.zeros((m, n * o_n + 3), DTYPES[dtype])
        arguments = [pointer(a), pointer(matrix), pointer(found[what])] + [m] * (what == "sized")
        getattr(library.handle, f"{what}_{dtype}_{m}_{panels}_{k}_{o_n}")(*arguments)
    result = found["plain"]
    for other in found.values():
        np.testing.assert_array_equal(other, result)
    assert not result[:, n * o_n :].any() and not (o_n == 2 and result[:, 1::2].any())
    expected = a[:, :-1].astype("d") @ b.astype("d")
    np.testing.assert_allclose(result[:, : n * o_n : o_n], expected, rtol=1e-5, atol=k * 1e-6)


@pytest.mark.parametrize(("types", "m", "n", "k", "apart"), LINED)
def test_lines_give_the_bits_of_strips(
    library: Library, types: tuple[str, str, str], m: int, n: int, k: int, apart: int
) -> None:
    generator, real = np.random.default_rng(7), types[0] in FLOATS
    scale = 1 if real else 100
    a = (scale * generator.standard_normal((m, k + 1))).astype(DTYPES[types[0]])
    b = (scale * generator.standard_normal((k, n))).astype(DTYPES[types[1]])
    found, ways = {}, {"lines": apart, "turned": apart, "strips": apart + 16}
    for what, line in (ways | ({"unknown": apart} if types == ("f32",) * 3 else {})).items():
        matrix = np.full((k, line), np.nan if real else 1 << 30, b.dtype)  # behind a line, nothing is read
        matrix[:, :n] = b
        found[what] = np.zeros((m, n + 3), DTYPES[types[2]])
        function = getattr(library.handle, f"{what}_{'_'.join(types)}_{m}_{n}_{k}_{apart}")
        function(pointer(a), pointer(matrix), pointer(found[what]))
    result = found["strips"].astype("d")
    for other in found.values():
        np.testing.assert_array_equal(other.astype("d"), result)
    assert not result[:, n:].any()
    expected, stored = a[:, :-1].astype("d") @ b.astype("d"), {"bf16": 2.0**-8}.get(types[2], 1e-5)
    np.testing.assert_allclose(result[:, :n], expected, rtol=stored, atol=k * 1e-6)
