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
    sizes = frame.operands.size, frame.results.size
    operand = frame.operands.items[0].contents if sizes == (1, 1) else None
    if lines is None or operand is None or operand.dtype != S32:
        text = "the call takes one int32 array, returns one, and needs the attribute text"
        raise Refused(INVALID_ARGUMENT, f"jax_cocktail: {text}")
    count = prod((c.c_int64 * operand.rank).from_address(operand.dims)) if operand.rank else 1
    if count == 0:
        return
    statuses = (c.c_int32 * count).from_address(operand.data)
    failed = next((status for status in statuses if status != FINE), FINE)
    if failed != FINE:
        raise Refused(OUT_OF_RANGE, f"jax_cocktail: {line_of(text_of(lines), failed)}")
    c.memmove(frame.results.items[0].contents.data, operand.data, c.sizeof(statuses))


execute = handler(_run)  # the counterpart of ck_cpu_failure in runtime_failure.h
