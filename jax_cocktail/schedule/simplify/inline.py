"""Function inlining: replaces references by the bodies of their functions (COCKTAILER, OSDI'23, section 4).

It runs before all other passes, so that these see loops, branches and operators only. A function that calls
itself, directly or through others, stays, and so do references to it; other calls in its body are inlined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jax_cocktail.analysis.graph import strong_components
from jax_cocktail.utask.copies import applied
from jax_cocktail.utask.ir import (
    FunctionUTask,
    Region,
    Statement,
    UProgram,
    UTaskRef,
    walk,
)
from jax_cocktail.utask.rewrite import map_body, map_regions, with_body
from jax_cocktail.utask.substitute import FreshValues, replaced, with_operands
from jax_cocktail.utask.types import Value


def inline(program: UProgram) -> UProgram:
    """`program` without references to nonrecursive functions, and without unreferenced functions. Returns its
    argument if it has neither."""
    if not program.functions:
        return program
    inliner = _Inliner(FreshValues(program))
    kept: dict[str, FunctionUTask] = {}
    for group in _callees_first(program.functions):
        functions = [map_regions(f, inliner.region) for f in group]
        if len(functions) == 1 and functions[0].name not in _named([functions[0].body]):
            inliner.bodies[functions[0].name] = functions[0]
        else:
            kept.update((f.name, f) for f in functions)
    entry = inliner.region(program.entry)
    needed = _reachable(entry, kept)
    functions = [kept[f.name] for f in program.functions if f.name in needed]
    after = replace(program, entry=entry, functions=tuple(functions))
    return program if after == program else after


def _named(regions: Iterable[Region]) -> set[str]:
    return {s.function for region in regions for s in walk(region) if isinstance(s, UTaskRef)}


def _callees_first(functions: Sequence[FunctionUTask]) -> list[list[FunctionUTask]]:
    """Functions in groups of mutual recursion; a group follows those that it calls."""
    numbers = {function.name: number for number, function in enumerate(functions)}
    calls = [sorted(numbers[name] for name in _named([f.body]) if name in numbers) for f in functions]
    return [[functions[n] for n in group] for group in reversed(strong_components(calls))]


def _reachable(entry: Region, functions: dict[str, FunctionUTask]) -> set[str]:
    found: set[str] = set()
    new = _named([entry])
    while new:
        found |= new
        new = _named([functions[name].body for name in new if name in functions]) - found
    return found


class _Inliner:
    """Rewrites regions. `bodies`: of the inlined functions; `now`: the new values of references' results."""

    def __init__(self, fresh: FreshValues) -> None:
        self.fresh = fresh
        self.bodies: dict[str, FunctionUTask] = {}
        self.now: dict[Value, Value] = {}

    def region(self, region: Region) -> Region:
        found = map_body(region, self._statement)
        return with_body(found, found.body, replaced(found.results, self.now))

    def _statement(self, statement: Statement) -> Statement | list[Statement]:
        if isinstance(statement, UTaskRef) and statement.function in self.bodies:
            return self._expanded(statement, self.bodies[statement.function])
        return map_regions(with_operands(statement, self.now), self.region)

    def _expanded(self, reference: UTaskRef, function: FunctionUTask) -> list[Statement]:
        arguments = replaced(reference.arguments, self.now)
        body, results = applied(function.body, arguments, self.fresh)
        self.now.update(zip(reference.outputs, results, strict=True))
        return body
