"""Arm processors: all templates of products compile for AArch64, and have NumPy's results in an emulator.

The compiler is that of the `ziglang` package. Without `qemu-aarch64`, nothing runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from jax_cocktail.build.host import PROGRAM_FLAGS
from jax_cocktail.build.zig import zig
from jax_cocktail.compiler import emit
from tests.golden.programs import PROGRAMS

pytestmark = pytest.mark.long  # a first run builds clang's libraries for the target, which takes minutes

ROOT = Path(__file__).parents[2]
FLAGS = [flag for flag in PROGRAM_FLAGS if not flag.startswith(("-march", "-mprefer", "-shared", "-Wl"))]
INCLUDES = [f"-I{ROOT / folder}" for folder in ("cpu_src", "common_src")]
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
# Types of a, b and o, then m, n, k, and the strides of b.
PRODUCTS = (
    *((("f32",) * 3, m, 133, 40, "133, 1") for m in (1, 2, 5, 8, 13, 25, 200)),
    *((("f32",) * 3, m, 80, 530, "16, kCkPanels") for m in (1, 3, 7, 200)),
    *((("f32",) * 3, m, 512, 300, "512, 1") for m in (1, 3)),
    *((("f32",) * 3, m, 70, 300, "1, 300") for m in (1, 3, 30)),
    *((("f64",) * 3, m, 45, 150, "45, 1") for m in (1, 6, 20)),
    *((t, m, 83, 141, "83, 1") for t in (("bf16", "bf16", "f32"), ("f16", "f16", "f32")) for m in (1, 20)),
    *((("i8", "i8", "i32"), m, 83, 141, "83, 1") for m in (1, 20)),
)

DRIVER = """
#include "cocktail_dot.h"
#include "cocktail_math.h"
extern "C" int printf(const char*, ...);

template <class T>
void fill(T* x, i64 n, u32 seed) {
  for (i64 i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    const f64 value = f64(i32(seed >> 8) - (1 << 23)) / (1 << 22);
    if constexpr (CkType<T>::is_float) {
      x[i] = ck_convert<T>(value);
    } else {
      x[i] = T(i32(value * 8));
    }
  }
}

// The place of row p and column j of b.
i64 place(i64 p, i64 j, i64 k, i64 b_k, i64 b_n) {
  return b_n == kCkPanels ? j / b_k * b_k * k + p * b_k + j % b_k : p * b_k + j * b_n;
}

template <class A, class B, class O, i64 M, i64 N, i64 K, i64 B_K, i64 B_N>
int product() {
  static A a[M * K];
  static B b[K * N];
  static O o[M * N];
  fill(a, M * K, 1);
  fill(b, K * N, 2);
  ck_dot_fixed<A, B, O, M, N, K, K, 1, B_K, B_N, N, 1>(1, a, 0, b, 0, o, 0);
  int wrong = 0;
  for (i64 i = 0; i < M; ++i) {
    for (i64 j = 0; j < N; ++j) {
      f64 sum = 0, size = 0;
      for (i64 p = 0; p < K; ++p) {
        const f64 term = f64(ck_up(a[i * K + p])) * f64(ck_up(b[place(p, j, K, B_K, B_N)]));
        sum += term, size += term < 0 ? -term : term;
      }
      const f64 gap = sum - f64(ck_up(o[i * N + j])), most = CkSame<O, f64>::value ? 1e-14 : 1e-6;
      wrong += !((gap < 0 ? -gap : gap) <= most * size);
    }
  }
  if (wrong) printf("%d of %d x %d x %d are wrong\\n", wrong, int(M), int(N), int(K));
  return wrong;
}

int functions() {
  int wrong = 0;
  for (i64 i = 0; i < 4096; ++i) {
    const f32 x = f32(i - 2048) / 64;
    const f64 e = __builtin_exp(f64(x)), t = __builtin_tanh(f64(x));
    wrong += !(__builtin_fabs(f64(ck_exp(x)) - e) <= 4e-7 * e);
    wrong += !(__builtin_fabs(f64(ck_tanh(x)) - t) <= 1e-6);
  }
  if (wrong) printf("%d values of functions are wrong\\n", wrong);
  return wrong;
}
"""


def _compiler() -> tuple[str, dict[str, str]]:
    found = zig()
    if found is None:
        pytest.skip("needs the package ziglang")
    return found[0], {**os.environ, **found[1]}


def _compile(text: str, out: Path, flags: Sequence[str]) -> None:
    binary, environment = _compiler()
    source = out.with_suffix(".cc")
    source.write_text(text, encoding="utf-8")
    words = [binary, "c++", *flags, *FLAGS, *INCLUDES, str(source), "-o", str(out)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def _main() -> str:
    calls = (
        f"  wrong += product<{', '.join(types)}, {m}, {n}, {k}, {strides}>();\n"
        for types, m, n, k, strides in PRODUCTS
    )
    return f"{DRIVER}\nint main() {{\n  int wrong = functions();\n{''.join(calls)}  return wrong != 0;\n}}\n"


def test_products_and_functions(tmp_path: Path) -> None:
    program = tmp_path / "program"
    _compile(_main(), program, ["-target", "aarch64-linux-musl", "-static"])
    if EMULATOR is None:
        pytest.skip("it compiles; running needs qemu-aarch64")
    done = subprocess.run([EMULATOR, str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_program_compiles(name: str, tmp_path: Path) -> None:
    flags = ["-target", "aarch64-linux-gnu", "-c"]
    _compile(emit(PROGRAMS[name]()).source, tmp_path / "program", flags)
