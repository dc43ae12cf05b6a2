"""What an optimised HLO module of XLA runs: kernels, and the bytes they move, counted in its text.

A loop counts its trips, where XLA knows them, a branch its longest side. Bytes are those of operands and
results, so that what caches spare, and what a slice leaves alone, is counted all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from jax_cocktail.device.tuning import MODEL

_SMALL = 'xla_cpu_small_call="true"'  # an attribute of calls


@dataclass(frozen=True, slots=True)
class Cost:
    """Kernels and bytes of one execution. `decisions`: how often the host or a graph looks at a condition;
    `unknown`: a loop in it has an assumed number of trips."""

    kernels: float = 0.0
    bytes: float = 0.0
    decisions: float = 0.0
    unknown: bool = False

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.kernels + other.kernels,
            self.bytes + other.bytes,
            self.decisions + other.decisions,
            self.unknown or other.unknown,
        )

    def times(self, factor: float) -> Cost:
        """As often as that."""
        return Cost(self.kernels * factor, self.bytes * factor, self.decisions * factor, self.unknown)


_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_LINE = re.compile(r"^\s*(?:ROOT )?%([\w.\-]+) = ((?:\([^=]*?\)|\S+)) ([\w\-]+)\((.*)$")
_SHAPE = re.compile(r"\b(pred|bf16|f8\w+|[sufc]\d+)\[([\d,]*)\]")
_FREE = frozenset(
    {
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "partition-id",
        "replica-id",
        "add-dependency",
        "opt-barrier",
        "async-done",
        "async-update",
        "copy-done",
    }
)


def _bytes(text: str) -> int:
    sizes = {"pred": 1, "bf16": 2}
    total = 0
    for dtype, extents in _SHAPE.findall(text):
        bits = int(re.findall(r"\d+", dtype)[0]) if dtype not in sizes else 0
        total += (sizes.get(dtype) or max(bits // 8, 1)) * prod(int(x) for x in extents.split(",") if x)
    return total


@dataclass(frozen=True)
class Module:
    """A module's text, read. `unknown_trips`: of a loop whose trip count XLA does not know."""

    text: str
    unknown_trips: int = MODEL.unknown_trips

    @cached_property
    def _computations(self) -> Mapping[str, list[re.Match[str]]]:
        found: dict[str, list[re.Match[str]]] = {}
        current = ""
        for line in re.sub(r"/\*.*?\*/", "", self.text).splitlines():
            if head := _HEAD.match(line):
                current = "ENTRY" if head[1] else head[2]
                found[current] = []
            elif (match := _LINE.match(line)) and current:
                found[current].append(match)
        return found

    @property
    def cost(self) -> Cost:
        """Of one execution of the module."""
        return self._cost("ENTRY")

    def _cost(self, name: str) -> Cost:
        lines = self._computations.get(name, [])
        shapes = {line[1]: _bytes(line[2]) for line in lines}
        return sum((self._instruction(line, shapes) for line in lines), Cost())

    def _instruction(self, line: re.Match[str], shapes: Mapping[str, int]) -> Cost:
        name, _, opcode, rest = line.groups()
        if opcode in _FREE:
            return Cost()

        def called(key: str) -> list[str]:
            return re.findall(rf"\b{key}=%?([\w.\-]+)", rest)

        if opcode == "while":
            trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', rest)
            number = int(trips[1]) if trips else self.unknown_trips
            once = self._cost(called("body")[0]) + self._cost(called("condition")[0]) + Cost(decisions=1)
            return once.times(number) + Cost(unknown=trips is None)
        if opcode == "conditional":
            names = re.search(r"branch_computations=\{([^}]*)\}", rest)
            sides = re.findall(r"[\w.\-]+", names[1]) if names else called(r"(?:true|false)_computation")
            return max((self._cost(side) for side in sides), key=lambda c: c.kernels) + Cost(decisions=1)
        if opcode in ("call", "async-start"):
            inside = sum((self._cost(n) for n in called("to_apply") + called("calls")), Cost())
            if _SMALL not in rest:  # else XLA compiles it, with its loops, to one kernel
                return inside
        operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
        moved = shapes[name] + sum(shapes.get(operand, 0) for operand in operands)
        return Cost(kernels=1, bytes=moved)
