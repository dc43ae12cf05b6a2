"""A plan that a block cannot carry out is an error of the compiler."""

from __future__ import annotations

import pytest

from tests.cpu import cuda_text
from tests.cpu.emulation import emulator

DOT = "ck_dot_fixed<f32, f32, f32, {}, {}>(1, (const f32*)operands[0], 0, (const f32*)operands[0], 0, y, 0);"
CONV = (
    "struct g {{ CkConv<1> value = {{1, {{40}}, {{36}}, {{5}}, {{1}}, {{0}}, {{1}}, {{1}}, 8, {}, 1}}; }};"
    " ck_conv_fixed<f32, f32, 1, g, {}>((const f32*)operands[0], (const f32*)operands[0], y);"
)
FEW, MANY = "1, 64, 256, 0, 1, 64, 1, 0, 1", "64, 64, 256, 256, 1, 64, 1, 64, 1"
PACKED = "64, 64, 256, 256, 1, kCkDotPacked, 0, 64, 1"
# 128 threads, 16384 bytes of scratch
GOOD = (
    (DOT, FEW, "CkDotColumns<4, 4, 16, 4>"),
    (DOT, MANY, "CkDotTiles<CK_DOT_FMA, 32, 32, 32, 4, 4, 2, 1>"),
    (CONV, "12", "CkConvTiles<CK_CONV_FMA, 16, 2, 1, 9, 3, 4, 4>"),
    (CONV, "2", "CkConvBoxes<2, 4, 1, 4>"),
)
BAD = (
    ("another plan", DOT, FEW, "CkDotColumns<4, 4, 12, 4>"),  # no power of two
    ("another plan", DOT, FEW, "CkDotColumns<4, 4, 16, 8>"),  # warps
    ("tiles of a plan fit", DOT, MANY, "CkDotTiles<CK_DOT_FMA, 64, 64, 32, 8, 4, 1, 2>"),
    ("has the workers", DOT, MANY, "CkDotTiles<CK_DOT_FMA, 32, 32, 32, 2, 2, 2, 1>"),
    ("do not take these", DOT, MANY, "CkDotTiles<CK_DOT_MMA, 32, 32, 32, 1, 2, 1, 1>"),
    ("only tensor cores", DOT, PACKED, "CkDotSerial"),
    ("tiles of a plan fit", CONV, "12", "CkConvTiles<CK_CONV_FMA, 64, 4, 1, 9, 3, 4, 4>"),
    ("has the workers", CONV, "12", "CkConvTiles<CK_CONV_FMA, 16, 2, 8, 9, 3, 4, 4>"),
    ("do not take these", CONV, "12", "CkConvTiles<CK_CONV_MMA, 16, 2, 1, 2, 1, 1, 2>"),
    ("another plan", CONV, "2", "CkConvBoxes<2, 64, 1, 4>"),
)


def build(*calls: str) -> None:
    body = "\n".join(f"{{ f32* y = (f32*)results[0]; {call} ck_block_barrier(); }}" for call in calls)
    headers = ("cocktail_dot.h", "cocktail_conv.h")
    emulator.build(cuda_text.program(body, threads=128, scratch=16384, headers=headers))


def test_plans_that_a_block_can_carry_out():
    build(*(call.format(numbers, plan) for call, numbers, plan in GOOD))


@pytest.mark.parametrize(("said", "call", "numbers", "plan"), BAD, ids=[plan for *_, plan in BAD])
def test_a_plan_that_a_block_cannot_carry_out_is_refused(said, call, numbers, plan):
    with pytest.raises(emulator.EmulationError, match=said):
        build(call.format(numbers, plan))
