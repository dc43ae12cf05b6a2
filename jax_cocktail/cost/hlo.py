"""The kernels that an optimised HLO module of XLA runs, and the bytes that they move, counted in its text.

A loop counts its trips, where XLA knows them, a branch its longest side. Bytes are those of operands and
results, so that what caches spare, and what a slice leaves alone, is counted all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from jax_cocktail.cost.vector import Vector
from jax_cocktail.device.tuning import MODEL

_SMALL = 'xla_cpu_small_call="true"'  # an attribute of calls


@dataclass(frozen=True, slots=True)
class Cost(Vector):
    """Kernels and bytes of one execution. `decisions`: how often the host or a graph looks at a condition;
    `unknown`: how often a loop begins whose number of trips is assumed."""

    kernels: float = 0.0
    bytes: float = 0.0
    decisions: float = 0.0
    unknown: float = 0.0


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
    }
)
_WAITS = ("-done", "-update")  # endings of what only waits for something that was begun before


def _free(opcode: str) -> bool:
    return opcode in _FREE or opcode.endswith(_WAITS)


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
        """The cost of one execution of the module."""
        return self._cost("ENTRY")

    @property
    def steps(self) -> bool:
        """False if each loop is in a kernel; True if the runtime steps through the iterations of one, or if
        the text cannot be read."""
        return "ENTRY" not in self._computations or self._steps("ENTRY")

    @property
    def unrolled_nodes(self) -> int:
        """The nodes of a graph that holds the module, with the body of a loop as often as it runs if XLA
        knows how often; 0 if there is no such loop."""
        return self._nodes("ENTRY") if '"known_trip_count"' in self.text else 0

    def _nodes(self, name: str) -> int:
        total = 0
        for line in self._computations.get(name, []):
            inner = sum(map(self._nodes, (*_called(line), *_sides(line), *_of_loop(line))))
            total += inner * (_trips(line) or 1) if inner else not _free(line[3])
        return total

    def _steps(self, name: str) -> bool:
        lines = [line for line in self._computations.get(name, []) if _SMALL not in line[4]]
        inside = {each for line in lines for each in (*_called(line), *_sides(line))}
        return any(line[3] == "while" for line in lines) or any(map(self._steps, inside))

    def _cost(self, name: str) -> Cost:
        lines = self._computations.get(name, [])
        shapes = {line[1]: _bytes(line[2]) for line in lines}
        return sum((self._instruction(line, shapes) for line in lines), Cost())

    def _instruction(self, line: re.Match[str], shapes: Mapping[str, int]) -> Cost:
        name, _, opcode, rest = line.groups()
        if _free(opcode):
            return Cost()
        if opcode == "while":
            trips = _trips(line)
            once = sum(map(self._cost, _of_loop(line)), Cost(decisions=1))
            known = self.unknown_trips if trips is None else trips
            return once * known + Cost(unknown=float(trips is None))
        if opcode == "conditional":
            return max(map(self._cost, _sides(line)), key=lambda c: c.kernels) + Cost(decisions=1)
        called = _called(line)
        if called and _SMALL not in rest:  # else XLA compiles it, with its loops, to one kernel
            return sum(map(self._cost, called), Cost())
        operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
        moved = shapes[name] + sum(shapes.get(operand, 0) for operand in operands)
        return Cost(kernels=1, bytes=moved)


def _named(rest: str, key: str) -> list[str]:
    """The computations that an instruction names by this attribute."""
    return re.findall(rf"\b(?:{key})=%?([\w.\-]+)", rest)


def _trips(line: re.Match[str]) -> int | None:
    """The number of trips of a loop; None if XLA does not know, or if it is none."""
    found = re.search(r'"known_trip_count":\{"n":"(\d+)"', line[4])
    return int(found[1]) if found else None


def _of_loop(line: re.Match[str]) -> list[str]:
    """The computations that a loop runs again and again."""
    return _named(line[4], "body|condition") if line[3] == "while" else []


def _called(line: re.Match[str]) -> list[str]:
    """The computations that an instruction runs once. Those of a fusion are part of its kernel."""
    return _named(line[4], "to_apply|calls") if line[3] in ("call", "async-start") else []


def _sides(line: re.Match[str]) -> list[str]:
    """The computations of which a branch runs one."""
    if line[3] != "conditional":
        return []
    names = re.search(r"branch_computations=\{([^}]*)\}", line[4])
    return re.findall(r"[\w.\-]+", names[1]) if names else _named(line[4], r"(?:true|false)_computation")
