"""Array entry points of C++ functions, called through ctypes, and how to compare floats."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jax_cocktail.build import host as build

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "bf16": BF16,
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
FLOATS = ("f32", "f64", "bf16", "f16")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 3e38, -3e38]
SPECIAL += [1.2e-38, -1.2e-38, 104.0, -104.0, 88.8, 89.5, -87.0, -17.5, 17.5, 1e10, -1e10, 2.5, -2.5, 1.5]


def map_source(name: str, types: tuple[str, ...], result: str, call: str) -> str:
    """An array entry point: result[i] = call(x0[i], ...)."""
    arrays = "".join(f", const {t}* x{i}" for i, t in enumerate(types))
    arguments = ", ".join(f"x{i}[i]" for i in range(len(types)))
    return (
        f"CK_EXPORT void {name}(i64 n{arrays}, {result}* y)"
        f" {{ CK_LANES for (i64 i = 0; i < n; ++i) y[i] = {call}({arguments}); }}\n"
    )


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@dataclass(frozen=True)
class Library:
    """The test library; `call(name, result dtype, *arrays)`."""

    handle: ctypes.CDLL

    def call(self, name: str, result: str, *arrays: np.ndarray) -> np.ndarray:
        inputs = [np.ascontiguousarray(a) for a in arrays]
        output = np.zeros(inputs[0].shape, DTYPES[result])
        function = getattr(self.handle, name)
        function.restype = None
        function(ctypes.c_int64(output.size), *map(pointer, inputs), pointer(output))
        return output

    def flushed(self, name: str, x: np.ndarray) -> np.ndarray | None:
        """The f32 function `name` with denormals flushed, as in XLA's threads; None where that is unknown."""
        output = np.zeros_like(x)
        function = ctypes.cast(getattr(self.handle, name), ctypes.c_void_p)
        done = self.handle.flushed(function, ctypes.c_int64(x.size), pointer(x), pointer(output))
        return output if done else None


# A program that lacks an entry is refused. Nobody calls this one.
ENTRY = 'extern "C" __attribute__((visibility("default"))) int ck_program() { return 0; }'


@contextmanager
def compiled(source: str, folder: Path) -> Iterator[Library]:
    """The functions of `source`, built with a cache of its own in `folder`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COCKTAIL_CACHE_DIR", str(folder))
        built = build.build_program(f"{source}\n{ENTRY}\n", build.host_toolchain())
        yield Library(ctypes.CDLL(built.path))


def ulps(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest error in units in the last place of the actual result's type."""
    smallest = np.finfo(actual.dtype).tiny
    unit = np.spacing(np.maximum(np.abs(expected), smallest).astype(actual.dtype)).astype(np.float64)
    return float(np.max(np.abs(actual.astype(np.float64) - expected) / unit))


def same(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> np.ndarray:
    """Equal with the sign of zero, both NaN, or close."""
    with np.errstate(invalid="ignore"):
        equal = (actual == expected) & (np.signbit(actual) == np.signbit(expected))
        close = np.abs(actual - expected) <= tolerance * np.abs(expected)
    return equal | close | (np.isnan(actual) & np.isnan(expected))
