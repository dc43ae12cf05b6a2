"""The structures of XLA's C API (`c_api.h`) for a handler in Python.

The layouts are those of API 0.1. Later versions only append fields.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import Any, ClassVar

METADATA_EXTENSION = 1
# Of XLA_FFI_Error_Code, XLA_FFI_AttrType and XLA_FFI_DataType.
INVALID_ARGUMENT, OUT_OF_RANGE, INTERNAL = 3, 11, 13
STRING = 4
S32 = 4


class _Structure(c.Structure):
    """The common beginning of all structures of XLA's C API."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (
        ("struct_size", c.c_size_t),
        ("extension_start", c.c_void_p),
    )


class ApiVersion(_Structure):
    """XLA_FFI_Api_Version."""

    _fields_ = (("major", c.c_int), ("minor", c.c_int))


class Api(_Structure):
    """XLA_FFI_Api, up to the last field that we use."""

    _fields_ = (
        ("version", ApiVersion),
        ("internal", c.c_void_p),
        ("error_create", c.c_void_p),
    )


class ErrorCreateArgs(_Structure):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = (("message", c.c_char_p), ("code", c.c_int))


class Buffer(_Structure):
    """XLA_FFI_Buffer."""

    _fields_ = (("dtype", c.c_int), ("data", c.c_void_p), ("rank", c.c_int64), ("dims", c.c_void_p))


class Buffers(_Structure):
    """XLA_FFI_Args and XLA_FFI_Rets."""

    _fields_ = (("size", c.c_int64), ("types", c.c_void_p), ("items", c.POINTER(c.POINTER(Buffer))))


class ByteSpan(c.Structure):
    """XLA_FFI_ByteSpan."""

    _fields_ = (("data", c.c_void_p), ("size", c.c_size_t))


class Attributes(_Structure):
    """XLA_FFI_Attrs."""

    _fields_ = (
        ("size", c.c_int64),
        ("types", c.POINTER(c.c_int)),
        ("names", c.POINTER(c.POINTER(ByteSpan))),
        ("items", c.POINTER(c.c_void_p)),
    )


class CallFrame(_Structure):
    """XLA_FFI_CallFrame."""

    _fields_ = (
        ("api", c.POINTER(Api)),
        ("context", c.c_void_p),
        ("stage", c.c_int),
        ("operands", Buffers),
        ("results", Buffers),
        ("attributes", Attributes),
        ("future", c.c_void_p),
    )


class Metadata(c.Structure):
    """XLA_FFI_Metadata."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("version", ApiVersion),
        ("traits", c.c_uint32),
        ("state_type", c.c_int64),
    )


class MetadataExtension(c.Structure):
    """XLA_FFI_Metadata_Extension."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("type", c.c_int),
        ("next", c.c_void_p),
        ("metadata", c.POINTER(Metadata)),
    )


def answered(frame: CallFrame) -> bool:
    """Answers a query of XLA for the API version. Returns False if the call was something else."""
    if not frame.extension_start:
        return False
    extension = MetadataExtension.from_address(frame.extension_start)
    if extension.type != METADATA_EXTENSION:
        return False
    metadata = extension.metadata.contents
    metadata.version.major, metadata.version.minor = 0, 1
    metadata.traits, metadata.state_type = 0, 0
    return True


def error_of(frame: CallFrame, code: int, text: str) -> int | None:
    """The address of a new XLA error, for a handler to return. `code`: XLA_FFI_Error_Code."""
    message = text.encode()
    arguments = ErrorCreateArgs(c.sizeof(ErrorCreateArgs), None, message, code)
    create = c.CFUNCTYPE(c.c_void_p, c.POINTER(ErrorCreateArgs))(frame.api.contents.error_create)
    error = create(c.byref(arguments))
    return None if error is None else int(error)


def text_of(frame: CallFrame, name: str) -> str | None:
    """An attribute that is a text; None if there is none."""
    attributes = frame.attributes
    for i in range(attributes.size):
        span = attributes.names[i].contents
        if attributes.types[i] == STRING and c.string_at(span.data, span.size) == name.encode():
            text = ByteSpan.from_address(attributes.items[i])
            return c.string_at(text.data, text.size).decode(errors="replace")
    return None
