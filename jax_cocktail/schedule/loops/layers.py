"""Stacks of layers written as inner loops: unrolled, so that every layer has weights and state of its own.

A loop over time around a loop over layers, whose weights are one stacked array, hides two facts that
distribution needs: the layers' weights do not change over time, and their recurrences are separate. Unrolling
the inner loop and splitting the stacked state (`scalar_replacement`) shows both. The pass changes nothing if
that does not separate any layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jax_cocktail.schedule.loops.distribution.distribute import Limits
from jax_cocktail.schedule.loops.distribution.division import analyse
from jax_cocktail.schedule.loops.distribution.split_products import split_products
from jax_cocktail.schedule.loops.scalar_replacement import split_stacked
from jax_cocktail.schedule.loops.unroll import unroll
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.simplify.trip_counts import count_loops
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    free_values,
    walk,
)
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value

MOST_TRIPS = 32
MOST_OPERATORS = 800  # that unrolling may make; scalars do not count, they fold

# Between a stacked array and the product that reads one layer of it.
_THROUGH = ("reshape", "transpose", "convert", "slice")


def separate_layers(
    program: UProgram,
    limits: Limits = Limits(),  # noqa: B008 (a frozen value)
    remark: Listener = nobody,
) -> UProgram:
    """Unrolls loops over layers and splits stacked state, if more products can then be distributed."""
    counted = count_loops(program)
    if counted is not program:
        program = simplify(counted)
    heard: list[Remark] = []
    unrolled = unroll_layers(program, heard.append)
    split = split_stacked(unrolled if unrolled is program else simplify(unrolled), heard.append)
    if split is program:
        return program
    split = simplify(split)
    better = _divisible(split, limits) > _divisible(program, limits)
    for each in heard:
        useless = f"{each.text}: no product could be distributed for it"
        remark(each if better else replace(each, fired=False, text=useless))
    return split if better else program


def _divisible(program: UProgram, limits: Limits) -> int:
    """Number of products that distribution could take out of loops."""
    found, fresh = 0, FreshValues(program)
    for statement in walk(hoist(program).entry):
        if isinstance(statement, LoopUTask):
            _, apart = split_products(statement, limits.flops, fresh)
            division = analyse(apart, limits.flops)
            found += 0 if division is None else len(division.products)
    return found


def unroll_layers(program: UProgram, remark: Listener = nobody) -> UProgram:
    """Unrolls short loops, inside other loops, whose products take weights sliced by the index."""
    fresh = FreshValues(program)
    entry = _region(program.entry, None, fresh, remark)
    return program if entry is program.entry else replace(program, entry=entry)


def _region(region: Region, around: LoopUTask | None, fresh: FreshValues, remark: Listener) -> Region:
    body: list[Statement] = []
    for statement in region.body:
        if isinstance(statement, LoopUTask):
            inner = _region(statement.body, statement, fresh, remark)
            if inner is not statement.body:
                statement = replace(statement, body=inner)
            layers = around is not None and is_over_layers(statement, around)
            body += unroll(statement, MOST_TRIPS, fresh) if layers else (statement,)
            if layers:
                text = f"a loop over {statement.trip_count} layers"
                remark(Remark("unroll", True, text, statement.source))
        elif isinstance(statement, BranchUTask):
            branches = tuple(_region(r, around, fresh, remark) for r in statement.branches)
            if any(a is not b for a, b in zip(branches, statement.branches, strict=True)):
                statement = replace(statement, branches=branches)
            body.append(statement)
        else:
            body.append(statement)
    same = len(body) == len(region.body) and all(a is b for a, b in zip(body, region.body, strict=True))
    return region if same else Region(region.parameters, tuple(body), region.results)


def is_over_layers(loop: LoopUTask, around: LoopUTask) -> bool:
    """True if a loop is short and some product in it takes a slice of an array from outside `around`, by an
    index that changes, while its other operand changes too."""
    trips = loop.trip_count
    if trips is None or loop.parallel or not 1 < trips <= MOST_TRIPS:
        return False
    operators = sum(not all(v.type.is_scalar for v in s.outputs) for s in walk(loop.body))
    if operators * trips > MOST_OPERATORS:
        return False
    definitions: Mapping[Value, Statement] = {v: s for s in loop.body.body for v in s.outputs}
    outside = set(free_values(around.body))
    inside = set(definitions) | set(loop.body.parameters)
    dots = (s for s in loop.body.body if isinstance(s, UOperator) and s.kind == "dot")
    varying = (s for s in dots if inside.issuperset(s.inputs))
    return any(_is_weights(v, definitions, inside, outside) for s in varying for v in s.inputs)


def _is_weights(
    value: Value, definitions: Mapping[Value, Statement], inside: set[Value], outside: set[Value]
) -> bool:
    made = definitions.get(value)
    while isinstance(made, UOperator) and made.kind in _THROUGH:
        made = definitions.get(made.inputs[0])
    if not isinstance(made, UOperator) or made.kind != "dynamic_slice":
        return False
    array, *starts = made.inputs
    return array in outside and not inside.isdisjoint(starts)
