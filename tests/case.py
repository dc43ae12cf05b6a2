"""What a differential case is: a function of arrays, deterministic inputs, a tolerance, a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

Maker = Callable[[np.random.Generator], Any]

FLOATS = ("float32", "bfloat16", "float16", "float64")
SIGNED = ("int32", "int8", "int16", "int64")
UNSIGNED = ("uint32", "uint8", "uint16", "uint64")
NUMBERS = FLOATS + SIGNED + UNSIGNED
ALL = ("bool", *NUMBERS)
WIDE = frozenset({"float64", "int64", "uint64"})
# Options of stock XLA that only tells what is right, for another machine: it compiles in half the time.
QUICK = {"xla_backend_optimization_level": 0}
TOLERANCE = {"float64": 1e-12, "float32": 4e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


@dataclass(frozen=True, slots=True)
class Case:
    """`function(*arguments())` on stock JAX and on ours: equal, or within `tolerance` if results are floats.

    tolerance: relative, and absolute in units of the largest finite result. 0 means equal (NaN equals NaN).
    x64: the case needs jax_enable_x64.
    """

    name: str
    group: str
    function: Callable[..., Any]
    makers: tuple[Maker, ...]
    dtype: str = "float32"
    tolerance: float = 0.0
    x64: bool = False

    def arguments(self) -> tuple[Any, ...]:
        generator = np.random.default_rng(crc32(self.name.encode()))
        return tuple(make(generator) for make in self.makers)


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(dtype)


def differences(case: Case, ours: Any, stock: Any) -> str:
    """What differs between two results (pytrees), or "" if they agree."""
    mine, theirs = jax.tree.leaves(ours), jax.tree.leaves(stock)
    if len(mine) != len(theirs):
        return f"{case.name}: {len(mine)} results instead of {len(theirs)}"
    for position, (x, y) in enumerate(zip(mine, theirs, strict=True)):
        a, b = np.asarray(x), np.asarray(y)
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{case.name}[{position}]: {a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
        text = _difference(a, b, case.tolerance)
        if text:
            return f"{case.name}[{position}]: {text}"
    return ""


def _difference(a: np.ndarray, b: np.ndarray, tolerance: float) -> str:
    if jnp.issubdtype(a.dtype, np.floating):
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(b)
        scale = np.max(np.abs(b[finite]), initial=0.0)
        with np.errstate(invalid="ignore"):
            allowed = tolerance * np.maximum(np.abs(b), min(scale, 1.0))
            equal = (a == b) | (np.isnan(a) & np.isnan(b)) | (finite & (np.abs(a - b) <= allowed))
    else:
        equal = a == b
    if equal.all():
        return ""
    worst = tuple(int(i) for i in np.argwhere(~equal)[0])
    return f"{int((~equal).sum())} of {a.size} differ, first at {worst}: {a[worst]} instead of {b[worst]}"


# makers ----------------------------------------------------------------------------------------------------


def _edges(dtype: str) -> list[float]:
    if dtype == "bool":
        return [0, 1]
    if dtype in SIGNED:
        info = np.iinfo(dtype)
        return [0, 1, -1, 2, -2, 7, -7, info.max, info.min, info.max - 1, info.min + 1, 31, 64]
    if dtype in UNSIGNED:
        info = np.iinfo(dtype)
        return [0, 1, 2, 7, info.max, info.max - 1, info.max // 2 + 1, 31, 64]
    return [0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.5, 1.5, 3.0, np.inf, -np.inf, np.nan, 100.0, -0.0]


def array(dtype: str, shape: Sequence[int] = (), low: float = -3.0, high: float = 3.0) -> Maker:
    """Random numbers of [low, high); booleans are coin flips, unsigned ones start at 0."""

    def make(generator: np.random.Generator) -> np.ndarray:
        if dtype == "bool":
            return generator.random(shape) < 0.5
        if dtype in SIGNED + UNSIGNED:
            start = int(low) if dtype in SIGNED else max(int(low), 0)
            return generator.integers(start, max(int(high), start + 1) + 1, shape).astype(dtype)
        with np.errstate(over="ignore"):
            return (low + (high - low) * generator.random(shape)).astype(numpy_dtype(dtype))

    return make


def edge_array(dtype: str, low: float = -3.0, high: float = 3.0, edges: bool = True) -> Maker:
    """Edge values, then random ones: 37 elements, so that vector loops have a tail."""

    def make(generator: np.random.Generator) -> np.ndarray:
        special = np.array(_edges(dtype) if edges else [], dtype=object)
        rest = array(dtype, (37 - len(special),), low, high)(generator)
        return np.concatenate([special.astype(numpy_dtype(dtype)), rest])

    return make


def edge_pairs(dtype: str) -> tuple[Maker, Maker]:
    """Every edge value beside every other one."""
    values = np.array(_edges(dtype), dtype=object).astype(numpy_dtype(dtype))
    first, second = np.repeat(values, len(values)), np.tile(values, len(values))
    return (lambda _: first), (lambda _: second)


def constant(value: Any, dtype: str) -> Maker:
    return lambda _: np.asarray(value, numpy_dtype(dtype))


def distinct(dtype: str, shape: Sequence[int]) -> Maker:
    """A permutation of small distinct numbers: nothing ties, any order is the only order."""
    size = int(np.prod(shape))
    return lambda generator: generator.permutation(size).reshape(shape).astype(numpy_dtype(dtype))


def key(*shape: int) -> Maker:
    """Raw threefry keys, uint32[..., 2]."""
    return lambda generator: generator.integers(0, 2**32, (*shape, 2), dtype=np.uint32)


def typed_key(*shape: int) -> Maker:
    """Typed threefry keys."""
    raw = key(*shape)
    return lambda generator: jax.random.wrap_key_data(raw(generator))


class Table(list[Case]):
    """Cases in order, with unique names."""

    def add(
        self,
        group: str,
        name: str,
        function: Callable[..., Any],
        *makers: Maker,
        dtype: str = "float32",
        tolerance: float = 0.0,
        x64: bool = False,
    ) -> None:
        label = f"{group}/{name}-{dtype}"
        if any(case.name == label for case in self):
            raise ValueError(f"two cases are named {label}")
        self.append(Case(label, group, function, makers, dtype, tolerance, x64 or dtype in WIDE))
