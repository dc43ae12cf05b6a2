"""Static checks: the benchmark's programs at full size, compiled for AMD's cards, which are not here.

Every test holds one program to what its card can launch, to no private memory in loops, and to what is
recorded for this release of clang. A usual run takes three programs a card, a long one those of CASES; what
compiles very long is left to ``python -m tests.cpu.rocm_static_checks``.
"""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks.gpu.rows import ROWS
from jax_cocktail.build.device import build_device_program
from jax_cocktail.device.amd import MI300X
from jax_cocktail.errors import BuildError
from tests.cpu import gcn
from tests.cpu import rocm_static_checks as checks
from tests.cpu.rocm_compilers import hipcc, zig
from tests.cpu.static_checks import planned

# Where an architecture makes a difference: matrix instructions, waves, copies, exchange between blocks.
ELSEWHERE = ("nasrnn/1", "attention/1", "rae/1", "vmapped_while")
FRAMES = {
    "lstm/1": 16,
    "blockdrop/1": 16,
    "skipnet/1": 24,
}  # bytes of the frame of a call, by hipcc
CRASH = pytest.mark.xfail(
    raises=BuildError, reason="clang 15 crashes in its pass InstCombine, at -O1 as well"
)
USUAL = ("nasrnn/1", "attention/1", "rae/1")
LONG = ("skipnet/1", "rae_recursive/1", "lstm/1", "lstm/64", "seq2seq/64", "lstm_gradient", "gru_gradient")
CASES = [
    *(("gfx942", row) for row in ROWS if row not in LONG),
    *((arch, row) for arch in ("gfx90a", "gfx1100") for row in ELSEWHERE),
]


@pytest.mark.parametrize(
    ("arch", "row"),
    [pytest.param(*case, marks=[] if case[1] in USUAL else [pytest.mark.long]) for case in CASES],
)
def test_program(arch, row):
    numbers, said = checks.check(row, arch, zig())
    assert said == [], f"if meant: python -m tests.cpu.rocm_static_checks {arch} {row} --update"
    release = zig().release
    assert checks.recorded(row, arch, release, checks.RECORDED) is not None or not checks.recorded(
        "rae/1", arch, release, checks.RECORDED
    ), "record this row too"


@pytest.mark.parametrize(
    ("arch", "row"),
    [
        *((arch, row) for arch in ("gfx908", "gfx90a") for row in USUAL),
        *(
            pytest.param(arch, row, marks=pytest.mark.long)
            for arch in ("gfx908", "gfx90a")
            for row in ("seq2seq/1", "blockdrop/1", "lstm/1", "vmapped_while")
        ),
        pytest.param("gfx908", "skipnet/1", marks=pytest.mark.long),
        pytest.param("gfx90a", "skipnet/1", marks=[pytest.mark.long, CRASH]),
    ],
)
def test_hipcc_agrees(arch, row):
    """ROCm's own compiler takes the same text, and needs no private memory either but the frame of a call."""
    frame = FRAMES.get(row, 0)
    for emitted in planned(row, arch).programs:
        built = build_device_program(emitted.source, hipcc(), checks.CARDS[arch])
        assert built.kernels.keys() == {"ck_resident", "ck_portable"} and not built.spills
        assert all(kernel.stack_bytes <= frame for kernel in built.kernels.values())


@pytest.mark.parametrize("arch", checks.CARDS)
def test_what_is_recorded_keeps_the_limits(arch):
    """Nobody records a spill without a reason, and no reason is without a spill."""
    path = checks.RECORDED / f"{arch}.json"
    assert path.is_file(), "python -m tests.cpu.rocm_static_checks --update"
    reasons = checks.exceptions(arch)
    for rows in json.loads(path.read_text()).values():
        assert rows.keys() <= ROWS.keys() and reasons.keys() <= rows.keys()
        for row, programs in rows.items():
            numbers = [checks.Found(**program) for program in programs]
            spec = checks.CARDS[arch]
            assert [
                word for each in numbers for word in checks.problems(each, spec, reasons.get(row, ""))
            ] == []
            loads = sum(facts["scratch_in_loops"] for each in numbers for facts in each.kernels.values())
            assert bool(loads) == (row in reasons)


@pytest.mark.parametrize(
    ("arch", "row"), [("gfx90a", "nasrnn/64"), ("gfx942", "nasrnn/64"), ("gfx1100", "nasrnn/64")]
)
def test_products_take_matrix_instructions(arch, row):
    (program,) = checks.recorded(row, arch, zig().release, checks.RECORDED)
    has_float32 = not arch.startswith("gfx11")  # RDNA multiplies halves alone
    assert bool(program["kernels"]["ck_resident"]["matrix"]) == has_float32


# ---- the checks themselves ---------------------------------------------------------------------------------

FINE = dict.fromkeys(("registers", "scratch_in_loops", "shared_bytes", "scratch"), 0) | {"registers": 64}


def made(shared=(4096, 1024), threads=256, **facts):
    """A program with these facts of its resident kernel."""
    return checks.Found(4, threads, *shared, {"ck_resident": FINE | facts, "ck_portable": FINE})


@pytest.mark.parametrize(
    ("program", "word"),
    [
        (made(scratch_in_loops=2), "2 accesses to private memory in loops"),
        (made(scratch=9), ""),
        (made(shared_bytes=16), "that nobody planned"),
        (made(shared=(MI300X.shared_bytes + 1, 0)), "bytes of shared memory, a block has 65536"),
        (made(threads=1024, registers=129), "129 registers in each of 1024 threads"),
        (made(threads=1024, registers=128), ""),
        (dataclasses.replace(made(), kernels={"ck_portable": FINE}), "the kernels are ck_portable"),
    ],
)
def test_limits(program, word):
    said = checks.problems(program, MI300X)
    assert len(said) == (1 if word else 0) and word in "".join(said)


def test_a_reason_allows_private_memory():
    assert checks.problems(made(scratch_in_loops=2), MI300X, "because") == []


ASSEMBLY = """
helper:                                 ; @helper
	scratch_store_dword off, v1, s32        ; 4-byte Folded Spill
	s_setpc_b64 s[30:31]
.Lfunc_end0:
unused:
	flat_load_dword v0, v[0:1]
.Lfunc_end1:
kernel:
; %bb.0:
	s_cbranch_scc1 .LBB2_2
.LBB2_1:                                ; =>This Inner Loop Header: Depth=1
	flat_load_dword v0, v[0:1]
	s_add_u32 s4, s4, helper@rel32@lo+4
	s_cbranch_scc0 .LBB2_1
.LBB2_2:
	v_mfma_f32_16x16x4f32 a[0:3], v0, v1, a[0:3]
	scratch_load_dword v0, off, off
	s_endpgm
.Lfunc_end2:
"""


def test_reading_assembly():
    code = gcn.functions(ASSEMBLY)
    assert code.keys() == {"helper", "unused", "kernel"}
    reached = gcn.reached(code, "kernel")
    assert [each.opcode for each in reached if each.looping] == [
        "flat_load_dword",
        "s_add_u32",
        "s_cbranch_scc0",
    ]
    assert gcn.count(reached, "scratch_") == 2 and gcn.count(reached, "scratch_", in_loops=True) == 0
    assert gcn.count(reached, "flat_", in_loops=True) == gcn.count(reached, "v_mfma") == 1
