"""Source text: affine index expressions, literals, an indenting writer."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from jax_cocktail.utask.types import FLOATS, INTEGERS, ITEM_SIZE

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


@dataclass(frozen=True, slots=True)
class Index:
    """constant + sum(coefficient * variable), in elements. Variables are names of C integers."""

    constant: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.constant + other, self.terms)
        merged = dict(self.terms)
        for name, coefficient in other.terms:
            merged[name] = merged.get(name, 0) + coefficient
        kept = tuple((n, c) for n, c in merged.items() if c)
        return Index(self.constant + other.constant, kept)

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return Index()
        return Index(self.constant * factor, tuple((n, c * factor) for n, c in self.terms))

    def text(self, rename: Mapping[str, tuple[str, int]] | None = None) -> str:
        """C text. `rename` replaces a variable by (name, keep); not keeping drops it (a merged axis)."""
        pieces = []
        for name, coefficient in self.terms:
            if rename and name in rename:
                name, keep = rename[name]
                if not keep:
                    continue
            pieces.append(name if coefficient == 1 else f"{coefficient} * {name}")
        if self.constant or not pieces:
            pieces.append(str(self.constant))
        return " + ".join(pieces)


def variable(name: str) -> Index:
    return Index(0, ((name, 1),))


def literal(data: bytes, dtype: str) -> str:
    """C text of one element in its compute type."""
    if dtype == "bool":
        return "true" if data[0] else "false"
    if dtype in INTEGERS:
        number = int.from_bytes(data, "little", signed=not dtype.startswith("u"))
        if number == -(2**63):
            return "(-9223372036854775807LL - 1)"
        suffix = {"int64": "LL", "uint64": "ULL", "uint32": "u"}.get(dtype, "")
        text = f"{number}{suffix}"
        return f"({text})" if number < 0 else f"{COMPUTE[dtype]}({text})"
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
    """Initialiser of a static array with these raw bytes."""
    width = ITEM_SIZE[dtype]
    words = (int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width))
    suffix = "ull" if width == 8 else "u"
    return ", ".join(f"{word:#x}{suffix}" for word in words)


def table_type(dtype: str) -> str:
    return {1: "u8", 2: "u16", 4: "u32", 8: "u64"}[ITEM_SIZE[dtype]]


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


MOST_ELEMENTS = (1 << 31) - (1 << 15)  # that 32-bit loop variables count, whatever their step


class Writer:
    """Lines of C with indentation and fresh names. `index`: the type of loop variables."""

    def __init__(self, index: str = "i64") -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.index = index
        self._fresh = 0

    def line(self, text: str) -> None:
        self.lines.append("  " * self.indent + text)

    def fresh(self, prefix: str) -> str:
        self._fresh += 1
        return f"{prefix}{self._fresh}"

    @contextmanager
    def block(self, head: str = "") -> Iterator[None]:
        self.line(f"{head} {{" if head else "{")
        self.indent += 1
        yield
        self.indent -= 1
        self.line("}")

    @contextmanager
    def loop(self, name: str, count: int | str, pragma: str = "") -> Iterator[None]:
        """for (name = 0; name < count; ++name)."""
        if pragma:
            self.line(pragma)
        index = "i64" if isinstance(count, int) and count > MOST_ELEMENTS else self.index
        with self.block(f"for ({index} {name} = 0; {name} < {count}; ++{name})"):
            yield
