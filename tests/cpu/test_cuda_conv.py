"""Convolutions of gpu_src by blocks of emulated threads, against float64; and what nvcc makes of them."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jax_cocktail.codegen.contraction import conv_text
from jax_cocktail.codegen.text import STORAGE
from jax_cocktail.cost.conv_plan import ConvPlan, conv_case, conv_plan
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import TensorType, Value
from tests.cpu.cuda_text import CARDS, NO_NVCC, NVCC, block, nvcc_facts, program
from tests.cpu.emulation import emulator

DTYPES = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "u16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
}
FRACTION = {"f32": 24, "f64": 53, "bf16": 8, "f16": 11}  # bits
HEADERS = ("cocktail_conv.h",)
ALIGNMENT = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")


@dataclass(frozen=True)
class Conv:
    """One convolution; `kind` says how a block is meant to make it ("": as it likes).

    Tuples have an entry per spatial axis. features: of input and result. shift: elements by which x, w and
    the result lie behind a border of 256 bytes. own: the weights are in the unit's own memory.
    """

    name: str
    kind: str
    size: tuple[int, ...]
    taps: tuple[int, ...]
    features: tuple[int, int]
    stride: tuple[int, ...] = ()
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()
    lhs: tuple[int, ...] = ()
    rhs: tuple[int, ...] = ()
    groups: int = 1
    batch: int = 1
    dtype: str = "f32"
    result: str = ""
    precision: str = "CK_EXACT"
    shift: tuple[int, int, int] = (0, 0, 0)
    own: bool = False

    def __post_init__(self) -> None:
        for field, value in (("stride", 1), ("low", 0), ("lhs", 1), ("rhs", 1)):
            object.__setattr__(self, field, getattr(self, field) or (value,) * self.rank)
        object.__setattr__(self, "high", self.high or self.low)
        object.__setattr__(self, "result", self.result or self.dtype)

    @property
    def rank(self) -> int:
        return len(self.size)

    @property
    def out(self) -> tuple[int, ...]:
        axes = zip(self.size, self.taps, self.stride, self.low, self.high, self.lhs, self.rhs, strict=True)
        return tuple(
            ((n - 1) * lhs + 1 + low + high - (taps - 1) * rhs - 1) // stride + 1
            for n, taps, stride, low, high, lhs, rhs in axes
        )

    @property
    def depth(self) -> int:
        return math.prod(self.taps) * self.features[0] // self.groups

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.batch, *self.size, self.features[0])

    @property
    def w_shape(self) -> tuple[int, ...]:
        return (*self.taps, self.features[0] // self.groups, self.features[1])

    @property
    def o_shape(self) -> tuple[int, ...]:
        return (self.batch, *self.out, self.features[1])

    @property
    def fields(self) -> str:
        axes = (self.size, self.out, self.taps, self.stride, self.low, self.lhs, self.rhs)
        braces = ", ".join("{" + ", ".join(map(str, numbers)) + "}" for numbers in axes)
        return f"{self.batch}, {braces}, {self.features[0]}, {self.features[1]}, {self.groups}"

    def operator(self, rounds: bool) -> UOperator:
        attributes: dict[str, Any] = {
            **dict.fromkeys(("lhs_spec", "out_spec", "rhs_spec"), ()),
            "batch_group_count": 1,
            "feature_group_count": self.groups,
            "lhs_dilation": self.lhs,
            "padding": tuple(zip(self.low, self.high, strict=True)),
            "rhs_dilation": self.rhs,
            "window_strides": self.stride,
        }
        if rounds:
            attributes["precision"] = "default"
        arrays = (self.dtype, self.x_shape), (self.dtype, self.w_shape), (self.result, self.o_shape)
        names = {text: name for name, text in STORAGE.items()}
        x, w, o = (Value(i, TensorType(names[t], shape)) for i, (t, shape) in enumerate(arrays))
        return UOperator("conv", (x, w), (o,), tuple(sorted(attributes.items())))

    def plan(self, threads: int, scratch: int, gpu: emulator.Gpu) -> ConvPlan:
        rounds = self.precision == "CK_TF32" and CARDS[gpu].matrix_float32 != "none"
        plan = conv_plan(conv_case(self.operator(rounds)), block(threads, gpu), scratch)
        assert self.kind in ("", plan.kind.upper()), self.name
        return plan

    def text(self, number: int, plan: str) -> str:
        """The call with operands 2 number, 2 number + 1 and result `number`."""
        t, o, g = self.dtype, self.result, f"g{number}"
        weights = f"static_cast<const {t}*>(operands[{2 * number + 1}]) + {self.shift[1]}"
        lines = [
            "{",
            f"struct {g} {{ CkConv<{self.rank}> value = {{{self.fields}}}; }};",
            f"const {t}* w = {weights};",
        ]
        if self.own:
            lines += [
                f"{t}* copy = reinterpret_cast<{t}*>(unit->own) + {self.shift[1]};",
                f"for (i32 i = ck_lane(); i < {math.prod(self.w_shape)}; i += CK_THREADS) copy[i] = w[i];",
                "ck_block_barrier();",
                "w = copy;",
            ]
        x = f"static_cast<const {t}*>(operands[{2 * number}]) + {self.shift[0]}"
        target = f"static_cast<{o}*>(results[{number}]) + {self.shift[2]}"
        lines += [
            f"ck_conv_fixed<{t}, {o}, {self.rank}, {g}, {plan}, {self.precision}>({x}, w, {target});",
            "ck_block_barrier();",
            "}",
        ]
        return "\n".join(lines)


# Programs of several convolutions: threads of a block, bytes of scratch.
NARROW, WIDE, POOR = (64, 40 << 10), (256, 96 << 10), (128, 8 << 10)
SAME = {"low": (1, 1)}
BF, HALF, TF32 = {"dtype": "bf16"}, {"dtype": "f16"}, {"precision": "CK_TF32"}
CASES = {
    NARROW: (
        Conv("line", "FMA", (40,), (5,), (8, 12), low=(2,), high=(1,)),
        Conv("plane", "FMA", (7, 6), (3, 3), (12, 20), batch=2, **SAME),
        Conv("space", "FMA", (4, 5, 3), (2, 3, 2), (6, 10), stride=(1, 2, 1), low=(1, 0, 1)),
        Conv("stem", "FMA", (17, 15), (5, 5), (3, 9), stride=(2, 2), low=(2, 2)),
        Conv("cropped", "FMA", (12, 11), (3, 3), (8, 8), low=(-1, 2), high=(-2, -1)),
        Conv("holes", "FMA", (6, 5), (3, 2), (8, 8), lhs=(2, 3), low=(2, 1), high=(1, 2)),
        Conv("all_holes", "FMA", (6, 7), (3, 3), (4, 12), (2, 1), (3, 2), (1, 3), (3, 2), (2, 3), batch=2),
        Conv("apart", "FMA", (12, 13), (3, 2), (5, 8), rhs=(3, 2), low=(2, 1)),
        Conv("parts", "FMA", (7, 6), (3, 3), (24, 32), groups=2, **SAME),
        Conv("points", "FMA", (9, 8), (1, 1), (24, 18)),
        Conv("strided_points", "FMA", (11, 13), (1, 1), (20, 24), stride=(2, 3)),
        Conv("one_position", "FMA", (3, 3), (3, 3), (24, 40)),
        Conv("long_depth", "FMA", (3, 1), (3, 1), (130, 33), low=(1, 0)),
        Conv("unaligned_x", "FMA", (7, 6), (3, 3), (8, 16), shift=(1, 0, 0), **SAME),
        Conv("unaligned_w", "FMA", (7, 6), (3, 3), (8, 16), shift=(0, 3, 0), **SAME),
        Conv("unaligned_o", "FMA", (7, 6), (3, 3), (8, 16), shift=(0, 0, 2), **SAME),
        Conv("double", "FMA", (7, 6), (3, 3), (8, 12), dtype="f64", **SAME),
        Conv("bytes", "FMA", (7, 6), (3, 3), (8, 12), dtype="i8", **SAME),
        Conv("bytes_to_words", "FMA", (7, 6), (3, 3), (7, 9), dtype="i8", result="i32", **SAME),
        Conv("shorts", "FMA", (7, 6), (3, 3), (6, 12), dtype="u16", **SAME),
        Conv("words", "FMA", (7, 6), (3, 3), (4, 12), dtype="i32", **SAME),
        Conv("longs", "FMA", (7, 6), (3, 3), (4, 12), dtype="i64", **SAME),
        Conv("flags", "FMA", (7, 6), (3, 3), (4, 12), dtype="bool", **SAME),
        Conv("depthwise", "SIMPLE", (9, 8), (3, 3), (20, 20), groups=20, batch=2, **SAME),
        Conv("pairs", "SIMPLE", (9, 8), (3, 3), (10, 20), groups=10, stride=(2, 1), **SAME),
        Conv(
            "few_groups", "SIMPLE", (9, 8), (3, 2), (12, 9), groups=3, lhs=(1, 2), dtype="bf16", result="f32"
        ),
        Conv("tiny", "SIMPLE", (4, 3), (2, 2), (3, 2), batch=3, **SAME),
        Conv("few", "FEW", (9, 10), (3, 3), (16, 2), batch=2, **SAME),
        Conv("few_line", "FEW", (140,), (5,), (32, 1), low=(2,), high=(1,), stride=(2,)),
        Conv("few_space", "FEW", (5, 6, 7), (2, 3, 2), (8, 3), stride=(1, 2, 1), low=(1, 0, 1), batch=2),
        Conv("few_apart", "FEW", (12, 13), (3, 2), (12, 1), batch=3, rhs=(3, 2), low=(2, 1)),
        Conv("few_cropped", "FEW", (12, 11), (3, 3), (8, 2), low=(-1, 2), high=(-2, -1)),
        Conv("few_three", "FEW", (8, 8), (3, 3), (64, 3), **SAME),
        Conv("few_three_deep", "FEW", (4, 4), (3, 3), (256, 3), **SAME),
        Conv("few_points", "FEW", (19, 8), (1, 1), (64, 1), stride=(2, 1)),
        Conv("few_unaligned", "FEW", (9, 10), (3, 3), (16, 2), shift=(1, 0, 0), **SAME),
        Conv("few_double", "FEW", (9, 8), (3, 3), (16, 2), dtype="f64", **SAME),
        Conv("few_brain", "FEW", (9, 8), (3, 3), (16, 1), **BF, result="f32", **SAME),
        Conv("few_half", "FEW", (9, 8), (3, 3), (24, 4), **HALF, **SAME),
        Conv("shallow", "SIMPLE", (30,), (3,), (2, 70), low=(1,), shift=(1, 1, 1)),
    ),
    WIDE: (
        Conv("plane", "FMA", (7, 7), (3, 3), (16, 32), **SAME),
        Conv("rows", "FMA", (24, 24), (3, 3), (4, 8), **SAME),
        Conv("columns", "FMA", (2, 2), (1, 1), (32, 150), batch=2),
        Conv("few", "FEW", (16, 16), (3, 3), (32, 2), own=True, **SAME),
        Conv("few_tf32", "FEW", (8, 8), (3, 3), (64, 4), **TF32, **SAME),
        Conv("own_weights", "FMA", (7, 7), (3, 3), (8, 16), own=True, **SAME),
        Conv("tf32", "MMA", (7, 7), (3, 3), (16, 32), **TF32, **SAME),
        Conv("tf32_ragged", "MMA", (9, 11), (2, 3), (11, 37), **TF32, low=(1, 0), shift=(1, 1, 1)),
        Conv("tf32_parts", "MMA", (9, 9), (3, 3), (32, 64), **TF32, groups=2, stride=(2, 1), **SAME),
        Conv("tf32_holes", "MMA", (5, 6), (3, 3), (16, 24), **TF32, lhs=(2, 2), rhs=(1, 2), **SAME),
        Conv("brain", "MMA", (7, 7), (3, 3), (16, 32), **BF, **SAME),
        Conv("brain_wide", "MMA", (7, 7), (3, 3), (24, 40), **BF, result="f32", **SAME),
        Conv("half", "MMA", (7, 7), (3, 3), (16, 32), **HALF, **SAME),
        Conv("half_ragged", "MMA", (9, 11), (2, 3), (11, 37), **HALF, result="f32", shift=(1, 1, 1)),
        Conv("half_line", "MMA", (70,), (3,), (20, 24), **HALF, stride=(2,), low=(3,), batch=3),
    ),
    POOR: (
        Conv("narrow_tiles", "FMA", (9, 8), (3, 3), (8, 24), **SAME),
        Conv("double", "FMA", (9, 8), (3, 3), (8, 24), dtype="f64", **SAME),
        Conv("tf32", "MMA", (9, 8), (3, 3), (8, 24), **TF32, **SAME),
    ),
}
NOTHING = (64, 1 << 10)  # scratch that holds no tile
CASES[NOTHING] = (Conv("plane", "SIMPLE", (7, 6), (3, 3), (12, 20), dtype="f64", **SAME),)


def _program(
    cases: Sequence[Conv], threads: int, scratch: int, gpu: emulator.Gpu = emulator.CUDA
) -> str:
    """Text of a program that makes the convolutions in turn; in one kernel alone, to be built faster."""
    own = max((math.prod(c.w_shape) + c.shift[1]) * DTYPES[c.dtype].itemsize for c in cases)
    plans = [conv_text(case.plan(threads, scratch, gpu)) for case in cases]
    calls = "\n".join(case.text(i, plan) for i, (case, plan) in enumerate(zip(cases, plans, strict=True)))
    return program(
        f"if constexpr (RESIDENT) {{\n{calls}\n}}",
        threads=threads,
        scratch=scratch,
        operands=2 * len(cases),
        results=len(cases),
        own=-(-own // 128) * 128 if any(c.own for c in cases) else 0,
        headers=HEADERS,
    )


def _values(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype in FRACTION:
        return generator.standard_normal(shape).astype(DTYPES[dtype])
    if dtype == "bool":
        return generator.random(shape) < 0.2
    limits = np.iinfo(DTYPES[dtype])
    return generator.integers(limits.min, limits.max, shape, DTYPES[dtype], endpoint=True)


def _shifted(values: np.ndarray, shift: int) -> np.ndarray:
    """One row of memory that begins `shift` elements earlier."""
    return np.concatenate([np.zeros(shift, values.dtype), values.ravel()])


def _expected(x: np.ndarray, w: np.ndarray, c: Conv) -> np.ndarray:
    """Element by element of the kernel over the padded, dilated image; x, w: wide enough for the sums."""
    holes = [(n - 1) * d + 1 for n, d in zip(c.size, c.lhs, strict=True)]
    image = np.zeros(
        (c.batch, *(n + lo + hi for n, lo, hi in zip(holes, c.low, c.high, strict=True)), c.features[0]),
        x.dtype,
    )
    spread = np.zeros((c.batch, *holes, c.features[0]), x.dtype)
    spread[(slice(None), *(slice(None, None, d) for d in c.lhs))] = x
    to, source = [slice(None)], [slice(None)]
    for n, lo, hi in zip(holes, c.low, c.high, strict=True):
        to.append(slice(max(lo, 0), n + lo + hi - max(hi, 0)))
        source.append(slice(max(-lo, 0), n - max(-hi, 0)))
    image[tuple(to)] = spread[tuple(source)]
    ins, outs = c.features[0] // c.groups, c.features[1] // c.groups
    o = np.zeros(c.o_shape, x.dtype)
    for tap in np.ndindex(*c.taps):
        steps = zip(tap, c.rhs, c.out, c.stride, strict=True)
        seen = image[(slice(None), *(slice(k * d, k * d + (n - 1) * s + 1, s) for k, d, n, s in steps))]
        for g in range(c.groups):
            left, right = seen[..., g * ins : (g + 1) * ins], w[tap][:, g * outs : (g + 1) * outs]
            o[..., g * outs : (g + 1) * outs] += left @ right
    return o


def _check(c: Conv, x: np.ndarray, w: np.ndarray, o: np.ndarray) -> None:
    if c.dtype not in FRACTION:
        wide = np.dtype(np.int64)
        expected = _expected(x.astype(wide), w.astype(wide), c)
        np.testing.assert_array_equal(o, expected.astype(DTYPES[c.result]))
        return
    wide = np.dtype(np.longdouble if c.dtype == "f64" else np.float64)
    a, b = x.astype(wide), w.astype(wide)
    expected, magnitude = _expected(a, b, c), _expected(abs(a), abs(b), c)
    rounding = (c.depth + 2) * 2.0 ** -(53 if c.dtype == "f64" else 24)
    error = abs(o.astype(wide) - expected)
    if (c.precision, c.kind) == ("CK_TF32", "MMA"):  # factors lose up to 2^-11 of themselves, and some do
        assert error.max() > rounding * magnitude.max()
        rounding += 2.0**-10 + 2.0**-22
    bound = rounding * magnitude + 2.0 ** -FRACTION[c.result] * abs(expected)
    assert (error <= bound).all(), f"worst: {(error / np.maximum(bound, 1e-30)).max()} of the bound"


def _run(cases: Sequence[Conv], text: str, seed: int, **options: object) -> None:
    """Launches a program of `cases` and checks every result and what lies before it."""
    generator = np.random.default_rng(seed)
    given = [[_values(generator, s, c.dtype) for s in (c.x_shape, c.w_shape)] for c in cases]
    operands = [
        _shifted(values, shift)
        for c, both in zip(cases, given, strict=True)
        for values, shift in zip(both, c.shift[:2], strict=True)
    ]
    results = [np.ones(math.prod(c.o_shape) + c.shift[2], DTYPES[c.result]) for c in cases]
    built = emulator.build(text, **options)
    built.launch(operands, results, units=1, kernel="ck_resident", seed=seed)
    for c, (x, w), o in zip(cases, given, results, strict=True):
        assert (o[: c.shift[2]] == 1).all(), f"{c.name}: written before the result"
        try:
            _check(c, x, w, o[c.shift[2] :].reshape(c.o_shape))
        except AssertionError as error:
            raise AssertionError(f"{c.name}: {error}") from error


@pytest.mark.parametrize("gpu", emulator.EVERY_GPU[1:], ids=str)
@pytest.mark.parametrize("shape", [NARROW, WIDE], ids=str)
def test_convolutions_of_waves(shape: tuple[int, int], gpu: emulator.Gpu) -> None:
    """On AMD's cards, whose matrix instructions take tiles of another shape and do not round float32."""
    cases = [dataclasses.replace(case, kind="") for case in CASES[shape]]
    _run(cases, _program(cases, *shape, gpu), 3, gpu=gpu)


@pytest.mark.parametrize("shape", CASES, ids=str)
def test_convolutions(shape: tuple[int, int]) -> None:
    _run(CASES[shape], _program(CASES[shape], *shape), 3)


def _random_conv(source: random.Random, name: str) -> Conv:
    """Any small convolution with a result."""
    dtypes = [("f32", "f32")] * 5 + [("bf16", "bf16"), ("f16", "f32"), ("f64", "f64"), ("i8", "i32")]
    while True:
        rank = source.randint(1, 3)

        def numbers(*choice: int, rank: int = rank) -> tuple[int, ...]:
            return tuple(source.choice(choice) for _ in range(rank))

        groups = source.choice((1, 1, 1, 2, 3))
        features = (groups * source.choice((1, 3, 4, 8, 20)), groups * source.choice((1, 4, 7, 8, 24, 33)))
        dtype, result = source.choice(dtypes)
        conv = Conv(
            name,
            "",
            numbers(*range(1, {1: 40, 2: 10, 3: 6}[rank])),
            numbers(1, 2, 3, 4),
            features,
            stride=numbers(1, 1, 2, 3),
            low=numbers(-1, 0, 1, 2),
            high=numbers(-1, 0, 1, 2),
            lhs=numbers(1, 1, 2, 3),
            rhs=numbers(1, 1, 2),
            groups=groups,
            batch=source.randint(1, 3),
            dtype=dtype,
            result=result,
            shift=(source.choice((0, 0, 1)), source.choice((0, 0, 1)), source.choice((0, 0, 1))),
        )
        cropped = (
            n + min(lo, 0) + min(hi, 0) for n, lo, hi in zip(conv.size, conv.low, conv.high, strict=True)
        )
        if min(conv.out) > 0 and min(cropped) > 0 and math.prod(conv.o_shape) * conv.depth < 200_000:
            return conv


@pytest.mark.parametrize("shape", [(96, 48 << 10), (512, 12 << 10)], ids=str)
def test_random_convolutions(shape: tuple[int, int]) -> None:
    source = random.Random(shape[0])
    cases = [_random_conv(source, f"random {i}") for i in range(10)]
    _run(cases, _program(cases, *shape), 4)


def _named(shape: tuple[int, int], *names: str) -> list[Conv]:
    found = [case for case in CASES[shape] if case.name in names]
    assert len(found) == len(names)
    return found


@pytest.mark.parametrize(
    ("sanitizer", "shape", "names"),
    [
        ("address", NARROW, ("all_holes", "cropped", "unaligned_w", "unaligned_o", "stem", "depthwise")),
        ("address", WIDE, ("tf32_ragged", "half_ragged", "columns")),
        ("thread", NARROW, ("plane", "stem", "few", "shallow")),
        ("thread", WIDE, ("tf32_ragged", "brain", "own_weights")),
    ],
)
def test_sanitized(sanitizer: emulator.Sanitizer, shape: tuple[int, int], names: Sequence[str]) -> None:
    cases = _named(shape, *names)
    flags = ALIGNMENT if sanitizer == "address" else ()
    _run(cases, _program(cases, *shape), 5, sanitizer=sanitizer, flags=flags)


@pytest.mark.parametrize("precision", ["CK_EXACT", "CK_TF32"])
def test_infinity_stays_where_it_is_read(precision: str) -> None:
    """What fills up tiles is never multiplied by elements of the arrays: that would make NaNs."""
    kind = "FMA" if precision == "CK_EXACT" else "MMA"
    case = Conv("ragged", kind, (40,), (5,), (7, 13), low=(0,), precision=precision)
    x, w = (np.ones(shape, np.float32) for shape in (case.x_shape, case.w_shape))
    x[0, 20:, 3] = np.inf
    o = np.zeros(case.o_shape, np.float32)
    built = emulator.build(_program([case], 64, 40 << 10))
    built.launch([x, w], [o], units=1, kernel="ck_resident")
    np.testing.assert_array_equal(o[0, :16], np.full((16, 13), case.depth))
    np.testing.assert_array_equal(o[0, 16:], np.full((20, 13), np.inf))


# Slices that a block gets of residual networks' layers.
_SLICES = (
    Conv("slice", "FMA", (7, 7), (3, 3), (64, 64), **SAME),
    Conv("stem", "FMA", (56, 56), (7, 7), (3, 16), stride=(2, 2), low=(3, 3)),
    Conv("strided", "FMA", (28, 28), (3, 3), (16, 32), stride=(2, 2), **SAME),
    Conv("points", "FMA", (14, 14), (1, 1), (64, 128)),
    Conv("one_position", "FMA", (1, 1), (1, 1), (512, 64)),
    Conv("depthwise", "SIMPLE", (14, 14), (3, 3), (64, 64), groups=64, **SAME),
    Conv("transposed", "FMA", (9, 9), (3, 3), (16, 32), lhs=(2, 2), rhs=(2, 2), **SAME),
    Conv("space", "FMA", (6, 6, 6), (3, 3, 3), (8, 16), low=(1, 1, 1)),
    Conv("double", "FMA", (7, 7), (3, 3), (16, 64), dtype="f64", **SAME),
)
_TENSOR = (
    Conv("slice_tf32", "MMA", (7, 7), (3, 3), (64, 64), **TF32, **SAME),
    Conv("strided_tf32", "MMA", (28, 28), (3, 3), (16, 32), **TF32, stride=(2, 2), **SAME),
    Conv("slice_brain", "MMA", (7, 7), (3, 3), (64, 64), **BF, **SAME),
    Conv("slice_half", "MMA", (7, 7), (3, 3), (64, 64), **HALF, result="f32", **SAME),
    Conv("batch", "MMA", (7, 7), (3, 3), (64, 64), **TF32, batch=64, **SAME),
)
_MODELS = _SLICES + _TENSOR


@pytest.mark.skipif(NVCC is None, reason=NO_NVCC)
@pytest.mark.parametrize(("arch", "threads"), [("sm_80", 512), ("sm_90", 256), ("sm_100", 128)])
def test_no_spills(tmp_path: Path, arch: str, threads: int) -> None:
    facts = nvcc_facts(_program(_MODELS, threads, 96 << 10), tmp_path, arch)
    assert facts["ck_resident"].registers >= 64  # the sums are in them
    assert (facts["ck_resident"].spilled, facts["ck_resident"].stack) == (0, 0)


def test_an_infinite_weight_of_few_output_features():
    """It makes infinities of one output feature, and no NaN: no lane adds what is not there."""
    case = Conv("few", "FEW", (70,), (5,), (24, 2))
    x, w = (np.ones(shape, np.float32) for shape in (case.x_shape, case.w_shape))
    w[2, 0, 0] = np.inf
    o = np.zeros(case.o_shape, np.float32)
    built = emulator.build(_program([case], 64, 40 << 10))
    built.launch([x, w], [o], units=1, kernel="ck_resident")
    np.testing.assert_array_equal(o[0], np.tile(np.float32([np.inf, case.depth]), (66, 1)))
