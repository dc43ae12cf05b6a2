"""Spellings of C: types, literals, tables."""

from __future__ import annotations

import math
import struct

from jax_cocktail.utask.types import INTEGERS, ITEM_SIZE

STORAGE = {
    "bool": "bool",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
}
COMPUTE = STORAGE | {"bfloat16": "f32", "float16": "f32"}
NARROW = ("bfloat16", "float16")


def literal(data: bytes, dtype: str) -> str:
    """C text of one element in its compute type."""
    if dtype == "bool":
        return "true" if data[0] else "false"
    if dtype in INTEGERS:
        number = int.from_bytes(data, "little", signed=not dtype.startswith("u"))
        suffix = {"int64": "LL", "uint64": "ULL", "uint32": "u"}.get(dtype, "")
        least = dtype in ("int32", "int64") and number == -(1 << 8 * len(data) - 1)
        text = f"{number + 1}{suffix} - 1" if least else f"{number}{suffix}"  # -2147483648 is a long in C
        return f"{COMPUTE[dtype]}({text})"
    return _float_literal(data, dtype)


def _float_literal(data: bytes, dtype: str) -> str:
    if dtype == "bfloat16":
        (number,) = struct.unpack("<f", b"\0\0" + data)
    else:
        code = {"float16": "<e", "float32": "<f", "float64": "<d"}[dtype]
        (number,) = struct.unpack(code, data)
    single = dtype != "float64"
    if math.isnan(number):
        return '__builtin_nanf("")' if single else '__builtin_nan("")'
    if math.isinf(number):
        sign = "-" if number < 0 else ""
        return f"({sign}__builtin_inf{'f' if single else ''}())"
    text = f"{number!r}{'f' if single else ''}"
    return f"({text})" if text.startswith("-") else text


def table(data: bytes, dtype: str) -> str:
    """The initialiser of a static array with these raw bytes."""
    width = ITEM_SIZE[dtype]
    words = (int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width))
    suffix = "ull" if width == 8 else "u"
    return ", ".join(f"{word:#x}{suffix}" for word in words)


def table_type(dtype: str) -> str:
    return {1: "u8", 2: "u16", 4: "u32", 8: "u64"}[ITEM_SIZE[dtype]]


MOST_ELEMENTS = (1 << 31) - (1 << 15)  # the most that a 32-bit loop variable counts, whatever its step
