"""The structures of XLA's C API (`c_api.h`) for handlers in Python, and the attributes of a call on a GPU.

The layouts are those of API 0.1. Later versions only append fields.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from jax_cocktail.utask.plan import LaunchPlan

METADATA_EXTENSION = 1
COMMAND_BUFFER_COMPATIBLE = 1
# Of XLA_FFI_Error_Code, XLA_FFI_AttrType and XLA_FFI_DataType.
INVALID_ARGUMENT, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, OUT_OF_RANGE = 3, 7, 8, 9, 11
INTERNAL, DATA_LOSS = 13, 15
ARRAY, SCALAR, STRING = 1, 3, 4
S32, S64, U8 = 4, 5, 6


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
        ("error_details", c.c_void_p),
        ("error_destroy", c.c_void_p),
        ("handler_register", c.c_void_p),
        ("stream_get", c.c_void_p),
    )


class ErrorCreateArgs(_Structure):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = (("message", c.c_char_p), ("code", c.c_int))


class StreamGetArgs(_Structure):
    """XLA_FFI_Stream_Get_Args."""

    _fields_ = (("context", c.c_void_p), ("stream", c.c_void_p))


class Buffer(_Structure):
    """XLA_FFI_Buffer."""

    _fields_ = (("dtype", c.c_int), ("data", c.c_void_p), ("rank", c.c_int64), ("dims", c.c_void_p))


class Buffers(_Structure):
    """XLA_FFI_Args and XLA_FFI_Rets."""

    _fields_ = (("size", c.c_int64), ("types", c.c_void_p), ("items", c.POINTER(c.POINTER(Buffer))))


class ByteSpan(c.Structure):
    """XLA_FFI_ByteSpan."""

    _fields_ = (("data", c.c_void_p), ("size", c.c_size_t))


class Scalar(c.Structure):
    """XLA_FFI_Scalar."""

    _fields_ = (("dtype", c.c_int), ("value", c.c_void_p))


class Array(c.Structure):
    """XLA_FFI_Array."""

    _fields_ = (("dtype", c.c_int), ("size", c.c_size_t), ("data", c.c_void_p))


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


def answered(frame: CallFrame, traits: int = 0) -> bool:
    """Answers a query of XLA for the API version. Returns whether the call was such a query."""
    if not frame.extension_start:
        return False
    extension = MetadataExtension.from_address(frame.extension_start)
    if extension.type != METADATA_EXTENSION:
        return False
    metadata = extension.metadata.contents
    metadata.version.major, metadata.version.minor = 0, 1
    metadata.traits, metadata.state_type = traits, 0
    return True


def error_of(frame: CallFrame, code: int, text: str) -> int | None:
    """The address of a new XLA error, for a handler to return. `code`: XLA_FFI_Error_Code."""
    message = text.encode()
    arguments = ErrorCreateArgs(c.sizeof(ErrorCreateArgs), None, message, code)
    create = c.CFUNCTYPE(c.c_void_p, c.POINTER(ErrorCreateArgs))(frame.api.contents.error_create)
    error = create(c.byref(arguments))
    return None if error is None else int(error)


HANDLER = c.CFUNCTYPE(c.c_void_p, c.POINTER(CallFrame))


class Refused(Exception):
    """An error to report to XLA. `code`: XLA_FFI_Error_Code."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


def handler(run: Callable[[CallFrame], int | None], traits: int = 0) -> Any:
    """The function that XLA calls. `run`: runs one call; returns the address of an XLA error, or None."""

    def handle(pointer: Any) -> int | None:
        frame = pointer.contents
        try:
            return None if answered(frame, traits) else run(frame)
        except Refused as refused:
            return error_of(frame, refused.code, str(refused))
        except Exception as error:  # no exception may escape into XLA
            text = f"jax_cocktail: {type(error).__name__}: {error}; please report this"
            return error_of(frame, INTERNAL, text)

    return HANDLER(handle)


@dataclass(frozen=True, slots=True)
class Call:
    """The attributes of a call. `binary`: address and size; `failures`: one message line per error code."""

    name: str
    digest: str
    binary: tuple[int, int]
    plan: LaunchPlan
    signature: tuple[int, ...]
    sync: bool
    log: bool
    failures: str = ""

    def refused(self, code: int, text: str) -> Refused:
        return Refused(code, f"jax_cocktail: the program {self.name}: {text}")


_BAD_ATTRIBUTES = (
    "jax_cocktail: the call needs the attributes binary (u8[]), digest (64 hexadecimal digits), launch"
    " (i64[12 or more], version 2), signature (i64[]), name and sync (i64); another version of jax_cocktail"
    " made it: compile it again"
)


def attributes_of(frame: CallFrame) -> dict[str, tuple[int, int]]:
    """The attributes by name, each as (XLA_FFI_AttrType, address)."""
    found: dict[str, tuple[int, int]] = {}
    attributes = frame.attributes
    for i in range(attributes.size):
        span = attributes.names[i].contents
        name = c.string_at(span.data, span.size).decode()
        found[name] = attributes.types[i], attributes.items[i]
    return found


def read_call(frame: CallFrame) -> Call:
    """Reads the attributes of a call. Raises Refused if they are not those of a program."""
    found = attributes_of(frame)
    try:
        binary, launch = _array(found["binary"], U8), _array(found["launch"], S64)
        digest, name, sync = text_of(found["digest"]), text_of(found["name"]), _integer(found["sync"])
        plan = LaunchPlan.from_attribute(_numbers(launch))
        signature = _numbers(_array(found["signature"], S64))
        if len(digest) != 64:
            raise ValueError("no digest")
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(INVALID_ARGUMENT, _BAD_ATTRIBUTES) from error
    failures = text_of(found["failures"]) if "failures" in found else ""
    return Call(name[:200], digest, binary, plan, signature, sync != 0, sync == 2, failures)


def _numbers(array: tuple[int, int]) -> tuple[int, ...]:
    return tuple((c.c_int64 * array[1]).from_address(array[0]))


def fits(signature: Sequence[int], frame: CallFrame) -> bool:
    """True if a call passes what its program was compiled for, see `trust.signature`."""
    sides = [[side.items[i].contents for i in range(side.size)] for side in (frame.operands, frame.results)]
    aliases = signature[2] if len(signature) > 2 else 0
    numbers = [len(sides[0]), len(sides[1]), aliases]
    for buffer in (*sides[0], *sides[1]):
        dims = (c.c_int64 * buffer.rank).from_address(buffer.dims) if buffer.rank else ()
        numbers += [buffer.dtype, buffer.rank, *dims]
    flat = signature[len(numbers) :]
    if tuple(numbers) != tuple(signature[: len(numbers)]) or len(flat) != 2 * aliases:
        return False
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    if any(not (0 <= a < len(sides[0]) and 0 <= b < len(sides[1])) for a, b in pairs):
        return False
    return all(sides[0][a].data == sides[1][b].data for a, b in pairs)


def _array(found: tuple[int, int], dtype: int) -> tuple[int, int]:
    kind, address = found
    array = Array.from_address(address)
    if kind != ARRAY or array.dtype != dtype or not array.data:
        raise ValueError("not an array of the type")
    return array.data, array.size


def text_of(found: tuple[int, int]) -> str:
    kind, address = found
    span = ByteSpan.from_address(address)
    if kind != STRING:
        raise ValueError("not a text")
    return c.string_at(span.data, span.size).decode(errors="replace")


def _integer(found: tuple[int, int]) -> int:
    kind, address = found
    scalar = Scalar.from_address(address)
    if kind != SCALAR or scalar.dtype != S64:
        raise ValueError("not an integer")
    return c.c_int64.from_address(scalar.value).value
