"""The plans of products and convolutions on GPUs: a block can carry them out, whatever the sizes."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.cost.conv_plan import ConvAxis, ConvCase, conv_plan
from jax_cocktail.cost.dot_plan import DotForm, DotPlan, dot_plan
from jax_cocktail.device.amd import MI300X, RX_7900_XTX
from jax_cocktail.device.block import Block
from jax_cocktail.device.nvidia import H200
from jax_cocktail.utask.tensor_order import PACKED

CARDS = (H200, MI300X, RX_7900_XTX)
SIZES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 80, 100, 256, 512)
ROOMS = (1024, 8192, 36864, 65536)


def dot_form(rng: np.random.Generator) -> DotForm:
    m, n, k = (int(rng.choice(SIZES)) for _ in range(3))
    pad = int(rng.choice((0, 0, 1, 4, 100)))
    a, b, o = (
        (row + pad, 1) if rng.integers(3) else (1, column + pad) for row, column in ((k, m), (n, k), (n, m))
    )
    size = int(rng.choice((1, 4, 8)))
    sizes = ((4, 4, 4, True), (2, 2, 4, True), (4, 4, 4, False), (size, 4, 8, False))[int(rng.integers(4))]
    if sizes[3] and rng.integers(4) == 0:
        return DotForm(m, 8 * n, 32 * k, *a, PACKED, 0, *o, *sizes, int(rng.integers(1, 3)))
    return DotForm(m, n, k, *a, *b, *o, *sizes)


def check_few_rows(f: DotForm, p: DotPlan, block: Block) -> None:
    """Asserts what `ck_dot_is_possible` asks for."""
    assert f.k % p.v == 0 if p.path == "lanes" else f.n % p.v == f.k % p.kv == 0
    assert p.lanes in (1, 2, 4, 8, 16, 32, 64) and p.lanes <= block.warp and 1 <= p.parts <= block.warps
    shares = block.warps * f.m * p.columns * f.w_size
    assert p.scratch == (shares if p.parts > 1 else 0)


def check_tiles(f: DotForm, p: DotPlan, block: Block) -> None:
    mma = p.path == "mma"
    rows, columns = (16 * p.tm, block.cell_columns * p.tn) if mma else (p.tm, p.tn)
    assert p.bm % rows == 0 and p.bn % columns == 0 and p.stages > 0
    assert p.bm // rows * (p.bn // columns) * p.slices <= (block.warps if mma else block.threads)
    assert p.bk * (f.a_size if mma else f.w_size) % (64 if mma else 16) == 0


@pytest.mark.parametrize("spec", CARDS, ids=lambda spec: spec.arch)
@pytest.mark.parametrize("threads", [64, 256, 1024])
def test_a_block_can_make_a_product_by_its_plan(threads, spec):
    rng, block = np.random.default_rng(threads), spec.block(threads)
    paths = set()
    for _ in range(60):
        form, room = dot_form(rng), int(rng.choice(ROOMS))
        plan = dot_plan(form, block, room)
        made = (form.turned() if plan.turned else form).normal()
        assert plan.scratch <= room
        if plan.path in ("columns", "lanes"):
            check_few_rows(made, plan, block)
        elif plan.path != "serial":
            check_tiles(made, plan, block)
        paths.add(plan.path)
    assert len(paths) == 5


def conv_case(rng: np.random.Generator) -> ConvCase:
    def axis(taps: int) -> ConvAxis:
        out, stride, spread = (int(rng.choice(n)) for n in ((1, 4, 8, 15, 32), (1, 1, 2), (1, 1, 3)))
        return ConvAxis(out * stride + (taps - 1) * spread, out, taps, stride, spread)

    features, taps = int(rng.choice((1, 3, 4, 16, 32, 64))), int(rng.choice((1, 3, 5)))
    x, y, outer, columns = axis(taps), axis(taps), int(rng.choice((1, 6))), int(rng.choice((1, 2, 4, 10, 64)))
    types = ((4, 4, 0), (4, 4, 8), (2, 4, 16), (8, 8, 0))[int(rng.integers(4))]
    sizes = x.out * y.out * outer, columns, features * taps * taps, features, int(rng.choice((1, 1, 2)))
    return ConvCase(*sizes, *types, x, y, bool(rng.integers(4)))


@pytest.mark.parametrize("spec", CARDS, ids=lambda spec: spec.arch)
@pytest.mark.parametrize("threads", [128, 256])
def test_a_block_can_make_a_convolution_by_its_plan(threads, spec):
    rng, block, kinds = np.random.default_rng(threads), spec.block(threads), set()
    for _ in range(30):
        case = conv_case(rng)
        plan = conv_plan(case, block, 49152)
        kinds.add(plan.kind)
        if plan.kind in ("fma", "mma"):
            workers = plan.row_parts * plan.column_parts * plan.slices
            assert workers <= (block.threads if plan.kind == "fma" else block.warps)
            assert plan.depth % case.a_chunk == 0 and block.threads % (plan.depth // case.a_chunk) == 0
            step = 4 if plan.kind == "fma" else case.step
            assert plan.stages >= 2 and plan.depth % (plan.slices * step) == 0
        elif plan.kind == "few":
            assert plan.column_parts <= block.warp and case.features % plan.depth == 0 and case.boxes
    assert kinds == {"simple", "fma", "mma", "few"}
