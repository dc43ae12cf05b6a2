"""Runs programs of other libraries with stock XLA and with ours, and counts the loops that are captured.

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
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import jax_cocktail
from jax_cocktail.lowering.capture import capture
from tests.libraries import inference, learning, solvers  # noqa: F401 (they fill the table)
from tests.libraries.table import PROGRAMS, Made, Program


@dataclass(frozen=True, slots=True)
class Count:
    """The outermost loops and branches of a program: how many are captured, and why others are not."""

    captured: int
    left: tuple[str, ...]

    def __str__(self) -> str:
        return f"captured {self.captured} of {self.captured + len(self.left)}"


def count(made: Made) -> Count:
    function, *arguments = made
    found = capture(jax.make_jaxpr(function)(*arguments))
    captured = sum(len(region.control_flow) for region in found.regions)
    return Count(captured, tuple(left.reason for left in found.left))


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


def checked(program: Program, only_count: bool) -> tuple[Count | None, str, bool]:
    """The count, the rest of the line about a program, and False if it fails."""
    try:
        made = program.make()
        found = count(made)
        worst = 0.0 if only_count else difference(made)
    except ModuleNotFoundError as error:
        return None, f"skipped: {error.name} is not installed", True
    except Exception as error:  # of the library, of JAX, or ours
        return None, f"fails: {type(error).__name__}: {str(error).splitlines()[:1]}", False
    if not worst <= program.tolerance:
        return found, f"{found}, difference {worst:.1e} is more than {program.tolerance:.0e}", False
    return found, str(found) + ("" if only_count else f", difference {worst:.1e}"), True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.libraries")
    parser.add_argument("-k", default="", metavar="NAME", help="only programs with this text in their name")
    parser.add_argument("--count", action="store_true", help="count captured loops; run nothing")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    captured, reasons, failed = 0, Counter[str](), False
    for program in PROGRAMS:
        if options.k not in program.name:
            continue
        found, text, good = checked(program, options.count)
        print(f"{program.name:32}{text}", flush=True)
        failed |= not good
        if found is not None:
            captured += found.captured
            reasons.update(found.left)
    print(f"captured: {captured} of {captured + reasons.total()}")
    for reason, number in reasons.most_common():
        print(f"{number:4} left: {reason}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
