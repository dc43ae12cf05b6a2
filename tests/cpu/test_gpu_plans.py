"""The cost model's twins of the templates' plans, against the headers on random products and convolutions."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from jax_cocktail.cost.conv_plan import ConvAxis, ConvCase, conv_plan
from jax_cocktail.cost.dot_plan import DotForm, dot_plan
from jax_cocktail.device.amd import MI300X, RX_7900_XTX
from jax_cocktail.device.nvidia import H200
from jax_cocktail.utask.tensor_order import PACKED
from tests.cpu.emulation import emulator, text

NUMBER = 600
PATHS = ("serial", "columns", "lanes", "fma", "mma")
KINDS = ("simple", "fma", "mma", "few")
SIZES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 80, 100, 256, 512)

DOT = """
  const i64* f = (const i64*)operands[0];
  i64* o = (i64*)results[0];
  if (ck_lane() != 0) return;
  for (i32 i = 0; i < {number}; ++i, f += 15, o += 15) {{
    const CkDotForm form = {{f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8],
                             i32(f[9]), i32(f[10]), i32(f[11]), f[12] != 0, i32(f[13])}};
    const CkDotPlan p = ck_dot_plan(form, CK_THREADS, f[14]);
    const i64 found[] = {{p.path, p.turned, p.v, p.kv, p.lanes, p.columns, p.parts, p.bm, p.bn, p.bk,
                          p.tm, p.tn, p.slices, p.stages, p.scratch}};
    for (i32 j = 0; j < 15; ++j) o[j] = found[j];
  }}
"""
CONV = """
  const i64* f = (const i64*)operands[0];
  i64* o = (i64*)results[0];
  if (ck_lane() != 0) return;
  for (i32 i = 0; i < {number}; ++i, f += 20, o += 11) {{
    const CkConvSizes sizes = {{i32(f[0]), i32(f[1]), i32(f[2]), i32(f[2] / f[3]), i32(f[3]), false}};
    const CkConvAxis x = {{i32(f[8]), i32(f[9]), i32(f[10]), i32(f[11]), 0, i32(f[12])}};
    const CkConvAxis y = {{i32(f[13]), i32(f[14]), i32(f[15]), i32(f[16]), 0, i32(f[17])}};
    const i32 item = i32(f[5]), a = ck_conv_chunk(i32(f[3]), item), b = ck_conv_chunk(i32(f[1]), item);
    const CkConvCase c = {{sizes, i32(f[4]), item, i32(f[6]), i32(f[7]), a, b, i32(f[19]), x, y}};
    CkConvPlan p = {{CK_CONV_SIMPLE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1}};
    if (!ck_conv_is_small(sizes, c.groups)) {{
      p = ck_conv_fma_plan(c, p);
      if (c.step) p = ck_conv_mma_plan(c, p);
      if (f[18]) p = ck_conv_few_plan(c, p);
    }}
    const i64 found[] = {{p.kind, p.rows, p.columns, p.depth, p.stages, p.slices, p.row_parts, p.column_parts,
                          p.height, p.width, p.cost}};
    for (i32 j = 0; j < 11; ++j) o[j] = found[j];
  }}
"""


# By what is emulated: a card whose waves and matrix instructions are such.
CARDS = {emulator.CUDA: H200, emulator.WAVES_OF_64: MI300X, emulator.WAVES_OF_32: RX_7900_XTX}


def answers(
    body: str, header: str, given: np.ndarray, width: int, threads: int, gpu: emulator.Gpu
) -> np.ndarray:
    """What the header says of each row of numbers."""
    source = text.program(
        body.format(number=NUMBER), headers=("cocktail_arith.h", header), threads=threads, most_units=1
    )
    found = np.zeros((NUMBER, width), np.int64)
    emulator.build(source, gpu=gpu).launch([given], [found], units=1)
    return found


def dot_forms(rng: np.random.Generator) -> list[tuple[DotForm, int]]:
    def form() -> DotForm:
        m, n, k = (int(rng.choice(SIZES)) for _ in range(3))
        pad = int(rng.choice((0, 0, 1, 4, 100)))
        a = (k + pad, 1) if rng.integers(3) else (1, m + pad)
        b = (n + pad, 1) if rng.integers(3) else (1, k + pad)
        o = (n + pad, 1) if rng.integers(3) else (1, m + pad)
        kind, size = int(rng.integers(4)), int(rng.choice((1, 4, 8)))
        sizes = ((4, 4, 4, True), (2, 2, 4, True), (4, 4, 4, False), (size, 4, 8, False))[kind]
        terms = 1
        if sizes[3] and rng.integers(4) == 0:  # packed for tensor cores
            n, k, b = 8 * n, 32 * k, (PACKED, 0)
            terms = int(rng.integers(1, 3))
        return DotForm(m, n, k, *a, *b, *o, *sizes, terms)

    return [(form(), int(rng.choice((1024, 8192, 36864, 65536)))) for _ in range(NUMBER)]


@pytest.mark.parametrize("gpu", CARDS, ids=str)
@pytest.mark.parametrize("threads", [64, 256, 512])
def test_plans_of_products_are_those_of_the_header(threads, gpu):
    block = CARDS[gpu].block(threads)
    cases = dot_forms(np.random.default_rng(threads))
    given = np.array([(*astuple(form), room) for form, room in cases], np.int64)
    found = answers(DOT, "cocktail_dot_plan.h", given, 15, threads, gpu)
    for (form, room), row in zip(cases, found, strict=True):
        ours, theirs = astuple(dot_plan(form, block, room)), (PATHS[row[0]], *map(int, row[1:]))
        compared = 2 if theirs[0] == "serial" else None  # the other fields are what the search left
        assert ours[:compared] == theirs[:compared], form


def conv_cases(rng: np.random.Generator) -> list[tuple[ConvCase, int]]:
    def axis(taps: int) -> ConvAxis:
        out, stride, spread = (
            int(rng.choice(numbers)) for numbers in ((1, 4, 8, 15, 32), (1, 1, 2), (1, 1, 3))
        )
        return ConvAxis(out * stride + (taps - 1) * spread, out, taps, stride, spread)

    def case() -> ConvCase:
        features, taps = int(rng.choice((1, 3, 4, 16, 32, 64))), int(rng.choice((1, 3, 5)))
        x, y, outer, deep = axis(taps), axis(taps), int(rng.choice((1, 2, 6))), int(rng.choice((1, 1, 2)))
        rows, columns = x.out * y.out * outer, int(rng.choice((1, 2, 3, 4, 10, 16, 64)))
        types = ((4, 4, 0), (4, 4, 8), (2, 4, 16), (8, 8, 0))[int(rng.integers(4))]
        sizes = (rows, columns, features * taps * taps * deep, features, int(rng.choice((1, 1, 2))), *types)
        return ConvCase(*sizes, x, y, bool(rng.integers(4)))

    return [(case(), int(rng.choice((8192, 49152)))) for _ in range(NUMBER)]


def flat(case: ConvCase) -> list[int]:
    """The numbers of a case, axes included."""
    return [int(n) for field in astuple(case) for n in (field if isinstance(field, tuple) else (field,))]


@pytest.mark.parametrize("gpu", CARDS, ids=str)
@pytest.mark.parametrize("threads", [128, 256])
def test_plans_of_convolutions_are_those_of_the_header(threads, gpu):
    block = CARDS[gpu].block(threads)
    cases = conv_cases(np.random.default_rng(threads))
    given = np.array([(*flat(case), room) for case, room in cases], np.int64)
    found = answers(CONV, "cocktail_conv_plan.h", given, 11, threads, gpu)
    for (case, room), row in zip(cases, found, strict=True):
        theirs = (KINDS[row[0]], *map(int, row[1:]))
        assert astuple(conv_plan(case, block, room)) == theirs, case
