"""Counts the bytes that a program loads and stores on the host, by unit and by memory.

The program is compiled as for a call, but it announces every access (`counter.cc`), and every copy of an
array (`counted.h`). A vector counts as one access of all its bytes, and a byte counts each time that it is
loaded, whether a cache holds it or not. Beside these, the counter simulates a cache for each unit, and counts
the lines that move between it and what lies behind it.

g++ announces the accesses of a loop before it vectorises it, clang afterwards. Neither takes loads out of the
loops of OpenMP before that, so these are plain loops here.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from jax_cocktail.build.host import PROGRAM_FLAGS, build_runtime, host_toolchain
from jax_cocktail.build.job import program_folders
from jax_cocktail.codegen.traffic import Moved, Traffic
from jax_cocktail.compiler import Emitted
from jax_cocktail.device.host import SERVER
from jax_cocktail.utask.arrays import numpy_dtype

Array = npt.NDArray[np.generic]
COUNTER, COUNTED = (Path(__file__).with_name(name) for name in ("counter.cc", "counted.h"))
PLAIN = ("-fno-builtin", "-fno-tree-loop-distribute-patterns")
BORDER = 64  # bytes, on which arrays begin
OTHER, OWN, WORKSPACE = "other", "own", "workspace"


@dataclass(frozen=True, slots=True)
class Counted(Traffic):
    """What one call moved, and its results. `far`: what moved in and out of the caches of the units."""

    results: tuple[Array, ...]
    far: Traffic


def count(
    emitted: Emitted,
    values: Sequence[Array],
    units: int = 1,
    flags: Sequence[str] = (),
    cached: int = int(SERVER.shared.near),
) -> Counted:
    """Runs a program for the host once, on so many units if it has work for them.

    Args:
      flags: of the compiler, after those of a call.
      cached: bytes of the cache of a unit, a multiple of 64 KiB; by default those that plans rely on.

    Raises:
      ValueError: a value is not what the program takes.
      subprocess.CalledProcessError: the program does not compile.
    """
    program, plan = emitted.program, emitted.plan
    taken = [(v.type.shape, numpy_dtype(v.type.dtype)) for v in program.entry.parameters]
    if taken != [(value.shape, value.dtype) for value in values]:
        raise ValueError(f"the program takes {taken}")
    operands = [_placed(v.shape, v.dtype) for v in map(np.asarray, values)]
    for operand, value in zip(operands, values, strict=True):
        operand[...] = value
    results = [_placed(v.type.shape, numpy_dtype(v.type.dtype)) for v in program.entry.results]
    for operand_number, result_number in plan.aliases:
        results[result_number] = operands[operand_number]
    workspace = _placed((plan.workspace_bytes,), np.dtype(np.uint8))
    names = [f"operand {n}" for n in range(len(operands))] + [f"result {n}" for n in range(len(results))]
    library = ctypes.CDLL(str(_built(emitted.source, tuple(flags))))
    arrays = [*operands, *results, workspace]
    begins, sizes = _numbers([a.ctypes.data for a in arrays]), _numbers([a.nbytes for a in arrays])
    own_bytes, entry = (
        ctypes.c_int64(plan.own_bytes),
        ctypes.cast(library.ck_traffic_program, ctypes.c_void_p),
    )
    library.ck_traffic_begin(begins, sizes, ctypes.c_int64(len(arrays)), own_bytes, ctypes.c_int64(cached))
    given = (ctypes.c_int64 * len(emitted.sizes))(*emitted.sizes)
    places = [(ctypes.c_void_p * max(len(of), 1))(*(a.ctypes.data for a in of)) for of in (operands, results)]
    base, wanted = ctypes.c_void_p(workspace.ctypes.data), ctypes.c_int64(units)
    most_units = ctypes.c_int64(plan.most_units)
    code = _runtime().ck_cpu_run(entry, most_units, own_bytes, given, *places, base, wanted)
    if code:
        raise RuntimeError(f"the program ended with code {code}")
    used, names = range(min(units, plan.most_units)), [*names, WORKSPACE]
    near, far = (
        tuple(_counted(found, n, names) for n in used)
        for found in (library.ck_traffic_counts, library.ck_traffic_far)
    )
    return Counted(near, tuple(results), Traffic(far))


def _counted(counts: Any, unit: int, names: Sequence[str]) -> Mapping[str, Moved]:
    counts.restype = ctypes.POINTER(ctypes.c_uint64)
    found = counts(ctypes.c_int64(unit))
    if not found:
        return {}
    moved = (Moved(found[2 * i], found[2 * i + 1]) for i in range(len(names) + 2))
    return {name: each for name, each in zip([OTHER, OWN, *names], moved, strict=True) if each.bytes}


def _numbers(values: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * len(values))(*values)


def _placed(shape: Sequence[int], dtype: np.dtype[np.generic]) -> Array:
    """Memory on a border that programs expect."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.full(size + BORDER, 0xA5, np.uint8)
    start = -raw.ctypes.data % BORDER
    return raw[start : start + size].view(dtype).reshape(shape)


@functools.cache
def _runtime() -> ctypes.CDLL:
    return ctypes.CDLL(build_runtime(jax.ffi.include_dir(), host_toolchain()))


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Of libraries; it goes with the process."""
    return tempfile.TemporaryDirectory(prefix="traffic-")


@functools.cache
def _built(source: str, asked: tuple[str, ...]) -> Path:
    """The library of a program that announces its accesses."""
    folder = Path(tempfile.mkdtemp(dir=_folder().name))
    (folder / "program.cc").write_text(source, encoding="utf-8")
    toolchain = host_toolchain()
    includes = [f"-I{path}" for path in program_folders("cpu_src")]
    # without what one compiler alone takes: a count belongs to the text
    flags = [flag for flag in PROGRAM_FLAGS if flag != "-shared" and not flag.startswith("-Wl")]
    flags += [*asked, *includes, "-include", str(COUNTED), *PLAIN]
    jobs = (
        [*toolchain.command, *flags, "-w", "-c", "-fsanitize=thread", "program.cc", "-o", "program.o"],
        [*toolchain.command, "-O2", "-fPIC", "-c", str(COUNTER), "-o", "counter.o"],
        [*toolchain.command, "-shared", "program.o", "counter.o", "-o", "program.so", "-lm"],
    )
    for job in jobs:
        subprocess.run(job, cwd=folder, check=True, capture_output=True, text=True)
    return folder / "program.so"
