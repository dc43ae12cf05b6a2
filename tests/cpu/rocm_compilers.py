"""The compilers of this machine for AMD's cards, for tests, and programs to compile."""

from __future__ import annotations

import ctypes.util
import shutil
from collections.abc import Callable

import pytest

from jax_cocktail.build import rocm as build_rocm
from jax_cocktail.build.kernels import DeviceToolchain
from tests.cpu import cuda_text

# More values than a thread of 1024 has registers for, all of them alive in a loop.
SPILLING = """#define CK_WARP 64
#define CK_THREADS 1024
#define CK_SCRATCH_BYTES 1024
#include "cocktail_base.h"
CK_KERNEL_HEAD ck_portable(f32* x, i32 n) {
  f32 v[160];
#pragma unroll
  for (i32 i = 0; i < 160; ++i) v[i] = x[i * CK_THREADS + ck_lane()];
  CK_NO_UNROLL for (i32 t = 0; t < n; ++t) {
#pragma unroll
    for (i32 i = 0; i < 160; ++i) v[i] = ck_fma(v[(i * 7 + 3) % 160], v[i], x[t]);
  }
#pragma unroll
  for (i32 i = 0; i < 160; ++i) x[i * CK_THREADS + ck_lane()] = v[i];
}
"""


def program(body: str = "", *, warp: int = 64, number: float = 2.0) -> str:
    """Two kernels of one body, which calls a function that is not inlined."""
    whole = cuda_text.program(
        f"""const f32* x = (const f32*)operands[0];
f32* y = (f32*)results[0];
f32* shared = (f32*)ck_arena();
shared[ck_lane()] = ck_tanh(x[ck_lane()]);
ck_block_barrier();
y[ck_lane()] = shared[(ck_lane() + 1) % CK_THREADS] + ck_total(x, i32({number}f * x[1]));
{body}""",
        headers=("cocktail_block.h", "cocktail_math.h"),
        prelude="""CK_NOINLINE f32 ck_total(const f32* x, i32 n) {
  f32 sum = 0;
  CK_NO_UNROLL for (i32 i = 0; i < n; ++i) sum += x[i] * x[n - i];
  return sum;
}""",
    )
    return f"#define CK_WARP {warp}\n{whole}"


def hipcc() -> DeviceToolchain:
    """The hipcc on PATH; without one the test is skipped."""
    found = shutil.which("hipcc")
    toolchain = build_rocm._hipcc(found) if found else None
    if toolchain is None:
        pytest.skip("hipcc is not installed, or lacks its device library (apt install hipcc)")
    return toolchain


def hiprtc() -> DeviceToolchain:
    """The system's HIPRTC; without one the test is skipped."""
    names = filter(None, map(ctypes.util.find_library, build_rocm._LIBRARIES))
    found = next(filter(None, map(build_rocm._hiprtc, names)), None)
    if found is None:
        pytest.skip("HIPRTC is not installed (apt install libamdhip64-dev)")
    return found


def zig() -> DeviceToolchain:
    """The clang of the `compiler` extra; without it the test is skipped."""
    found = build_rocm._freestanding()
    if found is None:
        pytest.skip("ziglang is not installed (the compiler extra)")
    return found


COMPILERS = (hipcc, hiprtc, zig)
EACH_COMPILER = pytest.mark.parametrize("choose", COMPILERS, ids=lambda choose: choose.__name__)
Choose = Callable[[], DeviceToolchain]
