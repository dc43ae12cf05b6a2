"""Copies of a loop's body one after the other: of all iterations, of as many as a factor says with the rest
after the loop, or of two with a guard.

Indices become constants, which `simplify` folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jax_cocktail.analysis.parallel import own_slices
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.copies import Names, applied
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, is_a, is_parallel
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues, replaced, with_reads
from jax_cocktail.utask.types import Value


def unrolled(loop: LoopUTask, factor: int, fresh: FreshValues) -> tuple[Statement, ...]:
    """A counted loop with `factor` copies of its body per iteration; no loop if it has no more of them."""
    assert loop.trip_count is not None and factor > 0
    if factor == 1:
        return (loop,)
    b = Builder(fresh, loop.source)
    rounds, rest = divmod(loop.trip_count, factor)
    if rounds <= 1:
        _peeled(loop, range(loop.trip_count), loop.initial, b)
        return tuple(b.out)
    between = b.like(loop.outputs) if rest else loop.outputs
    b.out.append(_widened(loop, factor, rounds, between, b.to([])))
    _peeled(loop, range(rounds * factor, loop.trip_count), between, b)
    return tuple(b.out)


def _widened(loop: LoopUTask, factor: int, rounds: int, outputs: tuple[Value, ...], b: Builder) -> LoopUTask:
    turn = b.fresh.make(INDEX)
    base = b.binary("mul", turn, b.constant(factor))
    parameters = values = b.like(loop.carried)
    for k in range(factor):
        index = b.binary("add", base, b.constant(k)) if k else base
        values = _trip(loop, (index,), values, {}, b)
    inner = Region((turn, *parameters), tuple(b.out), values)
    return replace(loop, outputs=outputs, body=inner, trip_count=rounds, unroll=1)


def _peeled(loop: LoopUTask, trips: range, values: tuple[Value, ...], b: Builder) -> None:
    """Appends these iterations in order; the last one defines the outputs of the loop."""
    bound: Mapping[Value, Value] = {}
    defined = {v for s in loop.body.body for v in s.outputs}
    for trip in trips:
        index = b.constant(trip)
        if trip == trips[-1]:
            pairs = zip(loop.body.results, loop.outputs, strict=True)
            bound = {r: o for r, o in reversed(list(pairs)) if r in defined}
        values = _trip(loop, (index,), values, bound, b)
    for value, output in zip(values, loop.outputs, strict=True):
        if value != output:  # passed through: a reshape to the same shape renames it
            b.define((output,), "reshape", (value,))


def _trip(
    loop: LoopUTask, index: Sequence[Value], values: Sequence[Value], bound: Mapping[Value, Value], b: Builder
) -> tuple[Value, ...]:
    """Appends a copy of the body. `index`: none, if the loop has a condition."""
    body, results = applied(loop.body, (*index, *values), b.fresh, bound)
    b.out += body
    return results


def guarded(loop: LoopUTask, fresh: FreshValues) -> tuple[Statement, ...]:
    """Unrolls a while loop by two: `while even and p(x): y = f(x); even = p(y); x = f(y) if even else x`, and
    after it `x if even else y`.

    No array is copied from one of its two buffers to the other. Values that parallel loops do not write have
    one buffer, so their y replaces x.
    """
    two = _written_by_parts(loop)
    around, first = Builder(fresh, loop.source), Builder(fresh, loop.source)
    second = first.to([])
    x = first.like(loop.carried)
    y = _trip(loop, (), x, {}, first)
    even = _test(loop, y, first)
    again = _trip(loop, (), y, {}, second)
    stay = tuple(x[k] if k in two else v for k, v in enumerate(y))
    following = first.like(x)
    ways = Region((), (), stay), Region((), tuple(second.out), again)
    _choose(even, ways, following, first)
    spare = tuple(y[k] for k in two)
    body = Region((*x, *first.like((even, *spare))), tuple(first.out), (*following, even, *spare))
    start = (around.constant(True, "bool"), *(around.emit("empty", (), v.type) for v in spare))
    outputs = [*loop.outputs, *around.like((even, *spare))]
    odd = tuple(outputs[len(x) + 1 :])
    for k in two:
        outputs[k] = fresh.make(outputs[k].type)
    condition = _even_and(loop, body.parameters, around.to([]))
    initial = (*loop.initial, *start)
    wide = replace(loop, unroll=1, initial=initial, outputs=tuple(outputs), condition=condition, body=body)
    around.out.append(replace(wide, stops_by=len(x)))
    ends = Region((), (), odd), Region((), (), tuple(outputs[k] for k in two))
    _choose(outputs[len(x)], ends, tuple(loop.outputs[k] for k in two), around)
    return tuple(around.out)


def out_of_place(loop: LoopUTask, constants: Mapping[Value, int], fresh: FreshValues) -> LoopUTask:
    """The loop with parallel loops that write to other buffers instead of updating all of a carry in place.

    A unit may not update a carry in place before all units that read it have done so.
    """

    def elsewhere(statement: Statement) -> Statement | list[Statement]:
        if is_parallel(statement):
            return _elsewhere(statement, loop.carried, constants, Builder(fresh, statement.source))
        return statement

    return map_regions(loop, lambda region: map_body(region, elsewhere) if region is loop.body else region)


def _elsewhere(
    parts: LoopUTask, carried: Sequence[Value], constants: Mapping[Value, int], b: Builder
) -> list[Statement]:
    """The parallel loop, after the fresh arrays that it writes instead of carries."""
    blocks = own_slices(parts, constants)
    makers = {v: s for s in parts.body.body for v in s.outputs}
    initial = list(parts.initial)
    old: Names = {}
    updates: set[Statement] = set()
    for k, (array, result) in enumerate(zip(parts.carried, parts.body.results, strict=True)):
        update = makers.get(result)
        if initial[k] not in carried or k not in blocks:
            continue
        if not is_a(update, "dynamic_update_slice"):
            continue
        axis, tile = blocks[k]
        shape = list(array.type.shape)
        whole, shape[axis] = shape[axis] == tile * (parts.trip_count or 0), tile
        if whole and update.inputs[0] == array and list(update.inputs[1].type.shape) == shape:
            old[array], initial[k] = initial[k], b.emit("empty", (), array.type)
            updates.add(update)
    if not old:
        return [parts]
    body = tuple(
        replace(s, inputs=(s.inputs[0], *replaced(s.inputs[1:], old)))
        if isinstance(s, UOperator) and s in updates
        else with_reads(s, old)
        for s in parts.body.body
    )
    return [*b.out, replace(parts, initial=tuple(initial), body=replace(parts.body, body=body))]


def _written_by_parts(loop: LoopUTask) -> list[int]:
    """Positions of the carries whose next value a parallel loop writes, and not in place."""
    definitions = {v: s for s in loop.body.body for v in s.outputs}
    found = []
    for k, (carry, value) in enumerate(zip(loop.carried, loop.body.results, strict=True)):
        made = definitions.get(value)
        while is_a(made, "reshape", "dynamic_update_slice"):
            made = definitions.get(made.inputs[0])
        if is_parallel(made) and not stays(value, carry, definitions):
            found.append(k)
    return found


def _test(loop: LoopUTask, values: Sequence[Value], b: Builder) -> Value:
    """Appends a copy of the loop's condition on these values."""
    assert loop.condition is not None
    body, (test,) = applied(loop.condition, values, b.fresh)
    b.out += body
    return test


def _even_and(loop: LoopUTask, carried: Sequence[Value], b: Builder) -> Region:
    """The condition of a guarded loop."""
    parameters, count = b.like(carried), len(loop.carried)
    both = b.binary("and", parameters[count], _test(loop, parameters[:count], b))
    return Region(parameters, tuple(b.out), (both,))


def _choose(truth: Value, ways: tuple[Region, Region], outputs: tuple[Value, ...], b: Builder) -> None:
    """Appends a branch: the first of `ways` if a bool[] is false, else the second."""
    if outputs:
        b.out.append(BranchUTask(b.convert(truth, "int32"), ways, outputs, b.source))


def stays(value: Value, carry: Value, definitions: Mapping[Value, Statement]) -> bool:
    """True if the value is the carry or an update of it in place, or may overwrite it at once."""
    while value != carry:
        made = definitions.get(value)
        if is_a(made, "exchange"):
            return True  # the exchange ends after this unit has read the old one
        if is_a(made, "dynamic_update_slice"):
            value = made.inputs[0]
        elif isinstance(made, LoopUTask):
            value = made.initial[made.outputs.index(value)]
        else:
            return False
    return True
