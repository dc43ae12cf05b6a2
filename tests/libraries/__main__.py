"""Runs programs of other libraries with stock XLA and with ours, and counts the loops that are captured.

    python -m tests.libraries                 all programs of the libraries that are installed
    python -m tests.libraries -k diffrax      those with this text in their name
    python -m tests.libraries --count         only counts; compiles nothing
    python -m tests.libraries --time          also the time of a call under stock XLA over ours

`pip install -e '.[ecosystem]'` installs the libraries. A program that stock XLA cannot run is skipped. The
exit status is 1 if a result differs, if fewer loops are captured than the table says, or if a program fails.
`pytest tests/libraries` checks the same.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections import Counter

from tests.libraries import inference, learning, solvers  # noqa: F401 (they fill the table)
from tests.libraries.check import (
    LOOP,
    CannotRun,
    Count,
    count,
    difference,
    first_line,
    ours,
    ratio,
    ready,
    stock,
)
from tests.libraries.table import PROGRAMS, Program


def checked(program: Program, only_count: bool, timed: bool) -> tuple[Count, list[str], bool, float | None]:
    """The count, what to print about a program, False if it fails, and the ratio if it is timed."""
    try:
        made = ready(program)
        reference = None if only_count else stock(made)(*made.arguments)
    except CannotRun as error:
        return Count(), [f"skipped: {error}"], True, None
    try:
        found = count(made)
        worst = 0.0 if only_count else difference(ours(made)(*made.arguments), reference)
        measured = ratio(made) if timed and not only_count else None
    except Exception as error:  # ours
        return Count(), [f"fails: {first_line(error)}"], False, None
    told = [str(found)]
    if not only_count:
        told.append(f"difference {worst:.1e}")
    if measured is not None:
        told.append(f"stock / ours {measured:.2f}")
    if fewer := found.captured[LOOP] < program.loops:
        told.append(f"FEWER than {program.loops} loops")
    if differs := not worst <= program.tolerance:
        told.append(f"MORE than {program.tolerance:.0e}")
    return found, told, not (fewer or differs), measured


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.libraries")
    parser.add_argument("-k", default="", metavar="NAME", help="only programs with this text in their name")
    parser.add_argument("--count", action="store_true", help="count captured loops; run nothing")
    parser.add_argument("--time", action="store_true", help="time stock XLA and ours, in turn")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    total, failed, ratios = Count(), False, []
    for program in PROGRAMS:
        if options.k not in program.name:
            continue
        found, told, good, measured = checked(program, options.count, options.time)
        print(f"{program.name:32}{', '.join(told)}", flush=True)
        for kind, reason, where in found.left:
            if kind == LOOP:
                print(f"    left: {reason} at {where}", flush=True)
        failed |= not good
        total += found
        ratios += [] if measured is None else [measured]
    print(total)
    for (kind, reason), number in Counter((kind, reason) for kind, reason, _ in total.left).most_common():
        print(f"{number:4} of the {kind} left: {reason}")
    if ratios:
        print(
            f"stock / ours: geometric mean {statistics.geometric_mean(ratios):.2f} of {len(ratios)} programs"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
