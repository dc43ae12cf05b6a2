"""Reports failures as XLA errors on the CPU, in programs that stock XLA compiles.

Our own programs report failures by their error code. Programs of stock XLA call a custom call that takes a
microsecond: it reads the status and returns an error with the matching line of the text.
"""

from __future__ import annotations

from typing import Any

import jax

from jax_cocktail.lowering.edge import custom_call
from jax_cocktail.recursion.failure import lowers_to

TARGET = "jax_cocktail_failure"
PLATFORM = "cpu"

_handler: Any = None  # must live as long as the process


def install() -> None:
    """Registers the handler with XLA and lowers failures to calls of it, once per process. Without the
    runtime library the handler is in Python."""
    global _handler
    if _handler is None:
        library = custom_call.library()
        _handler = _in_python() if library is None else library.ck_cpu_failure
        jax.ffi.register_ffi_target(TARGET, {"execute": jax.ffi.pycapsule(_handler)}, platform=PLATFORM)
        lowers_to(jax.ffi.ffi_lowering(TARGET), PLATFORM)


def _in_python() -> Any:
    from jax_cocktail.runtime import failure_handler  # not needed, thus not imported, if there is a compiler

    return failure_handler.execute
