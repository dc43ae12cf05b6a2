"""Runs a uTask program as built for the host, without JAX's runtime in between."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from jax_cocktail.compiler import compile_program
from jax_cocktail.utask.interpreter_common import numpy_dtype
from jax_cocktail.utask.ir import UProgram


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array on a 64-byte border, filled with rubbish so that forgotten writes show."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.full(size + 64, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def run_compiled(program: UProgram, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Results of the built program; operands that are donated are copied first, as XLA does."""
    artifact = compile_program(program)
    library = ctypes.CDLL(artifact.path)
    operands = []
    for value, given in zip(program.entry.parameters, arguments, strict=True):
        operands.append(_aligned(value.type.shape, numpy_dtype(value.type.dtype)))
        operands[-1][...] = given
    results = [_aligned(v.type.shape, numpy_dtype(v.type.dtype)) for v in program.entry.results]
    for operand, result in artifact.aliases:
        results[result] = operands[operand]
    workspace = _aligned((artifact.workspace_bytes,), np.dtype(np.uint8))

    def pointers(arrays: list[np.ndarray]) -> ctypes.Array:
        return (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))

    code = library.ck_program(pointers(operands), pointers(results), ctypes.c_void_p(workspace.ctypes.data))
    assert code == 0
    return results
