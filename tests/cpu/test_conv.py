"""Convolutions of known shape: each kernel of cpu_src against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from tests.cpu.arrays import DTYPES, Library, compiled, pointer


@dataclass(frozen=True)
class Shape:
    """A two-dimensional convolution; `kernel` says which kernel of cpu_src is meant to make it."""

    name: str
    kernel: str
    size: tuple[int, int]
    taps: tuple[int, int]
    features: tuple[int, int]
    stride: int = 1
    pad: tuple[int, int] = (0, 0)
    dilation: int = 1
    groups: int = 1
    batch: int = 2
    dtype: str = "f32"

    @property
    def out(self) -> tuple[int, int]:
        reach = [(t - 1) * self.dilation + 1 for t in self.taps]
        sizes = zip(self.size, self.pad, reach, strict=True)
        h, w = ((n + 2 * p - r) // self.stride + 1 for n, p, r in sizes)
        return h, w

    @property
    def fields(self) -> str:
        twice = [(x, x) for x in (self.stride, 1, self.dilation)]
        pairs = (self.size, self.out, self.taps, twice[0], self.pad, twice[1], twice[2])
        braces = ", ".join(f"{{{x}, {y}}}" for x, y in pairs)
        return f"{{{self.batch}, {braces}, {self.features[0]}, {self.features[1]}, {self.groups}}}"


SHAPES = (
    Shape("blocks", "DIRECT", (9, 19), (3, 3), (16, 48), pad=(1, 1)),
    Shape("strided", "DIRECT", (17, 17), (3, 3), (32, 32), stride=2, pad=(1, 1)),
    Shape("narrow_line", "DIRECT", (5, 4), (3, 3), (16, 160), pad=(1, 1)),
    Shape("apart", "DIRECT", (12, 21), (3, 2), (16, 16), pad=(2, 1), dilation=2),
    Shape("parts", "DIRECT", (6, 10), (3, 3), (32, 64), pad=(1, 1), groups=2),
    Shape("double", "DIRECT", (6, 10), (3, 3), (16, 16), pad=(1, 1), dtype="f64"),
    Shape("stem", "PRODUCTS", (23, 25), (7, 7), (3, 20), stride=2, pad=(3, 3)),
    Shape("wide", "PRODUCTS", (7, 11), (3, 3), (20, 200), pad=(1, 1)),
    Shape("skipping", "PRODUCTS", (15, 15), (1, 1), (24, 70), stride=2),
    Shape("odd", "PRODUCTS", (9, 10), (2, 3), (5, 19), pad=(1, 1), dilation=3),
    Shape("wide_parts", "PRODUCTS", (9, 10), (3, 3), (10, 42), pad=(1, 1), groups=2),
    Shape("brain", "PRODUCTS", (9, 10), (3, 3), (16, 32), pad=(1, 1), dtype="bf16"),
    Shape("bytes", "PRODUCTS", (9, 10), (3, 3), (16, 32), pad=(1, 1), dtype="i8"),
    Shape("points", "POINTWISE", (9, 12), (1, 1), (40, 100)),
    Shape("point_parts", "POINTWISE", (5, 6), (1, 1), (24, 64), groups=2),
    Shape("depthwise", "POSITIONS", (9, 12), (3, 3), (40, 40), pad=(1, 1), groups=40),
    Shape("pairs", "POSITIONS", (9, 12), (3, 3), (40, 80), pad=(1, 1), groups=40),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    lines = ['#include "cocktail_conv.h"\n']
    for s in SHAPES:
        lines.append(
            f"CK_EXPORT void conv_{s.name}(const {s.dtype}* x, const {s.dtype}* w, {s.dtype}* o) {{\n"
            f"  struct shape {{ CkConv<2> value = {s.fields}; }};\n"
            f"  ck_conv_fixed<{s.dtype}, {s.dtype}, 2, shape>(x, w, o);\n}}\n"
            f"CK_EXPORT int kernel_{s.name}() {{ return ck_conv_kernel<{s.dtype}, {s.dtype}>"
            f"(CkConv<2>{s.fields}) == CK_CONV_{s.kernel}; }}\n"
        )
    with compiled("".join(lines), tmp_path_factory.mktemp("cache")) as library:
        yield library


def _expected(x: np.ndarray, w: np.ndarray, s: Shape) -> np.ndarray:
    """Taps one by one over the padded image."""
    kind = np.float64 if s.dtype != "i8" else np.int8
    padded = np.pad(x.astype(kind), ((0, 0), (s.pad[0],) * 2, (s.pad[1],) * 2, (0, 0)))
    h, width = s.out
    out = np.zeros((s.batch, h, width, s.features[1]), kind)
    ins, outs = s.features[0] // s.groups, s.features[1] // s.groups
    for i, j in np.ndindex(*s.taps):
        rows = slice(i * s.dilation, i * s.dilation + (h - 1) * s.stride + 1, s.stride)
        columns = slice(j * s.dilation, j * s.dilation + (width - 1) * s.stride + 1, s.stride)
        pixels = padded[:, rows, columns]
        for g in range(s.groups):
            weights = w[i, j, :, g * outs : (g + 1) * outs].astype(kind)
            out[..., g * outs : (g + 1) * outs] += pixels[..., g * ins : (g + 1) * ins] @ weights
    return out


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_convolution(library: Library, shape: Shape) -> None:
    generator = np.random.default_rng(9)
    dtype = DTYPES[shape.dtype]
    ins, outs = shape.features

    def array(*sizes: int) -> np.ndarray:
        if shape.dtype == "i8":
            return generator.integers(-128, 128, sizes).astype(dtype)
        return generator.standard_normal(sizes).astype(dtype)

    x, w = array(shape.batch, *shape.size, ins), array(*shape.taps, ins // shape.groups, outs)
    o = np.zeros((shape.batch, *shape.out, outs), dtype)
    getattr(library.handle, f"conv_{shape.name}")(pointer(x), pointer(w), pointer(o))
    expected = _expected(x, w, shape)
    if shape.dtype == "i8":
        np.testing.assert_array_equal(o, expected)
        return
    tolerance = 2.0**-7 if shape.dtype == "bf16" else 2e-5
    np.testing.assert_allclose(o.astype("d"), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.kernel != "DIRECT"], ids=lambda s: s.name)
def test_choice_of_kernel(library: Library, shape: Shape) -> None:
    """The shapes above reach the kernels they are meant for (DIRECT depends on the vector width)."""
    assert getattr(library.handle, f"kernel_{shape.name}")() == 1
