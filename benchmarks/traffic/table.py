"""What a program should move and what it moves, side by side."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.traffic.count import count
from benchmarks.traffic.programs import Case
from jax_cocktail.codegen.traffic import Moved, Traffic, traffic
from jax_cocktail.compiler import emit
from jax_cocktail.utask.ir import Region
from tests.oracle.interpreter.run import run

MEMORIES = ("operand", "result", "workspace", "own")
# One set of vectors for all processors, and what the text asks for: higher levels keep parts of small arrays
# in registers from one unrolled trip to the next.
FLAGS = ("-march=x86-64-v3", "-O1")
VECTOR = 32  # bytes of such a vector
COMPARABLE = platform.machine() == "x86_64"


@dataclass(frozen=True, slots=True)
class Row:
    """All calls of a program on so many units. `predicted`, `counted`: by memory; `least`: bytes of the
    operands and the results."""

    units: int
    predicted: Mapping[str, Moved]
    counted: Mapping[str, Moved]
    least: int

    @property
    def factor(self) -> float:
        """Counted bytes over those of the operands and results."""
        return sum(moved.bytes for moved in self.counted.values()) / max(self.least, 1)


def row(case: Case, units: int) -> Row:
    """Compiles, predicts and counts."""
    least = 0
    totals = {kind: {name: Moved() for name in MEMORIES} for kind in ("predicted", "counted")}
    for called in case.make():
        emitted = emit(called.program, candidate=case.candidate(units))
        seen = Counter[int]()
        run(emitted.program, called.values, observe=partial(_note, seen))
        found = {
            "predicted": traffic(emitted.program, emitted.plan, units, seen, VECTOR),
            "counted": count(emitted, called.values, units, FLAGS),
        }
        for kind, each in found.items():
            for name, moved in by_memory(each):
                totals[kind][name] += moved
        entry = emitted.program.entry
        least += sum(value.type.nbytes for value in (*entry.parameters, *entry.results))
    return Row(units, totals["predicted"], totals["counted"], least)


def _note(seen: Counter[int], region: Region) -> None:
    seen[id(region)] += 1


def by_memory(found: Traffic) -> Iterator[tuple[str, Moved]]:
    """Of all units together; without the stack and constants."""
    for name in MEMORIES:
        yield name, found.total(name)


def ratio(one: float, other: float) -> float:
    """How far two numbers of bytes are apart, as a factor; nothing is as much as a line of cache."""
    low, high = sorted((one, other))
    return (high + 64) / (low + 64)
