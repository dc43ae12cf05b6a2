"""Reading the machine code of kernels: opcodes, and loads of spilled registers in loops."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jax_cocktail.build.device import build_device_program
from tests.cpu import sass
from tests.cpu.cuda_compilers import EACH_COMPILER, SPILLING, Choose, program


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder in use."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(folder))
    return folder


needs_tools = pytest.mark.skipif(not sass.tools(), reason=sass.NO_TOOLS)


@needs_tools
@EACH_COMPILER
def test_instructions_of_a_kernel(choose: Choose) -> None:
    binary = build_device_program(program(), choose(), "sm_90").binary
    assert sass.kernels(binary).keys() == {"ck_portable", "ck_resident"}
    resident, portable = (sass.opcodes(binary, name) for name in ("ck_resident", "ck_portable"))
    assert resident["STS"] == 1 and resident["LDS"] == 1
    assert sum(count for name, count in resident.items() if name.startswith("BAR.SYNC")) == 1
    assert portable["LDS"] == portable["STS"] == 0 and portable["STG.E"] == 1
    assert portable["FFMA"] >= 2 and portable["LDG.E"] >= 3 and portable["CALL.REL.NOINC"] >= 1
    assert sass.local_loads(binary) == {"ck_portable": 0, "ck_resident": 0}


@needs_tools
@EACH_COMPILER
def test_loads_of_spilled_registers_in_loops(choose: Choose) -> None:
    binary = build_device_program(SPILLING, choose(), "sm_90").binary
    (everywhere,), (in_loops,) = (sass.local_loads(binary, in_loops=each).values() for each in (False, True))
    assert everywhere > in_loops > 10
    outside = """#define CK_THREADS 32
#define CK_SCRATCH_BYTES 1024
#include "cocktail_base.h"
extern "C" __global__ void k(f32* x, i32 n) {
  f32 v[32];
  CK_NO_UNROLL for (i32 t = 0; t < n; ++t) v[(t * t) & 31] = x[t];
  x[0] = v[n & 31] + v[(n + 3) & 31];
}
"""
    binary = build_device_program(outside, choose(), "sm_90").binary
    assert sass.local_loads(binary) == {"k": 2} and sass.local_loads(binary, in_loops=True) == {"k": 0}
    code = sass.kernels(binary)["k"]
    inside = [each.opcode for each in code if each.address in sass.looping(code)]
    assert inside.count("STL") == inside.count("LDG.E") == 1 and len(inside) < len(code)


HINTED = """#define CK_THREADS 32
#define CK_SCRATCH_BYTES 1024
#define CK_OPERANDS 1
#define CK_RESULTS 1
#define CK_MOST_UNITS 1
#define CK_SHARED_BYTES 0
#define CK_OWN_BYTES 1024
#define CK_RESIDENT_BYTES 0
#include "cocktail_units.h"
template <bool RESIDENT>
CK_NOINLINE void add(f32* x, const f32* y, i32 count) {
  x = ck_near<RESIDENT>(x);
  y = ck_far(y);
  CK_NO_UNROLL for (i32 k = ck_lane(); k < count; k += 32) x[k] = x[k + 32] + y[k];
}
template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const*, u8*, CkUnit* unit) {
  add<RESIDENT>((f32*)unit->own, (const f32*)operands[0], 100);
  ck_block_barrier();
  add<RESIDENT>((f32*)unit->own + 64, (const f32*)operands[0], 90);
}
CK_ENTRIES
"""


@needs_tools
@EACH_COMPILER
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_accesses_whose_memory_is_not_known(choose: Choose, arch: str) -> None:
    """One function for both kernels has to take any address. Two that are told need not."""
    plain = re.sub(r"  \w = ck_(near<RESIDENT>|far).*", "", HINTED).replace("add<RESIDENT>", "add<true>")
    told, guessed = (
        sass.generic_accesses(build_device_program(text, choose(), arch).binary) for text in (HINTED, plain)
    )
    assert told == {"ck_resident": 0, "ck_portable": 0}
    assert min(guessed.values()) >= 2


@needs_tools
def test_functions_called_in_loops_are_in_them() -> None:
    code = tuple(
        sass.Instruction(16 * k, opcode, operands)
        for k, (opcode, operands) in enumerate(
            [
                ("MOV", "R1, 0x10"),
                ("CALL.REL.NOINC", "0x80"),
                ("IADD3", "R2, R2, 0x10, RZ"),
                ("BRA", "0x10"),
                ("CALL.REL.NOINC", "0xa0"),
                ("EXIT", ""),
                ("BRA", "0x60"),
                ("NOP", ""),
                ("LDL", "R1, [R1]"),
                ("RET.REL.NODEC", "R4 0x0"),
                ("LDL", "R2, [R1]"),
                ("RET.REL.NODEC", "R4 0x0"),
            ]
        )
    )
    assert sass.looping(code) == {0x10, 0x20, 0x30, 0x80, 0x90}
