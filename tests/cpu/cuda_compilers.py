"""The CUDA compilers of this machine for tests, and two programs to compile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jax_cocktail.build import cuda as build_cuda
from jax_cocktail.build import job as build_job
from jax_cocktail.build.device import device_toolchain
from jax_cocktail.build.kernels import DeviceToolchain
from jax_cocktail.errors import BuildError

SOURCE = """#define CK_THREADS 256
#define CK_SCRATCH_BYTES 1024
#include "cocktail_base.h"
#include "cocktail_math.h"
struct Pointers { void* at[2]; };
CK_NOINLINE f32 ck_total(const f32* x, i32 n) {
  f32 sum = 0;
  CK_NO_UNROLL for (i32 i = 0; i < n; ++i) sum += x[i] * x[n - i];
  return sum;
}
extern "C" __global__ void __launch_bounds__(CK_THREADS, 1) ck_portable(const __grid_constant__ Pointers p) {
  const f32* x = (const f32*)p.at[0];
  ((f32*)p.at[1])[ck_lane()] = ck_fma(x[ck_lane()], %s, 1.0f) + ck_total(x, 40);
}
extern "C" __global__ void __launch_bounds__(CK_THREADS, 1) ck_resident(const __grid_constant__ Pointers p) {
  __shared__ f32 shared[64];
  shared[ck_lane() %% 64] = ((const f32*)p.at[0])[ck_lane()];
  ck_block_barrier();
  ((f32*)p.at[1])[ck_lane()] = ck_tanh(shared[(ck_lane() + 1) %% 64]);
}
"""
# More values than a thread of 1024 has registers for, all of them alive in a loop.
SPILLING = """#define CK_THREADS 1024
#define CK_SCRATCH_BYTES 1024
#include "cocktail_base.h"
extern "C" __global__ void __launch_bounds__(CK_THREADS, 1) ck_portable(f32* x, i32 n) {
  f32 v[120];
#pragma unroll
  for (i32 i = 0; i < 120; ++i) v[i] = x[i * CK_THREADS + ck_lane()];
  CK_NO_UNROLL for (i32 t = 0; t < n; ++t) {
#pragma unroll
    for (i32 i = 0; i < 120; ++i) v[i] = ck_fma(v[(i * 7 + 3) % 120], v[i], x[t]);
  }
#pragma unroll
  for (i32 i = 0; i < 120; ++i) x[i * CK_THREADS + ck_lane()] = v[i];
}
"""


def program(number: float = 2.0) -> str:
    """Two kernels, one of which calls a function that is not inlined, the other with shared memory."""
    return SOURCE % f"{number}f"


def nvcc() -> DeviceToolchain:
    """The nvcc to use; without one the test is skipped."""
    try:
        found = device_toolchain()
    except BuildError as error:
        pytest.skip(str(error))
    if found.kind != "nvcc":
        pytest.skip("nvcc, or the g++ that it needs, is not installed")
    return found


def nvrtc() -> DeviceToolchain:
    """The NVRTC to use; without one the test is skipped."""
    libraries = build_cuda._nvrtc_libraries([], build_job.package_folders("nvidia"))
    found = next((each for each in map(build_cuda._nvrtc, libraries) if each), None)
    if found is None:
        pytest.skip("NVRTC is not installed (the static-checks extra)")
    return found


EACH_COMPILER = pytest.mark.parametrize("choose", [nvcc, nvrtc], ids=["nvcc", "nvrtc"])
Choose = Callable[[], DeviceToolchain]
