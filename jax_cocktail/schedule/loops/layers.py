"""Unrolls inner loops over layers, so that every layer has its own weights and state.

    for t: for l: h[l] = f(h[l], W[l])      ->      for t: h0 = f(h0, W[0]); h1 = f(h1, W[1]); ...

A loop over time around a loop over layers with stacked weights hides two facts that distribution needs: the
weights do not change over time, and the layers' recurrences are separate. Unrolling the inner loop and
splitting the stacked state (`scalar_replacement`) shows both. The pass changes nothing if that separates no
layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jax_cocktail.device.tuning import LOOPS, PROGRAM, LoopTuning
from jax_cocktail.schedule.loops.distribution.fission import analyse
from jax_cocktail.schedule.loops.distribution.split_products import split_products
from jax_cocktail.schedule.loops.repeat import unrolled
from jax_cocktail.schedule.loops.scalar_replacement import split_stacked
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.simplify.trip_counts import count_loops
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram, free_values, is_a, walk
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value

# The operators between a stacked array and a product that reads one layer of it.
_THROUGH = ("reshape", "transpose", "convert", "slice")


def layers(program: UProgram, limits: LoopTuning = LOOPS, remark: Listener = nobody) -> UProgram:
    """Unrolls loops over layers and splits stacked state, if more products can then be distributed."""
    counted = count_loops(program)
    if counted is not program:
        program = simplify(counted)
    heard: list[Remark] = []
    apart = unroll_layers(program, heard.append)
    split = split_stacked(apart if apart is program else simplify(apart), heard.append)
    if split is program:
        return program
    split = simplify(split)
    better = _divisible(split, limits) > _divisible(program, limits)
    for each in heard:
        useless = f"{each.text}: no product could be distributed for it"
        remark(each if better else replace(each, fired=False, text=useless))
    return split if better else program


def _divisible(program: UProgram, limits: LoopTuning) -> int:
    """The number of products that distribution could take out of loops."""
    found, fresh = 0, FreshValues(program)
    for statement in walk(hoist(program).entry):
        if isinstance(statement, LoopUTask):
            _, apart = split_products(statement, limits.flops, fresh)
            fission = analyse(apart, limits.flops)
            found += 0 if fission is None else len(fission.products)
    return found


def unroll_layers(program: UProgram, remark: Listener = nobody) -> UProgram:
    """Unrolls short loops, inside other loops, whose products take weights sliced by the index."""
    fresh = FreshValues(program)

    def change(region: Region, around: LoopUTask | None) -> Region:
        def statement(s: Statement) -> Statement | Sequence[Statement]:
            inside = s if isinstance(s, LoopUTask) else around
            s = map_regions(s, lambda inner: change(inner, inside))
            if not isinstance(s, LoopUTask) or around is None or not is_over_layers(s, around):
                return s
            remark(Remark("unroll", True, f"a loop over {s.trip_count} layers", s.source))
            return unrolled(s, PROGRAM.unrolled_layers, fresh)

        return map_body(region, statement)

    return map_regions(program, lambda region: change(region, None))


def is_over_layers(loop: LoopUTask, around: LoopUTask) -> bool:
    """True if a loop is short and some product in it reads a slice of an array from outside `around`, at an
    index that changes, and another operand that changes too."""
    trips = loop.trip_count
    if trips is None or loop.parallel or not 1 < trips <= PROGRAM.unrolled_layers:
        return False
    operators = sum(not all(v.type.is_scalar for v in s.outputs) for s in walk(loop.body))
    if operators * trips > PROGRAM.unrolled_operators:
        return False
    definitions: Mapping[Value, Statement] = {v: s for s in loop.body.body for v in s.outputs}
    outside = set(free_values(around.body))
    inside = set(definitions) | set(loop.body.parameters)
    dots = (s for s in loop.body.body if is_a(s, "dot"))
    varying = (s for s in dots if inside.issuperset(s.inputs))
    return any(_is_weights(v, definitions, inside, outside) for s in varying for v in s.inputs)


def _is_weights(
    value: Value, definitions: Mapping[Value, Statement], inside: set[Value], outside: set[Value]
) -> bool:
    made = definitions.get(value)
    while isinstance(made, UOperator) and made.kind in _THROUGH:
        made = definitions.get(made.inputs[0])
    if not is_a(made, "dynamic_slice"):
        return False
    array, *starts = made.inputs
    return array in outside and not inside.isdisjoint(starts)
