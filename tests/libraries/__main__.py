"""Runs programs of other libraries with stock XLA and with ours, and counts the loops that are captured.

Loops and branches without a loop are counted apart: a loop is what we compile for, while such a branch has
nothing to gain if one of its sides cannot be compiled, as in a check that raises an error.

    python -m tests.libraries                 all programs of the libraries that are installed
    python -m tests.libraries -k diffrax      those with this text in their name
    python -m tests.libraries --count         only counts; compiles nothing

A program whose library is missing is skipped. The exit status is 1 if a result differs or a program fails.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

import jax_cocktail
from jax_cocktail.lowering.adapter import holds_control_flow, primitive_name
from jax_cocktail.lowering.capture import capture
from jax_cocktail.primitives.jaxprs import equations_inside
from tests.libraries import inference, learning, solvers  # noqa: F401 (they fill the table)
from tests.libraries.table import PROGRAMS, Made, Program

LOOPS = frozenset({"while", "scan", "recursion"})  # primitives
LOOP, BRANCH = "loops", "branches without a loop"


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


def count(made: Made) -> Count:
    function, *arguments = made
    found = capture(jax.make_jaxpr(function)(*arguments))
    inside = {position for region in found.regions for position in region.members}
    kinds = {n: _kind(e) for n, e in enumerate(found.flat.equations) if holds_control_flow(e)}
    outside = [kind for position, kind in kinds.items() if position not in inside]
    left = [(kind, item.reason, item.where) for kind, item in zip(outside, found.left, strict=True)]
    return Count(Counter(kind for position, kind in kinds.items() if position in inside), tuple(left))


def _kind(equation: Any) -> str:
    names = map(primitive_name, (equation, *equations_inside(equation)))
    return BRANCH if LOOPS.isdisjoint(names) else LOOP


def difference(made: Made) -> float:
    """The largest difference between our results and stock XLA's, relative to the largest element of each."""
    function, *arguments = made
    ours = jax_cocktail.jit(function, options={"force": "cocktail"})(*arguments)
    stock = jax.jit(function)(*arguments)
    return max(map(_difference, jax.tree.leaves(ours), jax.tree.leaves(stock)), default=0.0)


def _difference(ours: Any, stock: Any) -> float:
    if jax.dtypes.issubdtype(stock.dtype, jax.dtypes.prng_key):
        ours, stock = map(jax.random.key_data, (ours, stock))
    x, y = np.asarray(ours, np.float64), np.asarray(stock, np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    scale = max(np.max(np.abs(y), initial=0.0, where=np.isfinite(y)), 1e-6)
    return float(np.max(np.where(same, 0.0, np.abs(x - y)), initial=0.0) / scale)


def checked(program: Program, only_count: bool) -> tuple[Count, str, bool]:
    """The count, the rest of the line about a program, and False if it fails."""
    try:
        made = program.make()
        found = count(made)
        worst = 0.0 if only_count else difference(made)
    except ModuleNotFoundError as error:
        return Count(), f"skipped: {error.name} is not installed", True
    except Exception as error:  # of the library, of JAX, or ours
        return Count(), f"fails: {type(error).__name__}: {str(error).splitlines()[:1]}", False
    if not worst <= program.tolerance:
        return found, f"{found}, difference {worst:.1e} is more than {program.tolerance:.0e}", False
    return found, str(found) + ("" if only_count else f", difference {worst:.1e}"), True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.libraries")
    parser.add_argument("-k", default="", metavar="NAME", help="only programs with this text in their name")
    parser.add_argument("--count", action="store_true", help="count captured loops; run nothing")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    total, failed = Count(), False
    for program in PROGRAMS:
        if options.k not in program.name:
            continue
        found, text, good = checked(program, options.count)
        print(f"{program.name:32}{text}", flush=True)
        for kind, reason, where in found.left:
            if kind == LOOP:
                print(f"    left: {reason} at {where}", flush=True)
        failed |= not good
        total += found
    print(total)
    for (kind, reason), number in Counter((kind, reason) for kind, reason, _ in total.left).most_common():
        print(f"{number:4} of the {kind} left: {reason}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
