"""How far results are from those in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.census.patterns import Function

ALLOWED = 2.0  # times the error of stock XLA
# Errors that count for nothing, since stock XLA may be exact by luck: of the mean, and of the worst element.
ROUNDING = 2.0**-23, 2.0**-21
QUICK = {"xla_backend_optimization_level": 0}  # of XLA: float64 is exact enough without optimisation
STEP = 1  # of integers: a value that lies between two may be rounded to either


@dataclass(frozen=True, slots=True)
class Error:
    """Of all results: the root of the mean square, and the largest, relative to the largest element of each
    array. Integers count in steps beyond `STEP`."""

    mean: float
    largest: float

    def __str__(self) -> str:
        return f"{self.mean:.1e}, at most {self.largest:.1e}"

    def exceeds(self, stock: Error) -> bool:
        """Whether it is too large, given that of stock XLA."""
        pairs = zip((self.mean, self.largest), (stock.mean, stock.largest), ROUNDING, strict=True)
        return any(not ours <= max(ALLOWED * theirs, least) for ours, theirs, least in pairs)


def reference(function: Function, operands: Any) -> Any:
    """The results of stock XLA in float64."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: x.astype(np.float64) if x.dtype.kind == "f" else x, operands)
        return jax.tree.map(np.asarray, jax.jit(function, compiler_options=QUICK)(*wide))


def error(result: Any, exact: Any) -> Error:
    """Infinite if one of the two is not finite where the other one is."""
    pairs = zip(jax.tree.leaves(result), jax.tree.leaves(exact), strict=True)
    found = [_error(np.asarray(array), np.asarray(wanted)) for array, wanted in pairs]
    return Error(max(each.mean for each in found), max(each.largest for each in found))


def _error(array: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> Error:
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        distance = np.abs(array.astype(np.int64) - exact.astype(np.int64)).max(initial=0)
        return Error(*[float(max(distance - STEP, 0))] * 2)
    wide, finite = array.astype(np.float64), np.isfinite(exact)
    if (
        not np.array_equal(wide[~finite], exact[~finite], equal_nan=True)
        or not np.isfinite(wide[finite]).all()
    ):
        return Error(float("inf"), float("inf"))
    scale = np.abs(exact[finite]).max(initial=0.0) or 1.0
    distance = np.abs(wide - exact)[finite] / scale
    return Error(
        float(np.sqrt(np.mean(distance**2))) if distance.size else 0.0, float(distance.max(initial=0))
    )
