"""The failure handler for the CPU in Python, used if no host compiler can build `cpu_src/runtime_failure.h`.

XLA calls it through ctypes.
"""

from __future__ import annotations

import ctypes as c
from math import prod

from jax_cocktail.runtime.ffi import (
    INVALID_ARGUMENT,
    OUT_OF_RANGE,
    S32,
    Buffer,
    CallFrame,
    Refused,
    attributes_of,
    handler,
    text_of,
)
from jax_cocktail.utask.failure import FINE, line_of


def _run(frame: CallFrame) -> None:
    """Runs one call. Raises Refused."""
    lines = attributes_of(frame).get("text")
    sides = [[side.items[i].contents for i in range(side.size)] for side in (frame.operands, frame.results)]
    counts = [[_count(buffer) for buffer in side] for side in sides]
    if lines is None or len(counts[0]) != 1 or counts[0] != counts[1] or counts[0][0] < 0:
        text = "the call takes one int32 array, returns one of its size, and needs the attribute text"
        raise Refused(INVALID_ARGUMENT, f"jax_cocktail: {text}")
    ((operand,), (result,)), ((count,), _) = sides, counts
    if count == 0:
        return
    statuses = (c.c_int32 * count).from_address(operand.data)
    failed = next((status for status in statuses if status != FINE), FINE)
    if failed != FINE:
        raise Refused(OUT_OF_RANGE, f"jax_cocktail: {line_of(text_of(lines), failed)}")
    c.memmove(result.data, operand.data, c.sizeof(statuses))


def _count(buffer: Buffer) -> int:
    """The number of elements of an int32 array; -1 for another type."""
    dims = (c.c_int64 * buffer.rank).from_address(buffer.dims) if buffer.rank else ()
    return prod(dims) if buffer.dtype == S32 else -1


execute = handler(_run)  # the counterpart of ck_cpu_failure in runtime_failure.h
