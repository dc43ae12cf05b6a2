"""The structures of XLA's C API for a call on a GPU, beside those of the package (`runtime.ffi`)."""

from __future__ import annotations

import ctypes as c
from enum import IntEnum

from jax_cocktail.runtime import ffi

COMMAND_BUFFER_COMPATIBLE = 1
S64, U8 = 5, 6  # of XLA_FFI_DataType


class Kind(IntEnum):
    """XLA_FFI_AttrType."""

    ARRAY = 1
    SCALAR = 3
    STRING = 4


class Code(IntEnum):
    """XLA_FFI_Error_Code."""

    INVALID_ARGUMENT = 3
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    INTERNAL = 13
    DATA_LOSS = 15


class Api(ffi.Api):
    """XLA_FFI_Api, up to the last field that handlers use."""

    _fields_ = (
        ("error_details", c.c_void_p),
        ("error_destroy", c.c_void_p),
        ("handler_register", c.c_void_p),
        ("stream_get", c.c_void_p),
    )


class StreamGetArgs(c.Structure):
    """XLA_FFI_Stream_Get_Args."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("extension_start", c.c_void_p),
        ("context", c.c_void_p),
        ("stream", c.c_void_p),
    )


class Scalar(c.Structure):
    """XLA_FFI_Scalar."""

    _fields_ = (("dtype", c.c_int), ("value", c.c_void_p))


class Array(c.Structure):
    """XLA_FFI_Array."""

    _fields_ = (("dtype", c.c_int), ("size", c.c_size_t), ("data", c.c_void_p))
