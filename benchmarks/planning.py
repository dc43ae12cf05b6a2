"""CPU seconds of planning, pass by pass, and how they grow with the program.

python -m benchmarks.planning                            every row for every target
python -m benchmarks.planning --rows lstm --targets sm_90
python -m benchmarks.planning --models                   models and gradients, trace included
python -m benchmarks.planning --models --rows child_sum --passes
python -m benchmarks.planning --growth                   longer and longer programs, up to 20,000 statements
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks.gpu.rows import ROWS
from benchmarks.growth import (
    Passed,
    branching,
    planning_passes,
    planning_seconds,
    statements_in,
    straight,
    totals,
)
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.nvidia import A100, B200, H200
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.schedule.policy import candidates
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail_tools.models import MODELS, RECURSIVE
from jax_cocktail_tools.models.gradients import GRADIENTS

HOST_UNITS = 2
TARGETS = {"cpu": None, "sm_80": A100, "sm_90": H200, "sm_100": B200}
SIZES = (500, 1000, 2000, 5000, 10_000, 20_000)  # statements
FAMILIES = {"straight": straight, "branching": branching}
LONGEST = 5  # passes that are named

Timed = tuple[str, Counter[str]]  # what is planned, and the seconds
Make = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Planning:
    """A model's planning. `trace`: CPU seconds of JAX; `prepare`: those of capture and translation;
    `passes`: of all that follows."""

    name: str
    statements: int
    trace: float
    prepare: float
    passes: tuple[Passed, ...]

    def __str__(self) -> str:
        emit = totals(self.passes)["all"]
        return (
            f"{self.name:30} {self.statements:7} {self.trace:7.2f} {self.prepare:8.2f} {emit:7.2f} "
            f"{self.prepare + emit:7.2f} {1e3 * emit / max(self.statements, 1):13.3f}"
        )


HEADER = (
    f"{'model':30} {'stmts':>7} {'trace':>7} {'prepare':>8} {'emit':>7} {'both':>7} {'ms a statement':>13}"
)


def model_rows(names: str) -> Iterator[tuple[str, Make]]:
    """Every model at every batch size, and the gradients, on demand; those with `names` in theirs."""
    found: dict[str, Make] = {
        f"{model.name}/{batch}": lambda model=model, batch=batch: model.make(batch, small=False)
        for model in (*MODELS.values(), *RECURSIVE.values(), *GRADIENTS.values())
        for batch in model.batches
    }
    return ((name, make) for name, make in found.items() if names in name)


def planning_of(name: str, make: Make, units: int) -> Planning:
    """Traces, captures, translates and plans a model for so many units of the host."""
    function, arguments = make()
    start = time.process_time()
    closed = jax.make_jaxpr(function)(*arguments)
    traced = time.process_time()
    programs = prepare(closed, name).programs
    prepared = time.process_time()
    passes = tuple(p for q in programs for p in planning_passes(q, candidate=Candidate(units)))
    return Planning(name, sum(map(statements_in, programs)), traced - start, prepared - traced, passes)


def print_models(names: str, units: int, passes: bool) -> None:
    """One line for each model, and if asked for one for each of its passes."""
    print(HEADER, flush=True)
    for name, make in model_rows(names):
        planned = planning_of(name, make, units)
        print(planned, flush=True)
        for each in planned.passes if passes else ():
            counts = f"{each.before:7} -> {each.after:7}" if each.after != each.before else f"{each.after:7}"
            each_ms = 1e3 * each.seconds / max(each.before, 1)
            print(f"    {each.seconds:8.3f} s  {each_ms:8.4f} ms a statement  {each.name:20} {counts}")


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
        for family, make in FAMILIES.items():
            for units in (1, HOST_UNITS if machine.spec is None else machine.spec.units):
                for size in SIZES:
                    seconds = planning_seconds(make(size), machine, Candidate(units))
                    each = 1e3 * seconds["all"] / size
                    yield f"{family} {size}, {units} units of {target}, {each:.3f} ms a statement", seconds


def main() -> None:
    """Prints one line for what is planned: all seconds, then those of the longest passes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning")
    parser.add_argument("--rows", default="", help="those whose names have this in them")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--growth", action="store_true", help="longer and longer programs instead")
    parser.add_argument("--models", action="store_true", help="the models and their gradients, on the host")
    parser.add_argument("--units", type=int, default=1, help="of the host, for the models")
    parser.add_argument("--passes", action="store_true", help="a line for each pass of each model")
    given = parser.parse_args()
    if given.models:
        print_models(given.rows, given.units, given.passes)
        return
    for name, seconds in grown(given.targets) if given.growth else rows(given.rows, given.targets):
        passes = [f"{k} {s:.3f}" for k, s in seconds.most_common(LONGEST + 1) if k != "all"]
        print(f"{seconds['all']:7.3f}  {name}: {', '.join(passes)}", flush=True)


if __name__ == "__main__":
    main()
