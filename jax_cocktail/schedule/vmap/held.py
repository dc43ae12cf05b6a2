"""The places of a batch element's arrays while a thread runs the element by itself; see `registers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np

from jax_cocktail.utask.layout import row_major
from jax_cocktail.utask.types import Value

Start: TypeAlias = Value | int
Registers: TypeAlias = np.ndarray[Any, Any]  # of values with one element


@dataclass(frozen=True, slots=True)
class Memory:
    """A dense part of an array in memory that nothing writes meanwhile: from `starts` on, along every axis.
    `axes`: the axis of the array that each axis of the part is; None: it has one position."""

    array: Value
    starts: tuple[Start, ...]
    axes: tuple[int | None, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The own part of result `number`, which lies in memory and is updated there; `starts` as in `Memory`.
    `version`: the state of the array that it shows, which must be the latest: memory has no other."""

    number: int
    starts: tuple[Start, ...]
    shape: tuple[int, ...]
    version: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Local:
    """Elements of the flat array `number` in the thread's own memory, from `offset` on, `strides` apart.
    `version` as in `Place`."""

    number: int
    offset: Start
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    size: int  # of the array
    version: int = field(default=0, compare=False)

    @property
    def is_whole(self) -> bool:
        """True if it is all of the array, in order."""
        axes = zip(self.shape, self.strides, row_major(self.shape), strict=True)
        is_dense = all(own == dense for n, own, dense in axes if n > 1)
        return self.offset == 0 and int(prod(self.shape)) == self.size and is_dense


@dataclass(frozen=True, slots=True)
class Computed:
    """An array whose elements are computed where they are read, by `cost` flops each. `uniform`: all are
    equal."""

    element: Callable[[Sequence[Start]], Value]
    dtype: str
    shape: tuple[int, ...]
    cost: int = 0
    uniform: bool = False


Held: TypeAlias = "Registers | Memory | Place | Local | Computed"


def same(value: Value, shape: Sequence[int]) -> Computed:
    """An array of this shape with the same number everywhere."""
    return Computed(lambda _: value, value.type.dtype, tuple(shape), uniform=True)


def single(value: Value) -> Registers:
    """A register as an array with one element of any shape of one."""
    found = np.empty((), object)
    found[()] = value
    return found
