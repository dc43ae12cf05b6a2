"""LAPACK and BLAS for compiled programs: the routines of SciPy, as in jaxlib."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

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
