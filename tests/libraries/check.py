"""Runs a program of another library with stock XLA and with ours, and counts the loops that are captured.

Loops and branches without a loop are counted apart: a loop is what we compile for, while such a branch has
nothing to gain if one of its sides cannot be compiled, as in a check that raises an error.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

import jax_cocktail
from jax_cocktail.lowering.edge.adapter import holds_control_flow, primitive_name
from jax_cocktail.lowering.edge.capture import capture
from jax_cocktail.primitives.jaxprs import equations_inside
from tests.libraries.table import Program

LOOPS = frozenset({"while", "scan", "recursion"})  # primitives
LOOP, BRANCH = "loops", "branches without a loop"


class CannotRun(Exception):
    """The library is missing, or stock XLA cannot run the program with this version of jax."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many loops, and branches without one, are captured; outermost ones, by kind. Why others are not."""

    captured: Counter[str] = field(default_factory=Counter)
    left: tuple[tuple[str, str, str], ...] = ()  # (kind, reason, where)

    def __add__(self, other: Count) -> Count:
        return Count(self.captured + other.captured, self.left + other.left)

    def __str__(self) -> str:
        left = Counter(kind for kind, _, _ in self.left)
        parts = [f"{self.captured[k]} of {self.captured[k] + left[k]} {k}" for k in (LOOP, BRANCH)]
        return "captured " + ", ".join(part for part in parts if " of 0 " not in part)


@dataclass(frozen=True, slots=True)
class Ready:
    """A program that stock JAX has traced, and the function and the arguments that it was made of."""

    program: Program
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    traced: Any


def ready(program: Program) -> Ready:
    """Raises CannotRun if the library cannot make the program, or stock JAX cannot trace it."""
    try:
        function, *arguments = program.make()
        return Ready(program, function, tuple(arguments), jax.jit(function).trace(*arguments))
    except ModuleNotFoundError as error:
        raise CannotRun(f"{error.name} is not installed") from error
    except Exception as error:  # of the library or of JAX
        raise CannotRun(f"jax {jax.__version__} cannot trace it: {first_line(error)}") from error


def stock(made: Ready) -> Callable[..., Any]:
    """The program as stock XLA compiles it. Raises CannotRun if it cannot."""
    try:
        return made.traced.lower().compile()
    except Exception as error:  # of JAX
        raise CannotRun(f"jax {jax.__version__} cannot compile it: {first_line(error)}") from error


def count(made: Ready) -> Count:
    """Traced equations alone tell it: nothing is compiled."""
    found = capture(made.traced.jaxpr)
    inside = {position for region in found.regions for position in region.members}
    kinds = {n: _kind(e) for n, e in enumerate(found.flat.equations) if holds_control_flow(e)}
    outside = [kind for position, kind in kinds.items() if position not in inside]
    left = [(kind, item.reason, item.where) for kind, item in zip(outside, found.left, strict=True)]
    return Count(Counter(kind for position, kind in kinds.items() if position in inside), tuple(left))


def _kind(equation: Any) -> str:
    names = map(primitive_name, (equation, *equations_inside(equation)))
    return BRANCH if LOOPS.isdisjoint(names) else LOOP


def ours(made: Ready) -> Callable[..., Any]:
    """The program under our `jit`, which never leaves a loop to stock XLA that it can compile, nor a call
    until the background has ours."""
    return jax_cocktail.jit(made.function, options={"force": "cocktail", "compile": "now"})


def difference(ours: Any, stock: Any) -> float:
    """The largest difference between two trees of results, relative to the largest element of each array."""
    assert jax.tree.structure(ours) == jax.tree.structure(stock)
    return max(map(_difference, jax.tree.leaves(ours), jax.tree.leaves(stock)), default=0.0)


def _difference(ours: Any, stock: Any) -> float:
    assert (ours.shape, ours.dtype) == (stock.shape, stock.dtype)
    if jax.dtypes.issubdtype(stock.dtype, jax.dtypes.prng_key):
        ours, stock = map(jax.random.key_data, (ours, stock))
    x, y = np.asarray(ours, np.float64), np.asarray(stock, np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    scale = max(np.max(np.abs(y), initial=0.0, where=np.isfinite(y)), 1e-6)
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(x - y))
    return float(np.max(np.where(np.isnan(apart), np.inf, apart), initial=0.0) / scale)


def ratio(made: Ready, seconds: float = 1.0) -> float:
    """Time of a call under stock XLA over ours: medians of calls made in turn, for about `seconds`."""
    functions, times = (stock(made), ours(made)), ([], [])  # type: ignore[var-annotated]
    for function in functions:
        jax.block_until_ready(function(*made.arguments))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for function, of in zip(functions, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(function(*made.arguments))
            of.append(time.perf_counter() - start)
    return statistics.median(times[0]) / statistics.median(times[1])


def first_line(error: Exception) -> str:
    """The error's class and the first line of its message."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
