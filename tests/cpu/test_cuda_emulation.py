"""The emulation of CUDA itself: what it computes, and that it reports what a card would not."""

from __future__ import annotations

import subprocess

import ml_dtypes
import numpy as np
import pytest

from tests.cpu.emulation import emulator
from tests.cpu.emulation.emulator import EmulationError, Program
from tests.cpu.emulation.text import program

# operands[0]: which fault. Case 0 has none.
FAULTS = program(
    before="""
struct Deep { volatile char bytes[4096]; };
CK_NOINLINE i32 descend(i32 depth) {
  Deep frame;
  frame.bytes[depth % 4096] = 1;
  return depth > 1000000 ? 0 : descend(depth + 1) + frame.bytes[depth % 4096];
}
""",
    body="""
  i32 fault = *(const i32*)operands[0];
  i32 lane = ck_lane();
  f32* result = (f32*)results[0];
  f32* scratch = (f32*)ck_scratch();
  f32* cells = (f32*)workspace;
  u32* flag = (u32*)workspace + 64;
  switch (fault) {
    case 1:  // no meeting between the threads that write and those that read
    case 2:
      scratch[lane] = f32(lane);
      if (fault == 2) ck_block_barrier();
      result[lane] = scratch[lane ^ 32];
      break;
    case 3:  // a shuffle orders no memory
    case 4:
      scratch[lane] = f32(lane);
      if (fault == 4) __syncwarp();
      else __shfl_xor_sync(0xffffffffu, lane, 1);
      result[lane] = scratch[lane ^ 1];
      break;
    case 5:  // no barrier between units
    case 6:
      if (lane == 0) cells[unit->index] = f32(unit->index);
      if (fault == 6) ck_arrive(unit), ck_wait(unit);
      if (lane == 0) result[unit->index] = cells[unit->index ^ 1];
      break;
    case 7:  // a flag that orders nothing
    case 8:
      if (lane == 0 && unit->index == 0) {
        ck_store_relaxed(flag, 0u);
        cells[0] = 1;
        if (fault == 8) ck_store_release(flag, 1u);
        else ck_store_relaxed(flag, 1u);
      }
      if (lane == 0 && unit->index == 1) {
        ck_poll(flag, [](u32 x) { return x == 1; }, CkWatch{nullptr, 0, "the flag"});
        result[0] = cells[0];
      }
      break;
    case 10:
      if (lane < 32) ck_block_barrier();
      else ck_block_barrier();
      break;
    case 11:
      if (lane == 7) return;
      ck_block_barrier();
      break;
    case 12:
      if (lane != 3) __shfl_xor_sync(0xffffffffu, lane, 1);
      break;
    case 13:
      if (lane % 2) __shfl_xor_sync(0xaaaaaaaau, lane, 2);
      else __shfl_xor_sync(0xffffffffu, lane, 2);
      break;
    case 14:
      __shfl_sync(lane < 32 ? 0x0000ffffu : 0xffff0000u, lane, 0);
      break;
    case 15:
      if (unit->index == 0) ck_arrive(unit), ck_wait(unit);
      break;
    case 20:
      if (lane == 0) ck_scratch()[1024] = 3;
      break;
    case 21: result[lane + 1] = 0; break;
    case 22: ((i32*)operands[0])[0] = 7; break;
    case 23: result[0] = f32(descend(0)); break;
    case 24: result[0] = *(const f32*)(u64)(fault - 24); break;
    case 25: workspace[CK_SHARED_BYTES + (RESIDENT ? 0 : CK_OWN_BYTES * gridDim.x)] = 1; break;
    case 30:
      ck_async_copy<16>(scratch + 4 * lane, (const f32*)operands[0] + 4);
      ck_async_commit();
      break;
    case 31:
      ck_async_copy<16>(scratch, results[0]);
      ck_async_commit();
      result[0] = scratch[0];
      ck_async_wait<0>();
      break;
    case 40: ck_trap(); break;
    case 41: ck_fail(unit, 5); ck_fail(unit, 6); break;
    case 42: result[lane] = lane % 2 ? scratch[lane] : cells[lane]; break;
    default: result[lane] = f32(lane);
  }
""",
    shared=1024,
    own=256,
)


def built(sanitizer: emulator.Sanitizer | None = None, *flags: str) -> Program:
    return emulator.build(FAULTS, flags, sanitizer=sanitizer)


def launch(fault: int, program: Program, units: int = 1, seed: int = 0, **how: str) -> np.ndarray:
    result = np.zeros(64, np.float32)
    operand = np.array([fault, 0, 0, 0, 1, 1, 1, 1], np.int32)
    program.launch([operand], [result], units=units, seed=seed, **how)
    return result


def report(fault: int, program: Program, units: int = 1, seed: int = 0, **how: str) -> str:
    with pytest.raises(EmulationError) as caught:
        launch(fault, program, units, seed, **how)
    return caught.value.report


def test_no_fault() -> None:
    for units, seed in [(1, 0), (3, 1), (9, 2)]:
        assert np.array_equal(launch(0, built(), units, seed), np.arange(64))


def test_memory_begins_as_nan() -> None:
    assert np.isnan(launch(42, built())).all()


@pytest.mark.parametrize(
    "fault, words",
    [
        (10, ["others of the block are at program.cc:", "of block 0"]),
        (11, ["threads of this block have ended before this __syncthreads"]),
        (
            12,
            ["deadlock", "threads 0-2, 4-31 wait at __shfl_xor_sync (program.cc:", "threads 3, 32-63 ended"],
        ),
        (13, ["deadlock", "wait at __shfl_xor_sync (", "threads 1, 3, 5, 7,"]),
        (14, ["its own lane mask leaves out", "thread 16"]),
        (20, ["block 0 wrote behind the end of its shared memory"]),
        (21, ["memory beside result 0 was written"]),
        (22, ["operand 0 was written"]),
        (23, ["stack", "too small for thread 0 of block 0", "more stack_bytes"]),
        (24, ["address (nil), which no array has", "thread 0 of block 0"]),
        (25, ["the workspace was written behind its end"]),
        (30, ["ended before it waited for its asynchronous copies"]),
        (40, ["trap: thread 0 of block 0 (program.cc:"]),
        (41, ["error word: 5"]),
    ],
)
def test_reports(fault: int, words: list[str]) -> None:
    said = report(fault, built())
    assert all(word in said for word in words), said


@pytest.mark.parametrize("units", [1, 3])
def test_the_workspace_of_the_portable_kernel(units: int) -> None:
    """It has the own memory of the units that are launched, and no more."""
    said = report(25, built(), units, kernel="ck_portable")
    assert "the workspace was written behind its end" in said


def test_standstill_between_units() -> None:
    said = report(15, built(), units=3)
    assert "deadlock: no thread can move" in said
    assert "block 0: threads 0 poll at the barrier of units (program.cc:" in said
    assert "block 0: threads 1-63 wait at __syncthreads (program.cc:" in said
    assert "block 2: threads 0-63 ended" in said


def test_spin_limit() -> None:
    limited = built(None, "-DCK_SPIN_LIMIT=300")
    with pytest.raises(EmulationError, match="block 0 spun too long in phase 1") as caught:
        launch(15, limited, units=2)
    assert caught.value.code == 0x80000001
    assert "trap: thread 0 of block 0" in caught.value.report
    launch(6, limited, units=2)


def test_a_failed_launch_leaves_the_next_alone() -> None:
    for fault in (12, 23, 24, 40):
        report(fault, built())
        assert np.array_equal(launch(0, built()), np.arange(64))


def test_asynchronous_copies_arrive_late() -> None:
    assert np.isnan(launch(31, built())[0])


@pytest.mark.parametrize("fault", [20, 25])
def test_address_sanitizer(fault: int) -> None:
    checked = built("address")
    assert np.array_equal(launch(0, checked, units=2, seed=1), np.arange(64))
    assert "heap-buffer-overflow" in report(fault, checked)


@pytest.mark.parametrize("broken, mended", [(1, 2), (3, 4), (5, 6), (7, 8)])
def test_thread_sanitizer(broken: int, mended: int) -> None:
    checked = built("thread")
    units = 1 if broken < 5 else 2
    launch(mended, checked, units, seed=1)
    said = report(broken, checked, units)
    assert "data race" in said and "program.cc" in said


def test_refusals() -> None:
    ready = built()
    result = np.zeros(64, np.float32)
    operand = np.zeros(8, np.int32)
    with pytest.raises(EmulationError, match="10 units, but the program takes 1 to 9"):
        ready.launch([operand], [result], units=10)
    few = emulator.build("#define CK_RESIDENT_UNITS 7\n" + FAULTS)
    with pytest.raises(EmulationError, match="at least 7 units, not 6"):
        few.launch([operand], [result], units=6, kernel="ck_resident")
    few.launch([operand], [result], units=8, kernel="ck_resident")
    with pytest.raises(EmulationError, match="clusters of 2 blocks do not divide a grid of 3"):
        ready.launch([operand], [result], units=3, cluster=2)
    with pytest.raises(ValueError, match="no kernel 'main'"):
        ready.launch([operand], [result], kernel="main")
    with pytest.raises(ValueError, match="not contiguous"):
        ready.launch([operand[::2]], [result])
    with pytest.raises(EmulationError, match="error"):
        emulator.build(program("syntax error"))


def test_order_follows_from_the_seed() -> None:
    text = program(
        "if (ck_lane() == 0) ((u32*)results[0])[blockIdx.x] = atomicAdd((u32*)results[1], 1u);", results=2
    )
    ready = emulator.build(text)

    def order(seed: int) -> tuple[int, ...]:
        places, count = np.zeros(9, np.uint32), np.zeros(1, np.uint32)
        ready.launch([np.zeros(1, np.int32)], [places, count], units=9, seed=seed)
        assert count[0] == 9 and sorted(places) == list(range(9))
        return tuple(places)

    assert order(0) == tuple(range(9))
    assert order(3) == order(3)
    assert len({order(seed) for seed in range(1, 9)}) > 5


def test_context_switch_of_the_library() -> None:
    text = program("((f32*)results[0])[ck_lane()] = f32(__shfl_xor_sync(0xffffffffu, ck_lane(), 5));")
    result = np.zeros(64, np.float32)
    emulator.build(text, ["-DCK_UCONTEXT"]).launch([np.zeros(1)], [result], seed=2)
    assert np.array_equal(result, np.arange(64) ^ 5)


def test_donated_arrays() -> None:
    text = program("((i32*)results[0])[ck_lane()] = 2 * ((const i32*)operands[0])[ck_lane()];")
    for sanitizer in (None, "address"):
        array = np.arange(64, dtype=np.int32)
        emulator.build(text, sanitizer=sanitizer).launch([array], [array], units=1)
        assert np.array_equal(array, 2 * np.arange(64))


# ---- warps ----------------------------------------------------------------------------------------------

WARPS = program(
    """
  i32 lane = ck_lane();
  f64 x = ((const f64*)operands[0])[lane];
  f64* y = (f64*)results[0] + lane;
  i32 at = 0;
  for (i32 width = 32; width >= 4; width /= 4) {
    y[64 * at++] = __shfl_sync(0xffffffffu, x, 3 * lane + 1, width);
    y[64 * at++] = __shfl_xor_sync(0xffffffffu, x, 5, width);
    y[64 * at++] = __shfl_down_sync(0xffffffffu, x, 3, width);
    y[64 * at++] = __shfl_up_sync(0xffffffffu, x, 2, width);
  }
  bool low = lane % 32 < 10;
  u32 mine = low ? 0x3ffu : ~0x3ffu;
  y[64 * at++] = __ballot_sync(0xffffffffu, x > 0.5);
  y[64 * at++] = __any_sync(0xffffffffu, x > 0.99) + 2 * __all_sync(0xffffffffu, x < 0.99);
  if (low) y[64 * at++] = __reduce_add_sync(mine, u32(lane));
  else y[64 * at++] = __reduce_max_sync(mine, i32(x * 1000));
  y[64 * at++] = __match_any_sync(0xffffffffu, i32(x * 4));
  y[64 * at++] = __syncthreads_count(x > 0.5);
  y[64 * at++] = __syncthreads_or(lane == 40) + 2 * __syncthreads_and(lane != 40);
"""
)


def moved(x: np.ndarray, source: np.ndarray, width: int) -> np.ndarray:
    """What lanes of each group of `width` read from lanes `source` of it; their own where that is outside."""
    lane = np.arange(64)
    first, inside = lane - lane % width, (source >= 0) & (source < width)
    return x[np.where(inside, first + source, lane)]


@pytest.mark.parametrize("seed", range(3))
def test_warps(seed: int) -> None:
    x = np.random.default_rng(seed).random(64)
    got = np.zeros((12 + 2, 64))
    emulator.build(WARPS).launch([x], [got], units=1, seed=seed)
    lane = np.arange(64)
    rows = []
    for width in (32, 8):
        at = lane % width
        rows += [moved(x, (3 * lane + 1) % width, width), moved(x, at ^ 5, width)]
        rows += [moved(x, at + 3, width), moved(x, at - 2, width)]
    warps = x.reshape(2, 32)
    rows.append(np.repeat([sum(1 << i for i in range(32) if w[i] > 0.5) for w in warps], 32))
    rows.append(np.repeat([(w > 0.99).any() + 2 * (w < 0.99).all() for w in warps], 32))
    sums = np.repeat(lane.reshape(2, 32)[:, :10].sum(1), 32)
    most = np.repeat((warps[:, 10:] * 1000).astype(int).max(1), 32)
    rows.append(np.where(lane % 32 < 10, sums, most))
    quarter = (warps * 4).astype(int)
    rows.append([sum(1 << i for i in range(32) if w[i] == w[j]) for w in quarter for j in range(32)])
    rows.append(np.full(64, (x > 0.5).sum()))
    rows.append(np.full(64, 1))
    assert np.array_equal(got, np.array(rows, float))


# ---- tiles ----------------------------------------------------------------------------------------------

TILES = """
  i32 g = ck_warp_lane() / 4, t = ck_warp_lane() %% 4;
  const %(word)s* a = (const %(word)s*)operands[0]; 
  const %(word)s* b = (const %(word)s*)operands[1];  // [K, 8]
  f32* o = (f32*)results[0];                         // [16, 8]
  u32 left[4], right[2];
  f32 sum[4];
  for (i32 i = 0; i < 4; ++i) {
    i32 row = g + 8 * (i %% 2);
    left[i] = %(left)s;
    sum[i] = o[(g + 8 * (i / 2)) * 8 + 2 * t + i %% 2];
  }
  for (i32 i = 0; i < 2; ++i) right[i] = %(right)s;
  ck_mma_%(name)s(sum, left, right);
  for (i32 i = 0; i < 4; ++i) o[(g + 8 * (i / 2)) * 8 + 2 * t + i %% 2] = sum[i];
"""
SINGLES = {
    "word": "f32",
    "left": "ck_to_tf32(a[row * 8 + t + 4 * (i / 2)])",
    "right": "ck_to_tf32(b[(t + 4 * i) * 8 + g])",
}
PAIRS = {
    "word": "u16",
    "left": "a[row * 16 + 2 * t + 8 * (i / 2)] | u32(a[row * 16 + 2 * t + 8 * (i / 2) + 1]) << 16",
    "right": "b[(2 * t + 8 * i) * 8 + g] | u32(b[(2 * t + 8 * i + 1) * 8 + g]) << 16",
}


def tf32(x: np.ndarray) -> np.ndarray:
    """Ten bits of mantissa: to nearest, ties away from zero."""
    exact = x.astype(np.float64)
    mantissa, exponent = np.frexp(exact)
    scaled = mantissa * 2.0**11
    return np.ldexp(np.copysign(np.floor(np.abs(scaled) + 0.5), scaled) / 2.0**11, exponent).astype(
        np.float32
    )


@pytest.mark.parametrize("name", ["tf32", "bf16", "f16"])
def test_matrix_tiles(name: str) -> None:
    kind, dtype, k = {
        "tf32": (SINGLES, np.float32, 8),
        "bf16": (PAIRS, ml_dtypes.bfloat16, 16),
        "f16": (PAIRS, np.float16, 16),
    }[name]
    ready = emulator.build(program(TILES % {**kind, "name": name}, threads=32, operands=2))
    random = np.random.default_rng(5)
    a, b = random.normal(size=(16, k)).astype(dtype), random.normal(size=(k, 8)).astype(dtype)
    if name == "tf32":
        a[0, 0] = 1 + 2.0**-11  # a tie
    start = random.normal(size=(16, 8)).astype(np.float32)
    got = start.copy()
    ready.launch([a, b], [got], units=1, seed=1)
    rounded = [tf32(x) if name == "tf32" else x.astype(np.float32) for x in (a, b)]
    want = start.copy()
    for step in range(k):  # the products are exact in f64, each sum is rounded to f32
        product = rounded[0].astype(np.float64)[:, step, None] * rounded[1].astype(np.float64)[step]
        want = (want + product).astype(np.float32)
    assert np.array_equal(got, want)


def test_rounding_to_tf32() -> None:
    """In the bits that tensor cores read; no NaN becomes a number, or infinite."""
    ready = emulator.build(
        program(
            "((u32*)results[0])[ck_lane()] = ck_to_tf32(((const f32*)operands[0])[ck_lane()]);", threads=64
        )
    )
    x = np.random.default_rng(1).normal(size=64).astype(np.float32) * 1e3
    x[:7] = [0, -0.0, 1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, np.inf, -np.inf]
    x[7:12].view(np.uint32)[:] = [0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F800001, 0xFFC00000]
    x[12] = np.finfo(np.float32).max
    got = np.zeros(64, np.uint32)
    ready.launch([x], [got], units=1)
    read = (got & ~np.uint32(0x1FFF)).view(np.float32)
    assert np.isnan(read[7:12]).all() and read[12] == np.inf
    numbers = np.r_[:7, 13:64]
    assert np.array_equal(read[numbers].view(np.uint32), tf32(x[numbers]).view(np.uint32))


@pytest.mark.parametrize("turned", [False, True])
def test_tiles_from_shared_memory(turned: bool) -> None:
    text = program(
        f"""
  u16* tiles = (u16*)ck_scratch();  // [4, 8, 8]
  for (i32 i = ck_lane(); i < 256; i += CK_THREADS) tiles[i] = ((const u16*)operands[0])[i];
  ck_block_barrier();
  u32 r[4];
  ck_load_tiles<{str(turned).lower()}>(r, tiles + 8 * ck_lane());
  for (i32 i = 0; i < 4; ++i) ((u32*)results[0])[32 * i + ck_lane()] = r[i];
""",
        threads=32,
    )
    tiles = np.random.default_rng(2).integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    got = np.zeros((4, 32), np.uint32)
    emulator.build(text).launch([tiles], [got], units=1)
    want = np.swapaxes(tiles, 1, 2) if turned else tiles
    assert np.array_equal(got.view(np.uint16).reshape(4, 8, 8), want)


def test_copies_in_groups() -> None:
    text = program(
        """
  u32* to = (u32*)ck_scratch() + 4 * ck_lane();
  const u32* from = (const u32*)operands[0] + 4 * ck_lane();
  u32* y = (u32*)results[0] + ck_lane();
  ck_async_copy<8>(to, from);
  ck_async_copy<4>(to + 2, from, false);
  ck_async_commit();
  ck_async_copy<4>(to + 3, from + 3);
  ck_async_commit();
  ck_async_wait<1>();
  y[0] = to[0] + 2 * to[1] + to[2];
  y[64] = to[3];
  ck_async_wait<0>();
  y[128] = to[3];
  y[192] = ck_is_global(from) + 2 * ck_is_global(to) + 4 * ck_is_global(&to);
"""
    )
    x = np.arange(256, dtype=np.uint32)
    got = np.zeros((4, 64), np.uint32)
    emulator.build(text).launch([x], [got], units=1)
    words = x.reshape(64, 4)
    assert np.array_equal(got[0], words[:, 0] + 2 * words[:, 1])
    assert (got[1] == 0xFFFFFFFF).all() and np.array_equal(got[2], words[:, 3]) and (got[3] == 1).all()


def test_warnings_free() -> None:
    command = [emulator.compiler(), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    for name in ("gpu_emulation.cc", "gpu_emulation_main.cc"):
        subprocess.run([*command, str(emulator.HERE / name)], check=True)
