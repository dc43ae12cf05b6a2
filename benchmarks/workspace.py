"""How densely memory is planned: for every model and its gradient, as planned for a CPU and for a GPU.

A row is the space of a program that is furthest above its lower bound, over all candidates. `bytes`: its
size; `bound`: the largest set of buffers that are live at the same time, which no plan can beat; `no reuse`:
the sum of all buffers.

    python -m benchmarks.workspace                   every model; status 1 if one is more than 5 % above
    python -m benchmarks.workspace lstm rae          models whose names begin so
    python -m benchmarks.workspace --small           tiny sizes, for a quick look
    python -m benchmarks.workspace --all             every candidate and space
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import schedule, transform
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.nvidia import H200
from jax_cocktail.errors import PlacementError, UnsupportedError
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.schedule.policy import candidates
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.plan import MemoryPlan, Usage
from jax_cocktail_tools.models import MODELS, RECURSIVE
from jax_cocktail_tools.models.model import Instance

HOST_UNITS = 2
TARGETS = {"cpu": None, "gpu": H200}
GOAL = 0.05  # above the lower bound


@dataclass(frozen=True, slots=True)
class Row:
    """One space of one program."""

    program: str
    target: str
    candidate: str
    space: str
    usage: Usage

    @property
    def above(self) -> float:
        """How far it is above its lower bound, as a fraction of this."""
        return self.usage.peak / self.usage.bound - 1

    @property
    def text(self) -> str:
        sizes = f"{self.usage.peak:>14,}{self.usage.bound:>14,}{self.above:8.1%}{self.usage.total:>14,}"
        return f"{self.program:34}{self.target:5}{sizes}  {self.space}, {self.candidate}"


def gradient(function: Any, arguments: tuple[Any, ...]) -> Instance:
    """The gradient of the sum of all real results by all real arguments. Raises what JAX raises if there is
    none."""
    leaves, tree = jax.tree.flatten(arguments)
    wanted = [n for n, leaf in enumerate(leaves) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]

    def loss(values: list[Any]) -> Any:
        given = list(leaves)
        for number, value in zip(wanted, values, strict=True):
            given[number] = value
        results = map(jnp.asarray, jax.tree.leaves(function(*jax.tree.unflatten(tree, given))))
        return sum(x.sum() for x in results if jnp.issubdtype(x.dtype, jnp.floating))

    return jax.grad(loss), ([leaves[number] for number in wanted],)


def jaxprs(names: list[str], small: bool) -> Iterator[tuple[str, Any]]:
    """Every model and, if it has one, its gradient."""
    for model in {**MODELS, **RECURSIVE}.values():
        if names and not model.name.startswith(tuple(names)):
            continue
        for batch in model.batches:
            instance = model.make(batch, small=small)
            yield f"{model.name}/{batch}", jax.make_jaxpr(instance[0])(*instance[1])
            try:
                function, arguments = gradient(*instance)
                yield f"{model.name}_gradient/{batch}", jax.make_jaxpr(function)(*arguments)
            except (TypeError, ValueError):  # of integers, or of loops of unknown length
                print(f"{model.name}_gradient/{batch}: JAX has none")


def plans(closed: Any, name: str, machine: Machine) -> Iterator[tuple[Candidate, MemoryPlan]]:
    """The memory of every candidate of every custom call."""
    programs = prepare(closed, name, machine).programs
    units = HOST_UNITS if machine.spec is None else machine.spec.units
    for candidate in candidates(programs, units, machine):
        for program in programs:
            try:
                stitched = transform(program, candidate=candidate, machine=machine)
                yield candidate, schedule(stitched, machine, candidate.units * candidate.cluster).plan
            except (PlacementError, UnsupportedError):  # the compiler falls back to one unit
                continue


def rows(names: list[str], small: bool) -> Iterator[list[Row]]:
    """The rows of each program for each target."""
    for name, closed in jaxprs(names, small):
        for target, spec in TARGETS.items():
            yield [
                Row(name, target, candidate.text, space, usage)
                for candidate, plan in plans(closed, name, machine_of(spec))
                for space, usage in plan.usage.items()
            ]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workspace")
    parser.add_argument("names", nargs="*", help="models whose names begin so")
    parser.add_argument("--small", action="store_true", help="tiny models")
    parser.add_argument("--all", action="store_true", help="every candidate and space")
    given = parser.parse_args()
    print(f"{'program':34}{'':5}{'bytes':>14}{'bound':>14}{'above':>8}{'no reuse':>14}")
    worst = 0.0
    for found in rows(given.names, given.small):
        largest = sorted(found, key=lambda row: (row.above, row.usage.peak))
        for row in found if given.all else largest[-1:]:
            print(row.text, flush=True)
        worst = max([worst, *(row.above for row in found)])
    print(f"at most {worst:.1%} above the lower bound")
    sys.exit(worst > GOAL)


if __name__ == "__main__":
    main()
