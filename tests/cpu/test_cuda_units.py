"""Units on a GPU: barriers, signals, tagged words, clusters, the error word, and what compilers say."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cpu.emulation import emulator
from tests.cpu.emulation.emulator import ROOT, EmulationError
from tests.cpu.emulation.text import program

CUDA = ROOT / "cuda_src"
FOLDERS = (CUDA, ROOT / "gpu_src", ROOT / "common_src")
ARCHES = ("sm_80", "sm_90", "sm_100")

# Units read what others wrote one barrier ago, each step something new. operands: steps; results: i32[units].
BARRIER = program(
    """
  i32 steps = ((const i32*)operands[0])[0];
  i32* wrong = (i32*)results[0] + unit->index;
  i32* cells = (i32*)workspace;  // [units, 4]
  i32 bad = 0;
  for (i32 step = 0; step < steps; ++step) {
    if (ck_lane() >= CK_THREADS - 4) cells[4 * unit->index + ck_lane() % 4] = 100 * step + unit->index;
    ck_arrive(unit);
    if (ck_lane() == 1) unit->own[5] = u8(step);
    ck_wait(unit);
    for (i32 i = ck_lane(); i < 4 * unit->count; i += CK_THREADS) bad |= cells[i] != 100 * step + i / 4;
    bad |= unit->own[5] != u8(step);
    ck_arrive(unit);
    ck_wait(unit);
  }
  bad = __syncthreads_or(bad);
  if (ck_lane() == 0) *wrong = bad;
"""
)


@pytest.mark.parametrize("units", range(1, 10))
def test_barrier(units: int) -> None:
    ready = emulator.build(BARRIER)
    for seed in range(4):
        wrong = np.full(units, 9, np.int32)
        kernel = "ck_resident" if units == 9 and seed % 2 else "ck_portable"
        ready.launch([np.array([20], np.int32)], [wrong], units=units, kernel=kernel, seed=seed)
        assert not wrong.any()


IN_A_CLUSTER = "#define CK_ONE_CLUSTER 1\n" + BARRIER.replace("MOST_UNITS 9", "MOST_UNITS 3")


@pytest.mark.parametrize("text", [BARRIER, IN_A_CLUSTER])
def test_barrier_under_the_thread_sanitizer(text: str) -> None:
    near = {"kernel": "ck_resident", "cluster": 3} if text == IN_A_CLUSTER else {}
    wrong = np.full(3, 9, np.int32)
    checked = emulator.build(text, sanitizer="thread")
    for seed in range(1, 3):
        checked.launch([np.array([4], np.int32)], [wrong], units=3, seed=seed, **near)
        assert not wrong.any()


def with_other(text: str, name: str, definition: str) -> str:
    """The text with a function of cocktail_ptx.h replaced in what cocktail_units.h makes of it."""
    other = (
        f'#include "cocktail_ptx.h"\n{definition}\n#define {name} other_{name}\n#include "cocktail_units.h"'
    )
    return text.replace('#include "cocktail_units.h"', other)


WEAK = {
    "ck_add_release": "CK_INLINE void other_ck_add_release(u32* at, u32 x) {"
    " __atomic_fetch_add(at, x, __ATOMIC_RELAXED); }",
    "ck_poll": """template <class Done>
CK_INLINE void other_ck_poll(const u32* at, Done done, CkWatch watch, const char*, int) {
  ck_poll_with([=] { return ck_load_relaxed(at); }, done, watch);
}""",
    "ck_block_barrier": "CK_INLINE void other_ck_block_barrier(const char*, int) {}",
}


@pytest.mark.parametrize("name", WEAK)
def test_weaker_barriers_are_races(name: str) -> None:
    weaker = emulator.build(with_other(BARRIER, name, WEAK[name]), sanitizer="thread")
    with pytest.raises(EmulationError, match="data race"):
        weaker.launch([np.array([2], np.int32)], [np.zeros(2, np.int32)], units=2)


def test_a_cluster_does_not_meet_for_the_block() -> None:
    """What the threads of a block do between the halves of the barrier is not ordered by the halves."""
    weaker = emulator.build(
        with_other(IN_A_CLUSTER, "ck_block_barrier", WEAK["ck_block_barrier"]), sanitizer="thread"
    )
    with pytest.raises(EmulationError, match="data race"):
        steps, wrong = np.array([2], np.int32), np.zeros(3, np.int32)
        weaker.launch([steps], [wrong], units=3, kernel="ck_resident", cluster=3)


def test_counter_may_wrap() -> None:
    text = BARRIER.replace("i32 bad = 0;", "i32 bad = 0;\n  ck_skip(unit);").replace(
        "template <bool RESIDENT>\nCK_INLINE void ck_body",
        """// As if 2^32 arrivals had been, less those of five barriers.
CK_INLINE void ck_skip(CkUnit* unit) {
  u32 before = 0u - 5u * u32(unit->count);
  if (ck_lane() == 0 && unit->index == 0) ck_fetch_add(&unit->header->arrived.value, before);
  if (ck_lane() == 0) {
    ck_poll(&unit->header->arrived.value, [=](u32 x) { return x >= before; },
            CkWatch{nullptr, 0, "the start"});
  }
  unit->epoch = before;
}
template <bool RESIDENT>
CK_INLINE void ck_body""",
    )
    assert "ck_skip(unit)" in text and "the start" in text
    ready = emulator.build(text)
    for units, seed in [(2, 0), (2, 1), (3, 2), (3, 3), (5, 4), (9, 5)]:
        wrong = np.full(units, 9, np.int32)
        ready.launch([np.array([10], np.int32)], [wrong], units=units, seed=seed)
        assert not wrong.any()


# A pipeline: unit u adds u to what unit u - 1 hands on in two slots; signals back say which are free.
PIPELINE = program(
    """
  i32 steps = ((const i32*)operands[0])[0], me = unit->index, last = unit->count - 1;
  i32* slots = (i32*)workspace;  // [units, 2, 8]
  for (i32 step = 1; step <= steps; ++step) {
    if (me > 0) ck_await_signal(unit, me - 1, u32(step));
    i32 value = me > 0 ? slots[16 * (me - 1) + 8 * (step % 2) + ck_lane() % 8] : step * (ck_lane() % 8);
    if (me > 0) ck_signal(unit, 8 + me - 1, u32(step));
    if (me < last && step > 2) ck_await_signal(unit, 8 + me, u32(step - 2));
    if (ck_lane() < 8) {
      i32* to = me < last ? slots + 16 * me + 8 * (step % 2) : (i32*)results[0] + 8 * (step - 1);
      to[ck_lane()] = value + me;
    }
    if (me < last) ck_signal(unit, me, u32(step));
  }
""",
    CK_SIGNALS=16,
)


@pytest.mark.parametrize("units", [1, 2, 5])
@pytest.mark.parametrize("sanitizer", [None, "thread"])
def test_signals(units: int, sanitizer: emulator.Sanitizer | None) -> None:
    steps = 5 if sanitizer else 30
    for seed in range(1 if sanitizer else 5):
        got = np.zeros((steps, 8), np.int32)
        ready = emulator.build(PIPELINE, sanitizer=sanitizer)
        ready.launch([np.array([steps], np.int32)], [got], units=units, seed=seed)
        want = np.arange(1, steps + 1)[:, None] * np.arange(8) + sum(range(units))
        assert np.array_equal(got, want)


# Each unit owns 45 words of a vector; every step it sees the whole one. operands: u32[WORDS], steps.
TAGGED = program(
    """
  enum { MINE = 45, WORDS = MINE * 5 };
  i32 steps = ((const i32*)operands[1])[0];
  i32 first = MINE * unit->index, words = MINE * unit->count;
  u32* all = (u32*)ck_scratch();         // [WORDS]
  u32* mine = (u32*)ck_scratch() + WORDS;  // [MINE]
  u64* exchange = ck_exchange(unit, 3);
  for (i32 i = ck_lane(); i < MINE; i += CK_THREADS) mine[i] = ((const u32*)operands[0])[first + i];
  ck_block_barrier();
  for (u32 step = 1; step <= u32(steps); ++step) {
    ck_send_tagged(exchange, words, first, mine, MINE, step);
    ck_receive_tagged(unit, all, exchange, words, 0, words, step);
    ck_block_barrier();
    for (i32 i = ck_lane(); i < MINE; i += CK_THREADS) {
      mine[i] = 3 * all[first + i] + all[(first + i + 7 * step) % words] + step;
    }
    ck_block_barrier();
  }
  for (i32 i = ck_lane(); i < MINE; i += CK_THREADS) ((u32*)results[0])[first + i] = mine[i];
""",
    operands=2,
    threads=32,
    scratch=2048,
    most_units=5,
    CK_TAGGED_WORDS=228,
)


@pytest.mark.parametrize("units", [1, 2, 5])
@pytest.mark.parametrize("sanitizer", [None, "thread"])
def test_tagged_words(units: int, sanitizer: emulator.Sanitizer | None) -> None:
    steps, words = 8 if sanitizer else 50, 45 * units
    x = np.random.default_rng(units).integers(0, 1 << 32, words, np.uint32)
    want = x.copy()
    for step in range(1, steps + 1):
        want = 3 * want + want[(np.arange(words) + 7 * step) % words] + np.uint32(step)
    for seed in range(1 if sanitizer else 4):
        got = np.zeros(words, np.uint32)
        ready = emulator.build(TAGGED, sanitizer=sanitizer)
        ready.launch([x, np.array([steps], np.int32)], [got], units=units, seed=seed)
        assert np.array_equal(got, want)


def test_one_buffer_of_tagged_words_is_not_enough() -> None:
    """With one buffer a fast unit overwrites what a slow one has yet to read, which then waits for ever."""
    once = TAGGED.replace("exchange, words,", "exchange + (step & 1u ? 0 : words), words,")
    assert once.count("(step & 1u") == 2
    ready = emulator.build(once)
    operands = [np.zeros(225, np.uint32), np.array([50], np.int32)]
    with pytest.raises(EmulationError, match="deadlock(.|\n)*poll at tagged words"):
        for seed in range(1, 9):
            ready.launch(operands, [np.zeros(225, np.uint32)], units=5, seed=seed)


# Blocks of a cluster read the memory of the next one, and write into that of the one before.
CLUSTER = program(
    """
  i32 rank = ck_cluster_rank(), size = ck_cluster_size();
  i32* mine = (i32*)ck_scratch();
  i32* inbox = mine + 64;
  i32 sum = 0;
  for (i32 step = 0; step < 6; ++step) {
    if (ck_lane() < 32) mine[ck_lane()] = 1000 * unit->index + 32 * step + ck_lane();
    ck_cluster_barrier();
    const i32* next = ck_remote(mine, (rank + 1) % size);
    if (ck_lane() >= 32) sum += next[ck_lane() - 32];
    if (ck_lane() == 0) *ck_remote(inbox, (rank + size - 1) % size) = rank;
    ck_cluster_arrive();
    ck_cluster_wait();
    sum += *inbox;
  }
  ck_cluster_barrier();
  ((i32*)results[0])[64 * unit->index + ck_lane()] = sum;
"""
)


@pytest.mark.parametrize("units, cluster", [(1, 1), (4, 2), (6, 3), (8, 8)])
def test_clusters(units: int, cluster: int) -> None:
    got = np.zeros((units, 64), np.int32)
    lane = np.arange(64)
    want = np.zeros_like(got)
    for unit in range(units):
        first, right = unit - unit % cluster, (unit + 1) % cluster
        read = [1000 * (first + right) + 32 * step + lane - 32 for step in range(6)]
        want[unit] = np.where(lane >= 32, np.sum(read, 0), 0) + 6 * right
    for seed in range(3):
        emulator.build(CLUSTER).launch([np.zeros(1)], [got], units=units, seed=seed, cluster=cluster)
        assert np.array_equal(got, want)


def test_clusters_under_the_thread_sanitizer() -> None:
    got = np.zeros((4, 64), np.int32)
    emulator.build(CLUSTER, sanitizer="thread").launch([np.zeros(1)], [got], units=4, cluster=2)
    late = CLUSTER.replace("ck_cluster_arrive();\n    ck_cluster_wait();", "ck_block_barrier();")
    with pytest.raises(EmulationError, match="data race"):
        emulator.build(late, sanitizer="thread").launch([np.zeros(1)], [got], units=4, cluster=2)


@pytest.mark.parametrize(
    "right, wrong, words",
    [
        ("rank + 1) % size", "rank + 9)", "no block of this rank"),
        ("ck_remote(inbox,", "ck_remote((i32*)workspace,", "not in the block's shared memory"),
        ("ck_cluster_wait();", "", "arrives twice at the cluster barrier"),
    ],
)
def test_mistakes_with_clusters(right: str, wrong: str, words: str) -> None:
    with pytest.raises(EmulationError, match=words):
        ready = emulator.build(CLUSTER.replace(right, wrong))
        ready.launch([np.zeros(1)], [np.zeros((4, 64), np.int32)], units=4, cluster=2)


def test_the_first_failure_stays() -> None:
    text = program(
        """
  if (unit->index == 1) ck_fail(unit, 17);
  ck_arrive(unit);
  ck_wait(unit);
  ck_fail(unit, 18);
"""
    )
    for seed in range(3):
        with pytest.raises(EmulationError, match="error word: 17") as caught:
            emulator.build(text).launch([np.zeros(1)], [np.zeros(1)], units=3, seed=seed)
        assert caught.value.code == 17


# ---- layout and text ------------------------------------------------------------------------------------

LAYOUT = program(
    """
  i64* y = (i64*)results[0] + 8 * unit->index;
  if (ck_lane() != 0) return;
  y[0] = CK_HEADER_BYTES;
  y[1] = workspace - (u8*)unit->header;
  y[2] = RESIDENT ? unit->own - ck_scratch() : unit->own - workspace;
  y[3] = RESIDENT ? unit->resident - ck_scratch() : unit->resident == nullptr;
  y[4] = (u8*)(ck_exchange(unit, 0) + 2 * CK_TAGGED_WORDS) - (u8*)unit->header;
  y[5] = (u8*)&unit->header->signals[0] - (u8*)unit->header;
  y[6] = unit->count;
  y[7] = unit->scratch == ck_scratch();
""",
    most_units=3,
    CK_SIGNALS=3,
    CK_TAGGED_WORDS=20,
)


def test_layout() -> None:
    header = 1024  # a counter and three signals of 128 bytes, 20 words of 16: 832, rounded up to 256
    for kernel in ("ck_portable", "ck_resident"):
        got = np.zeros((3, 8), np.int64)
        emulator.build(LAYOUT).launch([np.zeros(1)], [got], units=3, kernel=kernel)
        own = [1024] * 3 if kernel == "ck_resident" else [1024, 1024 + 256, 1024 + 512]
        third = 1024 + 256 if kernel == "ck_resident" else 1
        want = [[header, header, own[i], third, 832, 128, 3, 1] for i in range(3)]
        assert got.tolist() == want


def test_layout_in_a_cluster() -> None:
    """The tagged words of a unit lie between its own and its resident memory."""
    got = np.zeros((3, 8), np.int64)
    text = LAYOUT.replace("CK_SIGNALS 3", "CK_SIGNALS 0\n#define CK_ONE_CLUSTER 1")
    base = "RESIDENT ? unit->own : (u8*)unit->header"
    ready = emulator.build(text.replace("- (u8*)unit->header;\n  y[5]", f"- ({base});\n  y[5]"))
    ready.launch([np.zeros(1)], [got], units=3, kernel="ck_resident", cluster=3)
    assert got[:, 3:5].tolist() == [[1024 + 256 + 512, 256 + 2 * 20 * 8]] * 3
    ready.launch([np.zeros(1)], [got], units=3, kernel="ck_portable")
    assert got[:, 3:5].tolist() == [[1, 128 + 2 * 20 * 8]] * 3


@pytest.mark.parametrize(
    "numbers, words",
    [
        ({"CK_ONE_CLUSTER": 1, "most_units": 17}, "at most 16 units"),
        ({"CK_ONE_CLUSTER": 1, "CK_SIGNALS": 1}, "nothing in the header"),
        ({"CK_TAGGED_WORDS": 5000}, "header takes at most 64 KB"),
        ({"own": 24}, "borders of 16"),
        ({"scratch": 512}, "1024 bytes of scratch"),
        ({"threads": 48}, "whole warps"),
    ],
)
def test_numbers_that_no_program_may_have(numbers: dict[str, int], words: str) -> None:
    with pytest.raises(EmulationError, match=words):
        emulator.build(program("", **numbers))


def code_of(path: Path) -> str:
    """A header without its comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


def test_assembly_and_fences_stand_in_one_file() -> None:
    headers = sorted(path for folder in FOLDERS for path in folder.glob("cocktail_*.h"))
    assert CUDA / "cocktail_ptx.h" in headers
    having = {path.name for path in headers if re.search(r"\b(__)?asm(__)?\b", code_of(path))}
    assert having == {"cocktail_ptx.h"}
    for path in headers:
        assert not re.search(
            r"__threadfence|\bvolatile\b(?!\()", code_of(path).replace("asm volatile", "")
        ), path.name
    shared = [path.name for path in headers for _ in re.findall(r"\b__shared__\b", code_of(path))]
    assert shared == ["cocktail_ptx.h"]


# ---- compilers ------------------------------------------------------------------------------------------

EVERYTHING = program(
    """
  const u32* x = (const u32*)operands[0];
  u32* y = (u32*)results[0];
  u32* s = (u32*)ck_scratch() + 4 * ck_lane();
  u32 a[4] = {x[0], x[1], x[2], x[3]}, b[2] = {ck_to_tf32(ck_bitcast<f32>(x[4])), x[5]}, r[4];
  f32 c[4] = {0, 0, 0, 0};
  if (ck_is_global(x)) ck_async_copy<16>(s, x + 4 * ck_lane());
  ck_async_copy<8>(s, x + 4 * ck_lane(), x[9] == 1);
  ck_async_commit();
  ck_async_wait<0>();
  ck_block_barrier();
  ck_load_tiles(r, s);
  ck_load_tiles<true>(a, s);
  ck_mma_tf32(c, a, b);
  ck_mma_bf16(c, r, b);
  ck_mma_f16(c, a, b);
  y[ck_lane()] = u32(c[0] + c[1] + c[2] + c[3]);
  ck_arrive(unit);
  ck_wait(unit);
  ck_signal(unit, 1, 4);
  ck_await_signal(unit, 2, 4);
  ck_send_tagged(ck_exchange(unit, 0), 512, 8 * unit->index, y, 8, 1);
  ck_receive_tagged(unit, s, ck_exchange(unit, 0), 512, 0, 512, 1);
  ck_store_release<CK_SYSTEM>((u64*)y, ck_load_acquire<CK_SYSTEM>((const u64*)x));
  ck_sleep(20);
  y[1] = u32(ck_nanoseconds()) + ck_fetch_add<CK_SYSTEM>(y, 1u) + u32(ck_fetch_add((u64*)y, u64(1)));
  ck_fail(unit, 3);
  ck_cluster_barrier();
  *ck_remote(s, (ck_cluster_rank() + 1) % ck_cluster_size()) = 3;
  ck_add_release<CK_CLUSTER>(ck_remote(s, 1), 1u);
""",
    threads=128,
    scratch=4096,
    **{"CK_SIGNALS": 3, "CK_TAGGED_WORDS": 512},
)
NOTHING, CROSSING = program(""), program("ck_arrive(unit);\n  ck_wait(unit);")


def nvcc(text: str, arch: str, folder: Path, *flags: str) -> str:
    """What ptxas says; warnings are errors."""
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("nvcc is not installed")
    (folder / "program.cu").write_text(text)
    command = [found, "-std=c++17", "-O3", f"-arch={arch}", "-cubin", "-Xptxas", "-v"]
    command += [
        "-Werror",
        "all-warnings",
        *flags,
        *(f"-I{folder}" for folder in FOLDERS),
        "program.cu",
        "-o",
        "program.cubin",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("arch", ARCHES)
def test_nvcc(arch: str, tmp_path: Path) -> None:
    for text, most, flags in (
        (EVERYTHING, 48, ("-DCK_SPIN_LIMIT=1000000",)),
        (NOTHING, 8, ()),
        (CROSSING, 16, ()),
    ):
        said = nvcc(text, arch, tmp_path, *flags)
        assert set(re.findall(r"(\d+) bytes spill", said)) == {"0"}
        registers = [int(number) for number in re.findall(r"Used (\d+) registers", said)]
        assert len(registers) == 2 and max(registers) <= most, said


@functools.cache
def nvrtc() -> ctypes.CDLL | None:
    """The library of the wheel, with its table of builtins beside it."""
    for folder in map(Path, sys.path):
        for path in sorted(folder.glob("nvidia/*/lib/libnvrtc.so*")):
            for beside in sorted(path.parent.glob("libnvrtc-builtins.so*")):
                ctypes.CDLL(str(beside))
            return ctypes.CDLL(str(path))
    return None


@pytest.mark.parametrize("arch", ARCHES)
def test_nvrtc(arch: str) -> None:
    library = nvrtc()
    if library is None:
        pytest.skip("NVRTC is not installed")
    handle = ctypes.c_void_p()
    text = EVERYTHING.encode()
    assert library.nvrtcCreateProgram(ctypes.byref(handle), text, b"program.cu", 0, None, None) == 0
    options = [f"--gpu-architecture={arch}", "--std=c++17"]
    options += [f"--include-path={folder}" for folder in FOLDERS]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = library.nvrtcCompileProgram(handle, len(options), array)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(handle, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(handle, log)
    assert status == 0 and not log.value.strip(), log.value.decode()
