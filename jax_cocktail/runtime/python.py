"""The parts of Python that the runtime library for the CPU uses: LAPACK, BLAS (`cpu_src/runtime_routines.h`),
and Ctrl-C and limits of time, with the errors of calls that were stopped (`cpu_src/runtime_stop.h`)."""

from __future__ import annotations

import ctypes
import importlib
import math
import signal
import threading
from typing import Any

from jax_cocktail.errors import TimeLimitError

# ---- the routines of SciPy, as in jaxlib -------------------------------------------------------------------

_NAME = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)
_POINTER = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_name_of: Any = _NAME(("PyCapsule_GetName", ctypes.pythonapi))
_pointer_in: Any = _POINTER(("PyCapsule_GetPointer", ctypes.pythonapi))


def address(name: str) -> int | None:
    """The address of a routine, which takes pointers and has no result; None if SciPy does not have it."""
    for module in ("scipy.linalg.cython_lapack", "scipy.linalg.cython_blas"):
        capsule = importlib.import_module(module).__pyx_capi__.get(name)
        if capsule is not None:
            pointer: int | None = _pointer_in(capsule, _name_of(capsule))
            return pointer
    return None


def _find(name: bytes) -> int | None:
    try:
        return address(name.decode())
    except Exception:  # SciPy is broken or another one; the handler reports what is missing
        return None


# It must live as long as the process.
_FIND = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(_find)


def provide(library: ctypes.CDLL) -> None:
    """Makes the handlers of a library ask this module."""
    library.ck_set_find_routine(_FIND)


# ---- stopped calls -----------------------------------------------------------------------------------------

# Of Python's C API, in the order of the structure in the library.
_FUNCTIONS = (
    *("PyGILState_Ensure", "PyGILState_Release", "PyGILState_GetThisThreadState"),
    *("PyObject_CallFunction", "Py_DecRef", "PyErr_Clear"),
)
_OBJECTS = "getsignal", "default_int_handler"
_MOST_NANOSECONDS = 1 << 62
_USUAL = -1
_INTERRUPTED, _LATE = "CANCELLED: jax_cocktail: ", "DEADLINE_EXCEEDED: jax_cocktail: "


def hear(library: ctypes.CDLL) -> None:
    """Lets Ctrl-C stop calls if Python handles it: the library's handler comes before Python's."""
    if not callable(signal.getsignal(signal.SIGINT)):
        return
    functions = (ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in _FUNCTIONS)
    # The module is the one that Python's own handler asks; the functions of `signal` run code in Python.
    objects = (id(getattr(importlib.import_module("_signal"), name)) for name in _OBJECTS)
    addresses = [*functions, *objects]
    library.ck_cpu_hear((ctypes.c_void_p * len(addresses))(*addresses))


def usual_limit(library: ctypes.CDLL, seconds: float) -> None:
    """Sets the limit of calls that have none of their own; infinity for none."""
    library.ck_cpu_usual_limit(ctypes.c_int64(_nanoseconds(seconds)))


def limit(library: ctypes.CDLL, seconds: float | None, longest: float | None) -> None:
    """Sets the limit of the calls of this thread, and the longest one that any thread has, for calls that
    XLA's threads run. None: the usual one."""
    for tell, each in ((library.ck_cpu_limit, seconds), (library.ck_cpu_longest_limit, longest)):
        tell(ctypes.c_int64(_USUAL if each is None else _nanoseconds(each)))


def _nanoseconds(seconds: float) -> int:
    """At least 1; 0 for none."""
    return 0 if math.isinf(seconds) else max(int(min(seconds * 1e9, _MOST_NANOSECONDS)), 1)


def ctrl_c_stopped(error: BaseException) -> bool:
    """True for the error of a call that Ctrl-C has stopped."""
    return str(error).startswith(_INTERRUPTED)


def meant(error: BaseException) -> BaseException:
    """The error that a call raises in the place of XLA's, which has one of several classes: KeyboardInterrupt
    with a note of where the call was stopped, or TimeLimitError. Any other error as it is."""
    cause = error.__context__ if isinstance(error, KeyboardInterrupt) else error
    text = cause.args[0] if cause is not None and cause.args else ""
    if not isinstance(text, str):
        return error
    if text.startswith(_LATE):
        return error if cause is not error else TimeLimitError(text.removeprefix(_LATE))
    if not text.startswith(_INTERRUPTED) or threading.current_thread() is not threading.main_thread():
        return error
    # Python's own may have been lost in a callback that cannot raise, such as an audit hook.
    interrupt = error if isinstance(error, KeyboardInterrupt) else KeyboardInterrupt()
    if not hasattr(interrupt, "__notes__"):
        interrupt.add_note(text.removeprefix(_INTERRUPTED))
    return interrupt
