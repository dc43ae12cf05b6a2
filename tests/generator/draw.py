"""Random choices by seed, and the types of the values that programs compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

T = TypeVar("T")
Shape = tuple[int, ...]

WIDE = ("float64", "int64", "uint64")
HALVES = ("bfloat16", "float16")
FLOATS = ("float32", *HALVES, "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a value. `exact`: computed without rounding, so every compiler must get the same bits.

    Exact values are computed from exact values only. They alone determine which way a program takes and which
    elements it touches.
    """

    dtype: str
    shape: Shape
    exact: bool

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def like(self, **changes: Any) -> Kind:
        return Kind(**({name: getattr(self, name) for name in ("dtype", "shape", "exact")} | changes))


class Draw:
    """Choices that depend on a seed only: a sequence of integers."""

    def __init__(self, *seed: int) -> None:
        self._state = np.random.RandomState(list(seed))

    def below(self, count: int) -> int:
        return int(self._state.randint(count))

    def chance(self, probability: float) -> bool:
        return bool(self._state.random_sample() < probability)

    def of(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def order(self, items: Sequence[T]) -> list[T]:
        return [items[n] for n in self._state.permutation(len(items))]

    def seed(self) -> int:
        return self.below(1 << 31)

    def array(self, kind: Kind, special: float) -> np.ndarray:
        """Values of small size; `special`: the share of extreme ones."""
        dtype = numpy_dtype(kind.dtype)
        if kind.dtype == "bool":
            return self._state.random_sample(kind.shape) < 0.5
        if kind.is_float:
            small = self._state.uniform(-2, 2, kind.shape).astype(dtype)
        else:
            low = -9 if kind.dtype.startswith("i") else 0
            small = self._state.randint(low, 10, kind.shape).astype(dtype)
        extremes = np.array(extreme_values(kind.dtype), dtype)
        chosen = extremes[self._state.randint(len(extremes), size=kind.shape)]
        return np.where(self._state.random_sample(kind.shape) < special, chosen, small).astype(dtype)


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name)) if name == "bfloat16" else np.dtype(name)


def extreme_values(dtype: str) -> list[Any]:
    """The ends of a type's range, and what has rules of its own."""
    if dtype == "bool":
        return [False, True]
    if dtype not in FLOATS:
        info = np.iinfo(dtype)
        return [info.min, info.max, info.min + 1, info.max // 2, 0]
    info = ml_dtypes.finfo(numpy_dtype(dtype))
    tiny = float(info.tiny)
    return [np.nan, np.inf, -np.inf, -0.0, tiny / 4, -tiny / 2, tiny, float(info.max), -float(info.max)]
