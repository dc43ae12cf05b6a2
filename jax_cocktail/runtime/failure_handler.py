"""The failure handler for the CPU in Python, used if no host compiler can build `cpu_src/runtime_failure.h`.

Stock XLA runs recursions then, and they fail with the same errors. XLA calls it through ctypes.
"""

from __future__ import annotations

import ctypes as c
from math import prod
from typing import Any

from jax_cocktail.runtime.ffi import (
    INTERNAL,
    INVALID_ARGUMENT,
    OUT_OF_RANGE,
    S32,
    Buffer,
    CallFrame,
    answered,
    error_of,
    text_of,
)
from jax_cocktail.utask.failure import FINE, line_of


def _handle(pointer: Any) -> int | None:
    frame = pointer.contents
    try:
        return None if answered(frame) else _run(frame)
    except Exception as error:  # no exception may escape into XLA
        text = f"jax_cocktail: {type(error).__name__}: {error}; please report this"
        return error_of(frame, INTERNAL, text)


def _run(frame: CallFrame) -> int | None:
    """Runs one call. Returns the address of an XLA error, or None."""
    lines = text_of(frame, "text")
    sides = [[side.items[i].contents for i in range(side.size)] for side in (frame.operands, frame.results)]
    counts = [[_count(buffer) for buffer in side] for side in sides]
    if lines is None or len(counts[0]) != 1 or counts[0] != counts[1] or counts[0][0] < 0:
        text = "the call takes one int32 array, returns one of its size, and needs the attribute text"
        return error_of(frame, INVALID_ARGUMENT, f"jax_cocktail: {text}")
    ((operand,), (result,)), ((count,), _) = sides, counts
    if count == 0:
        return None
    statuses = (c.c_int32 * count).from_address(operand.data)
    failed = next((status for status in statuses if status != FINE), FINE)
    if failed != FINE:
        return error_of(frame, OUT_OF_RANGE, f"jax_cocktail: {line_of(lines, failed)}")
    c.memmove(result.data, operand.data, c.sizeof(statuses))
    return None


def _count(buffer: Buffer) -> int:
    """The number of elements of an int32 array; -1 for another type."""
    dims = (c.c_int64 * buffer.rank).from_address(buffer.dims) if buffer.rank else ()
    return prod(dims) if buffer.dtype == S32 else -1


execute = c.CFUNCTYPE(c.c_void_p, c.POINTER(CallFrame))(_handle)  # as ck_cpu_failure in runtime_failure.h
