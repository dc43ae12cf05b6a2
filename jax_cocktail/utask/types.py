"""Tensor types, values, source positions: the leaves of the uTask IR."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from jax_cocktail.utask.sizes import is_integer

ITEM_SIZE: dict[str, int] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
}
FLOATS = frozenset({"bfloat16", "float16", "float32", "float64"})
SIGNED = frozenset({"int8", "int16", "int32", "int64"})
UNSIGNED = frozenset({"uint8", "uint16", "uint32", "uint64"})
INTEGERS = SIGNED | UNSIGNED

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type (a NumPy-style name of `ITEM_SIZE`) and static shape, row-major.

    `size`: the number of elements; `is_scalar`: there is one, whatever the rank, and it lives in a register.
    """

    dtype: str
    shape: Shape = ()
    size: int = field(init=False, repr=False, compare=False)  # asked for far more often than types are made
    nbytes: int = field(init=False, repr=False, compare=False)
    is_scalar: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_SIZE:
            raise ValueError(f"unknown dtype {self.dtype!r}")
        for d in self.shape:
            if not is_integer(d) or d < 0:
                raise ValueError(f"bad shape {self.shape!r}")
        size = prod(self.shape)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "nbytes", size * ITEM_SIZE[self.dtype])
        object.__setattr__(self, "is_scalar", size == 1)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def resized(self, axis: int, size: int) -> TensorType:
        """The type with another size along one axis."""
        return TensorType(self.dtype, (*self.shape[:axis], size, *self.shape[axis + 1 :]))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


_NAME_LENGTH = 200
_PATH_LENGTH = 4096


def plain(text: str, length: int = _NAME_LENGTH) -> str:
    """One line of printable characters from a name that somebody else chose.

    Line breaks, escapes, surrogates and other characters that are not printable become underscores.
    """
    short = text if len(text) <= length else text[: length - 3] + "..."
    return short if short.isprintable() else "".join(c if c.isprintable() else "_" for c in short)


@dataclass(frozen=True, slots=True)
class Source:
    """A position in the user's program, in plain characters. Never part of a fingerprint, nor of the text
    that is compiled."""

    file: str = ""
    line: int = 0
    function: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", plain(self.file, _PATH_LENGTH))
        object.__setattr__(self, "function", plain(self.function))

    def __str__(self) -> str:
        if not self.file:
            return ""
        return f"{self.file}:{self.line}" + (f" ({self.function})" if self.function else "")


NOWHERE = Source()


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value. `id` is unique in a program."""

    id: int
    type: TensorType

    def __hash__(self) -> int:
        return self.id

    def __str__(self) -> str:
        return f"%{self.id}"
