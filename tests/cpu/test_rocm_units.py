"""Units on AMD's cards: the barrier of devices with several dies, and where assembly and fences stand."""

from __future__ import annotations

import re

import numpy as np
import pytest

from jax_cocktail.codegen.gpu import die_lines, header_bytes
from jax_cocktail.device.amd import MI300X, RX_7900_XTX
from tests.cpu.emulation import emulator
from tests.cpu.emulation.emulator import ROOT, WAVES_OF_32, WAVES_OF_64, EmulationError, Gpu
from tests.cpu.emulation.text import program

MOST = 19  # units, on eight dies: some have more of them than others
# Units read what others wrote one barrier ago, each step something new. operands: steps, barriers before;
# results: u32[units].
BARRIER = program(
    """
  i32 steps = ((const i32*)operands[0])[0];
  u32* wrong = (u32*)results[0] + unit->index;
  i32* cells = (i32*)workspace;  // [units, 4]
  i32 bad = 0;
  for (i32 step = 0; step < steps; ++step) {
    if (ck_lane() < 4) cells[4 * unit->index + ck_lane()] = 100 * step + unit->index;
    ck_arrive(unit);
    ck_wait(unit);
    for (i32 i = ck_lane(); i < 4 * unit->count; i += CK_THREADS) bad |= cells[i] != 100 * step + i / 4;
    ck_arrive(unit);
    ck_wait(unit);
  }
  if (bad) ck_fetch_add(wrong, 1u);
""",
    most_units=MOST,
    threads=128,
)


@pytest.mark.parametrize("gpu", [WAVES_OF_64, WAVES_OF_32], ids=str)
@pytest.mark.parametrize("units", [2, 7, 8, 9, MOST])
def test_barrier(units: int, gpu: Gpu) -> None:
    ready = emulator.build(BARRIER, gpu=gpu)
    for seed in range(4):
        wrong = np.zeros(units, np.uint32)
        ready.launch([np.array([8], np.int32)], [wrong], units=units, seed=seed)
        assert not wrong.any()


def test_barrier_under_the_thread_sanitizer() -> None:
    checked = emulator.build(BARRIER, sanitizer="thread", gpu=WAVES_OF_64)
    for units in (3, 10):
        wrong = np.zeros(units, np.uint32)
        checked.launch([np.array([3], np.int32)], [wrong], units=units, seed=units)
        assert not wrong.any()


RELAXED = {
    "ck_fetch_add": "__atomic_fetch_add(at, x, __ATOMIC_RELAXED)",
    "ck_store_release": "__atomic_store_n(at, x, __ATOMIC_RELAXED)",
}


@pytest.mark.parametrize("name", RELAXED)
def test_weaker_barriers_are_races(name: str) -> None:
    """Blocks of a die order each other by the die's counter, and others by what they are told."""
    other = f"CK_INLINE u32 other_{name}(u32* at, u32 x) {{ return {RELAXED[name]}, 0u; }}"
    other = other.replace("return __atomic_fetch_add(at, x, __ATOMIC_RELAXED), 0u", f"return {RELAXED[name]}")
    text = BARRIER.replace(
        '#include "cocktail_units.h"',
        f'#include "cocktail_base.h"\n{other}\n#define {name} other_{name}\n#include "cocktail_units.h"',
    )
    weaker = emulator.build(text, sanitizer="thread", gpu=WAVES_OF_64)
    with pytest.raises(EmulationError, match="data race"):
        weaker.launch([np.array([3], np.int32)], [np.zeros(10, np.uint32)], units=10)


@pytest.mark.parametrize(("gpu", "spec"), [(WAVES_OF_64, MI300X), (WAVES_OF_32, RX_7900_XTX)], ids=str)
def test_header_has_lines_for_the_dies(gpu: Gpu, spec) -> None:
    """The launch clears as many bytes as the text counts."""
    assert (gpu.dies, gpu.warp) == (spec.dies, spec.warp)
    said = np.zeros(2, np.int32)
    body = "i32* y = (i32*)results[0]; y[0] = CK_HEADER_BYTES;"
    body += "y[1] = i32((u8*)unit->tagged - (u8*)unit->header);"
    emulator.build(program(body, CK_TAGGED_WORDS=5), gpu=gpu).launch([np.zeros(1, np.int32)], [said], units=1)
    assert said[0] == header_bytes(5, 1 + die_lines(spec))
    assert said[1] + 16 * 5 <= said[0]


def test_assembly_and_fences_stand_in_one_file() -> None:
    def code(path):
        return re.sub(r"//[^\n]*", "", path.read_text())

    headers = sorted((ROOT / "rocm_src").glob("cocktail_*.h"))
    words = r"\basm\b|__builtin_amdgcn_fence|s_barrier|__hip_atomic"
    assert {path.name for path in headers if re.search(words, code(path))} == {"cocktail_gcn.h"}
