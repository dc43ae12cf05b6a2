"""Seconds that planning takes, pass by pass, and how they grow with the program.

python -m benchmarks.planning                            every row for every target
python -m benchmarks.planning --rows lstm --targets sm_90
python -m benchmarks.planning --growth                   straight programs of up to 5,000 statements
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence

import jax

from benchmarks.gpu.rows import ROWS
from benchmarks.growth import planning_seconds, straight
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.nvidia import A100, B200, H200
from jax_cocktail.lowering.variants import prepare
from jax_cocktail.schedule.policy import candidates
from jax_cocktail.utask.candidate import Candidate

HOST_UNITS = 2
TARGETS = {"cpu": None, "sm_80": A100, "sm_90": H200, "sm_100": B200}
SIZES = (500, 1000, 2000, 5000)  # statements
LONGEST = 5  # passes that are named

Timed = tuple[str, Counter[str]]  # what is planned, and the seconds


def rows(names: str, targets: Sequence[str]) -> Iterator[Timed]:
    """Every candidate of the rows whose names have `names` in them."""
    for target in targets:
        machine = machine_of(TARGETS[target])
        units = HOST_UNITS if machine.spec is None else machine.spec.units
        for name in (n for n in ROWS if names in n):
            function, arguments = ROWS[name].make(False)
            programs = prepare(jax.make_jaxpr(function)(*arguments), name, machine).programs
            for candidate in candidates(programs, units, machine):
                for program in programs:
                    yield f"{name} {target} {candidate.text}", planning_seconds(program, machine, candidate)


def grown(targets: Sequence[str]) -> Iterator[Timed]:
    """Longer and longer programs, on one unit and on all."""
    for target in targets:
        machine = machine_of(TARGETS[target])
        for units in (1, HOST_UNITS if machine.spec is None else machine.spec.units):
            for size in SIZES:
                seconds = planning_seconds(straight(size), machine, Candidate(units))
                each = 1e6 * seconds["all"] / size
                yield f"{size} statements, {units} units of {target}, {each:.0f} us each", seconds


def main() -> None:
    """Prints one line for what is planned: all seconds, then those of the longest passes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning")
    parser.add_argument("--rows", default="", help="those whose names have this in them")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--growth", action="store_true", help="longer and longer programs instead")
    given = parser.parse_args()
    for name, seconds in grown(given.targets) if given.growth else rows(given.rows, given.targets):
        passes = [f"{k} {s:.3f}" for k, s in seconds.most_common(LONGEST + 1) if k != "all"]
        print(f"{seconds['all']:7.3f}  {name}: {', '.join(passes)}", flush=True)


if __name__ == "__main__":
    main()
