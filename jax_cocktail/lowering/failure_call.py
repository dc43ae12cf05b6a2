"""How a failure becomes an error of XLA on the CPU, in programs that stock XLA compiles.

Our own programs tell by their error code; here one custom call does, a microsecond long, which looks at the
status and returns an error with the line of the text that belongs to it.
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
    """Makes the handler known to XLA, once per process. Without the runtime library it is in Python."""
    global _handler
    with _lock:
        if _handler is None:
            library = custom_call.library()
            handler = _in_python() if library is None else library.ck_cpu_failure
            jax.ffi.register_ffi_target(TARGET, {"execute": jax.ffi.pycapsule(handler)}, platform=PLATFORM)
            _handler = handler


def install() -> None:
    """Registers the handler, and makes failures call it."""
    register()
    lowers_to(jax.ffi.ffi_lowering(TARGET), PLATFORM)


def _in_python() -> Any:
    from jax_cocktail.runtime import failure_handler  # who has a compiler need not wait for it

    return failure_handler.execute
