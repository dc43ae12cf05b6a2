"""Reports failures as XLA errors on the CPU, in programs that stock XLA compiles.

Our own programs report failures by their error code. Programs of stock XLA call a custom call that takes a
microsecond: it reads the status and returns an error with the matching line of the text.
"""

from __future__ import annotations

import threading
from typing import Any

import jax

from jax_cocktail.lowering import custom_call
from jax_cocktail.recursion.failure import lowers_to

TARGET = "jax_cocktail_failure"
PLATFORM = "cpu"

_lock = threading.Lock()
_handler: Any = None  # must live as long as the process


def register() -> None:
    """Registers the handler with XLA, once per process. Without the runtime library it is in Python."""
    global _handler
    with _lock:
        if _handler is None:
            library = custom_call.library()
            handler = _in_python() if library is None else library.ck_cpu_failure
            jax.ffi.register_ffi_target(TARGET, {"execute": jax.ffi.pycapsule(handler)}, platform=PLATFORM)
            _handler = handler


def install() -> None:
    """Registers the handler and lowers failures to calls of it."""
    register()
    lowers_to(jax.ffi.ffi_lowering(TARGET), PLATFORM)


def _in_python() -> Any:
    from jax_cocktail.runtime import failure_handler  # not needed, thus not imported, if there is a compiler

    return failure_handler.execute
