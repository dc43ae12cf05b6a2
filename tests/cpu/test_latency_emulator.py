"""The emulator of machine code on small kernels: values are NumPy's, and cycles those counted by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.gpu import latency
from benchmarks.gpu.sass import decode, probes
from benchmarks.gpu.sass.emulate import state_of
from benchmarks.gpu.sass.execute import Execution
from benchmarks.gpu.sass.loops import Countdown, outermost
from benchmarks.gpu.sass.machine import PROBES, Multiprocessor
from benchmarks.gpu.sass.state import Grid
from benchmarks.gpu.sass.timing import Timing
from benchmarks.gpu.sass.traffic import block_traffic
from jax_cocktail.build.device import build_device_program
from jax_cocktail.codegen.traffic import Moved
from tests.cpu import sass
from tests.cpu.cuda_compilers import nvcc

pytestmark = pytest.mark.skipif(not sass.tools(), reason=sass.NO_TOOLS)

TEXT = r"""
extern "C" {
__global__ void chain(const float* x, float* y, const int* n) {
  float v = x[threadIdx.x], a = x[32], b = x[33];
#pragma unroll
  for (int i = 0; i < LENGTH; ++i) v = fmaf(v, a, b);
  y[threadIdx.x] = v;
}
__global__ void strided(const float* x, float* y, const int* n) {
  __shared__ int memory[32 * 34];
  for (int i = threadIdx.x; i < 32 * 34; i += 32) memory[i] = ((const int*)x)[i];
  __syncwarp();
  int at = threadIdx.x, stride = n[0];
#pragma unroll
  for (int i = 0; i < 8; ++i) at = memory[at * stride];
  ((int*)y)[threadIdx.x] = at;
}
__global__ void divergent(const float* x, float* y, const int* n) {
  float v = x[threadIdx.x], a = x[32];
  if (int(threadIdx.x) < n[0]) {
#pragma unroll 1
    for (int i = 0; i < n[1]; ++i) v = fmaf(v, a, 1.0f);
  } else {
#pragma unroll 1
    for (int i = 0; i < n[1]; ++i) v = fmaf(v, a, -1.0f);
  }
  y[threadIdx.x] = v;
}
__global__ void reversed(const float* x, float* y, const int* n) {
  __shared__ float memory[256];
  float v = x[threadIdx.x];
  if (threadIdx.x < 32) {
#pragma unroll 1
    for (int i = 0; i < n[0]; ++i) v = fmaf(v, 1.0f, 1.0f);
  }
  memory[threadIdx.x] = v;
  __syncthreads();
  y[threadIdx.x] = memory[255 - threadIdx.x];
}
__global__ void copied(const float* x, float* y, const int* n) {
  __shared__ __align__(16) float memory[1024];
  unsigned to = unsigned(__cvta_generic_to_shared(memory + 4 * threadIdx.x));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + 4 * threadIdx.x) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  y[threadIdx.x] = memory[1023 - threadIdx.x];
}
__global__ void total(const float* x, float* y, const int* n) {
  float v = x[threadIdx.x];
#pragma unroll
  for (int step = 16; step; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  y[threadIdx.x] = v + __shfl_sync(~0u, x[threadIdx.x], 7, 8) + __shfl_up_sync(~0u, v, 1);
}
__global__ void product(const float* x, float* y, const int* n) {
  unsigned lane = threadIdx.x, g = lane / 4, t = lane % 4;
  const float *a = x, *b = x + 128;
  unsigned a0 = __float_as_uint(a[8 * g + t]), a1 = __float_as_uint(a[8 * (g + 8) + t]);
  unsigned a2 = __float_as_uint(a[8 * g + t + 4]), a3 = __float_as_uint(a[8 * (g + 8) + t + 4]);
  unsigned b0 = __float_as_uint(b[8 * t + g]), b1 = __float_as_uint(b[8 * (t + 4) + g]);
  float c[4] = {};
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
               "{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  for (int k = 0; k < 4; ++k) y[8 * (g + 8 * (k / 2)) + 2 * t + k % 2] = c[k];
}
__global__ void integers(const float* x, float* y, const int* n) {
  const int* in = (const int*)x;
  int* out = (int*)y;
  int a = in[2 * threadIdx.x], b = in[2 * threadIdx.x + 1], k = threadIdx.x;
  long long wide = (long long)a * b + k;
  out[8 * k] = a / b;
  out[8 * k + 1] = a % b;
  out[8 * k + 2] = int(wide >> 20);
  out[8 * k + 3] = __clz(a) + 64 * __popc(b) + (__ffs(a) << 16);
  out[8 * k + 4] = min(a, b) ^ max(a, 3 * b) ^ abs(a);
  out[8 * k + 5] = int((unsigned(a) >> (k % 32)) + (b << (k % 29)));
  out[8 * k + 6] = int(unsigned(a) % 1000003u) + (a >> 3);
  out[8 * k + 7] = int(float(a) * 0.5f) + (((const unsigned char*)x)[k] << 8) + int(wide % 1000003);
}
__global__ void functions(const float* x, float* y, const int* n) {
  float v = x[threadIdx.x];
  float w = v > 0 ? sqrtf(v) : expf(v);
  y[threadIdx.x] = w / (1.0f + fabsf(v)) + tanhf(v) + log1pf(fabsf(v)) + sinf(v) + rsqrtf(1.0f + w);
}
__global__ void waiting(const float* x, float* y, const int* n) {
  if (threadIdx.x == 0) {
    int seen;
    do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(n) : "memory"); while (seen != 77);
  }
  __syncthreads();
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void counted(const float* x, float* y, const int* n) {
  float v = 0;
#pragma unroll 1
  for (int i = 0; i < 1000; ++i) { v += x[i]; __syncthreads(); }
  y[threadIdx.x] = v;
}
__global__ void stacked(const float* x, float* y, const int* n) {
  float v[40];
#pragma unroll
  for (int i = 0; i < 40; ++i) v[i] = x[threadIdx.x + i];
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < n[0]; ++i) {
    int at = (7 * i + int(threadIdx.x)) % 40;
    sum += v[at];
    v[at] = float(i);
  }
  y[threadIdx.x] = sum;
}
__global__ void timed(const float* x, float* y, const int* n) {
  asm volatile("trap;");
  y[threadIdx.x] = x[threadIdx.x];
}
}
"""
MACHINE = Multiprocessor("sm_90")


@pytest.fixture(scope="module")
def binaries():
    return {
        length: build_device_program(f"#define LENGTH {length}\n{TEXT}", nvcc(), "sm_90").binary
        for length in (48, 80)
    }


@pytest.fixture
def run(binaries):
    """`run(kernel, x, n)`: the array y as words, and the cycles."""

    def run(kernel, x, n=(0, 0), *, threads=32, results=None, length=48, machine=MACHINE, limit=10**6):
        code = decode.kernels(binaries[length])[kernel]
        contents = (x, 4 * (results or threads), np.array(n, np.int32))
        execution = Execution(code, state_of("sm_90", Grid(threads, 1), contents))
        ended = execution.run(lambda _: False, limit)
        timed = Timing(code, execution.warps, machine).run()
        assert ended or limit < 10**6
        return execution, execution.state.memory.arrays[1].copy(), timed.end

    return run


def floats(count, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def slower(**cycles):
    """The machine with some latencies so many cycles longer."""
    return dataclasses.replace(
        MACHINE, **{name: getattr(MACHINE, name) + more for name, more in cycles.items()}
    )


def test_chain_of_multiply_adds(run):
    """Each waits four cycles for the one before."""
    x = floats(34)
    cycles = {}
    for length in (48, 80):
        _, y, cycles[length] = run("chain", x, length=length)
        expected = x[:32]
        for _ in range(length):
            expected = (expected.astype(np.float64) * x[32] + x[33]).astype(np.float32)
        np.testing.assert_array_equal(y.view(np.float32), expected)
    assert cycles[80] - cycles[48] == 4 * 32


@pytest.mark.parametrize(
    ("kernel", "size", "n", "loaded", "stored", "shared"),
    [
        ("chain", 34, (0, 0), 128 + 2 * 32, 128, Moved()),  # two loads of the sector behind 32 elements
        ("strided", 32 * 34, (1, 0), 34 * 128, 128, Moved(8 * 128, 34 * 128)),
        ("copied", 1024, (0, 0), 4096, 1024, Moved(8 * 128, 4096)),
    ],
)
def test_traffic(run, kernel, size, n, loaded, stored, shared):
    threads = 256 if kernel == "copied" else 32
    execution, _, _ = run(kernel, np.zeros(size, np.int32), n, threads=threads)
    found = block_traffic(execution.code, execution.warps, 3)
    assert found.arrays[0] == Moved(loaded)
    assert found.arrays[1] == Moved(stored=stored)
    assert found.shared == shared and found.local == Moved()


@pytest.mark.parametrize(
    ("stride", "other", "turns"), [(0, 1, 0), (33, 1, 0), (16, 8, 8), (32, 8, 24), (32, 16, 16)]
)
def test_bank_conflicts(run, stride, other, turns):
    """Lanes whose words lie in one bank are served one after the other. `turns`: more than with `other`."""
    lanes = np.arange(32)

    def cycles(stride):
        x = np.zeros(32 * 34, np.int32)
        x[stride * lanes] = lanes if stride else 0  # each lane reads the same word eight times in a row
        _, y, cycles = run("strided", x, (stride, 0))
        np.testing.assert_array_equal(y, x[stride * lanes])
        return cycles

    assert cycles(stride) - cycles(other) == 8 * turns


def test_divergence(run):
    """A warp whose lanes part runs both sides, one after the other."""
    x, n = floats(33), 20

    def side(lanes, sign):
        v = x[lanes]
        for _ in range(n):
            v = (v.astype(np.float64) * x[32] + sign).astype(np.float32)
        return v

    _, y, both = run("divergent", x, (16, n))
    expected = np.concatenate([side(np.arange(16), 1.0), side(np.arange(16, 32), -1.0)])
    np.testing.assert_array_equal(y.view(np.float32), expected)
    (_, _, one), (_, _, other) = (run("divergent", x, (lanes, n)) for lanes in (32, 0))
    (_, _, no_one), (_, _, no_other) = (run("divergent", x, (lanes, 0)) for lanes in (32, 0))
    parted = both - run("divergent", x, (16, 0))[2]
    taken = MACHINE.taken_branch  # of the lanes that go elsewhere
    assert parted == pytest.approx((one - no_one) + (other - no_other), abs=taken)


def test_block_barrier(run, binaries):
    """Seven warps wait for the first one, whose loop takes so much longer."""
    x = floats(256)
    expected = x[::-1].copy()
    cycles = {}
    for n in (50, 80):
        _, y, cycles[n] = run("reversed", x, (n, 0), threads=256)
        expected = x.copy()
        for _ in range(n):
            expected[:32] += np.float32(1)
        np.testing.assert_array_equal(y.view(np.float32), expected[::-1])
    alone = [run("reversed", x, (n, 0), threads=256, machine=slower(block_barrier=100))[2] for n in (50, 80)]
    assert [alone[0] - cycles[50], alone[1] - cycles[80]] == [100, 100]
    turn = (cycles[80] - cycles[50]) / 30
    code = decode.kernels(binaries[48])["reversed"]
    (loop,) = outermost(code)
    stalls = [i.stall for i in code[loop.first : loop.last]]
    assert turn == sum(stalls) + max(code[loop.last].stall, 5) + MACHINE.taken_branch


def test_copies_ahead(run):
    x = floats(1024)
    _, y, cycles = run("copied", x, threads=256)
    np.testing.assert_array_equal(y.view(np.float32), x[1023 - np.arange(256)])
    assert run("copied", x, threads=256, machine=slower(far_copy=100))[2] - cycles == 100
    assert run("copied", x, threads=256, machine=slower(far_load=100))[2] == cycles


def test_shuffles(run):
    x = floats(32)
    _, y, cycles = run("total", x)
    v = x
    for step in (16, 8, 4, 2, 1):
        v = v + v[np.arange(32) ^ step]
    expected = (v + x[np.arange(32) // 8 * 8 + 7]) + v[np.maximum(np.arange(32) - 1, 0)]
    np.testing.assert_allclose(y.view(np.float32), expected, rtol=1e-6)
    assert (
        run("total", x, machine=slower(shuffle=10))[2] - cycles == 60
    )  # five, and the last two side by side


def test_matrix_product(run):
    x = np.random.default_rng(1).integers(-8, 8, 192).astype(np.float32)
    _, y, _ = run("product", x, results=128)
    expected = x[:128].reshape(16, 8) @ x[128:].reshape(8, 8)
    np.testing.assert_array_equal(y.view(np.float32).reshape(16, 8), expected)


def test_integers(run):
    x = np.random.default_rng(2).integers(-(2**31), 2**31, 512).astype(np.int32)
    x[1::2] |= 1  # no division by zero
    _, y, _ = run("integers", x, threads=256, results=2048)
    a, b, k = x[::2].astype(np.int64), x[1::2].astype(np.int64), np.arange(256)
    quotient, wide = np.trunc(a / b).astype(np.int64), a * b + k
    bits = [f"{int(v) & 0xFFFFFFFF:032b}" for v in a]
    leading = np.array([len(text) - len(text.lstrip("0")) for text in bits])
    first = np.array([len(text) - len(text.rstrip("0")) + 1 for text in bits])
    ones = np.array([bin(int(v) & 0xFFFFFFFF).count("1") for v in b])
    low = lambda v: np.asarray(v).astype(np.int64).astype(np.uint64).astype(np.uint32)  # noqa: E731
    three = low(3 * b).view(np.int32).astype(np.int64)
    expected = [
        quotient,
        a - quotient * b,
        wide >> 20,
        leading + 64 * ones + (first << 16),
        np.minimum(a, b) ^ np.maximum(a, three) ^ np.abs(a),
        (low(a) >> (k % 32).astype(np.uint32)).astype(np.int64) + (b << (k % 29)),
        low(a).astype(np.int64) % 1000003 + (a >> 3),
        np.trunc(x[::2].astype(np.float32) * np.float32(0.5)).astype(np.int64)
        + (x.view(np.uint8)[:256].astype(np.int64) << 8)
        + np.fmod(wide, 1000003),
    ]
    for column, values in enumerate(expected):
        np.testing.assert_array_equal(y.reshape(256, 8)[:, column], low(values), f"column {column}")


def test_functions(run):
    x = 3 * floats(256)
    _, y, _ = run("functions", x, threads=256)
    v = x.astype(np.float64)
    w = np.where(v > 0, np.sqrt(np.abs(v)), np.exp(v))
    expected = w / (1 + np.abs(v)) + np.tanh(v) + np.log1p(np.abs(v)) + np.sin(v) + 1 / np.sqrt(1 + w)
    np.testing.assert_allclose(y.view(np.float32), expected, rtol=2e-6, atol=2e-6)


def test_a_stack(run):
    x, turns = np.arange(104, dtype=np.float32), 60
    execution, y, _ = run("stacked", x, (turns, 0), threads=64)
    assert {"LDL", "STL"} <= {i.kind for i in execution.code}
    for thread in range(64):
        values, total = list(x[thread : thread + 40]), 0.0
        for i in range(turns):
            at = (7 * i + thread) % 40
            total += values[at]
            values[at] = i
        assert y.view(np.float32)[thread] == total


def test_what_is_polled_has_come(run):
    x = floats(64)
    execution, y, _ = run("waiting", x, threads=64)
    np.testing.assert_array_equal(y.view(np.float32), x)
    assert list(execution.crossings.values()) == ["barrier"]


def test_iterations_follow_from_the_counter(binaries):
    code = decode.kernels(binaries[48])["counted"]
    (loop,) = outermost(code)
    execution = Execution(code, state_of("sm_90", Grid(32, 1), (floats(1000), 128, 8)))
    counter = Countdown(code, loop, execution.binder)

    def look(_):
        counter.look()
        return len(counter.seen) == 3

    assert not execution.run(look, 10**6)
    assert counter.iterations() == 1000


@pytest.mark.parametrize("field", PROBES)
def test_probes_give_the_constants(field):
    """A probe consists of the latency it is for, and of what `machine` says."""
    nvcc()
    name, times, beside = PROBES[field]
    code = decode.kernels(latency.program("sm_90"))[probes.KERNEL]
    expected = times * getattr(MACHINE, field) + beside
    assert probes.clocks(code, latency.probes(1 << 20, True)[name], MACHINE) == pytest.approx(expected, abs=1)


def test_unknown_instructions_are_named(run):
    with pytest.raises(decode.UnknownInstruction, match=r"BPT.* at 0x"):
        run("timed", floats(32))


def test_a_far_load_is_waited_for(run):
    """The first load of a line comes from afar, and the next one of the chain's constants hits."""
    x = floats(34)
    cycles = run("chain", x)[2]
    assert run("chain", x, machine=slower(far_load=100))[2] - cycles == 100
