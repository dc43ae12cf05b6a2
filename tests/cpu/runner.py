"""Runs a uTask program as built for the host, by one unit, without JAX's runtime in between."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from jax_cocktail.compiler import Artifact, build, emit
from jax_cocktail.placement.limits import Limits
from jax_cocktail.schedule.products.pack_factors import Packing
from jax_cocktail.utask.arrays import numpy_dtype
from jax_cocktail.utask.candidate import SINGLE, Candidate
from jax_cocktail.utask.ir import UProgram

# Work of any size is divided: test programs are small. Units need not meet, as on a GPU.
EAGER = Limits(flops=4, bytes=8, least_part=1, light=2, lanes=1, meets=False)
PACKS = Packing(reads=2)  # what short loops repeat


def compile_program(program: UProgram, candidate: Candidate = SINGLE) -> Artifact:
    """From a translated program to a binary for the host."""
    return build(emit(program, candidate=candidate))


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array on a 64-byte border, filled with rubbish so that forgotten writes show."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.full(size + 64, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


class Unit(ctypes.Structure):
    """CkUnit of cocktail_units.h."""

    _fields_ = (
        ("index", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("own", ctypes.c_void_p),
        ("team", ctypes.c_void_p),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("alarm", ctypes.POINTER(ctypes.c_uint64)),
        ("stops", ctypes.c_void_p),
    )


def run_compiled(program: UProgram, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Results of the program, once it is built."""
    return run_artifact(compile_program(program), program, arguments)


def run_artifact(
    artifact: Artifact,
    program: UProgram,
    arguments: Sequence[np.ndarray],
    meanwhile: list[np.ndarray] | None = None,
) -> list[np.ndarray]:
    """Results of a built program; operands that are donated are copied first, as XLA does.

    `meanwhile`: a list that gets the results before the program begins, for who looks at them while it runs.
    """
    library = ctypes.CDLL(artifact.path)
    operands = []
    for value, given in zip(program.entry.parameters, arguments, strict=True):
        operands.append(_aligned(value.type.shape, numpy_dtype(value.type.dtype)))
        operands[-1][...] = given
    results = [_aligned(v.type.shape, numpy_dtype(v.type.dtype)) for v in program.entry.results]
    for operand, result in artifact.aliases:
        results[result] = operands[operand]
    if meanwhile is not None:
        meanwhile += results
    workspace = _aligned((artifact.workspace_bytes,), np.dtype(np.uint8))

    def pointers(arrays: list[np.ndarray]) -> ctypes.Array:
        return (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))

    emitted = artifact.emitted
    own = _aligned((artifact.executable.own_bytes,), np.dtype(np.uint8))
    sizes, alarm = (ctypes.c_int64 * len(emitted.sizes))(*emitted.sizes), ctypes.c_uint64(0)
    unit = Unit(0, 1, own.ctypes.data, None, sizes, ctypes.pointer(alarm), None)
    scratch = ctypes.c_void_p(workspace.ctypes.data)
    code = library.ck_program(pointers(operands), pointers(results), scratch, ctypes.byref(unit))
    assert code == 0
    return results
