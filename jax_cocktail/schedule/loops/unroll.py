"""Loop unrolling: full, or by a factor with the remaining trips behind the loop, or by two with a guard.

Indices become constants, which `simplify` folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jax_cocktail.analysis.parallel import own_slices
from jax_cocktail.utask.copies import INDEX, Names, constant, copied
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator
from jax_cocktail.utask.substitute import FreshValues, replaced, with_reads
from jax_cocktail.utask.types import Source, TensorType, Value

SELECTOR = TensorType("int32")


def unroll(loop: LoopUTask, factor: int, fresh: FreshValues) -> tuple[Statement, ...]:
    """A counted loop with `factor` copies of its body per trip; no loop at all if it has no more trips."""
    assert loop.trip_count is not None and factor > 0
    if factor == 1:
        return (loop,)
    rounds, rest = divmod(loop.trip_count, factor)
    if rounds <= 1:
        return _peeled(loop, range(loop.trip_count), loop.initial, fresh)
    between = tuple(fresh.make(v.type) for v in loop.outputs) if rest else loop.outputs
    wide = _widened(loop, factor, rounds, between, fresh)
    return (
        (wide, *_peeled(loop, range(rounds * factor, loop.trip_count), between, fresh)) if rest else (wide,)
    )


def _widened(
    loop: LoopUTask, factor: int, rounds: int, outputs: tuple[Value, ...], fresh: FreshValues
) -> LoopUTask:
    turn, size = fresh.make(INDEX), constant(factor, fresh, loop)
    base = UOperator("mul", (turn, size.output), (fresh.make(INDEX),), (), loop.source)
    body: list[Statement] = [size, base]
    parameters = values = tuple(fresh.make(v.type) for v in loop.carried)
    for k in range(factor):
        index = base.output
        if k:
            offset = constant(k, fresh, loop)
            sum_ = UOperator("add", (base.output, offset.output), (fresh.make(INDEX),), (), loop.source)
            body += [offset, sum_]
            index = sum_.output
        values = _trip(loop, (index,), values, {}, fresh, body)
    inner = Region((turn, *parameters), tuple(body), values)
    return replace(loop, outputs=outputs, body=inner, trip_count=rounds)


def _peeled(
    loop: LoopUTask, trips: range, values: tuple[Value, ...], fresh: FreshValues
) -> tuple[Statement, ...]:
    """These trips one after the other; the last one defines the outputs of the loop."""
    out: list[Statement] = []
    bound: Mapping[Value, Value] = {}
    defined = {v for s in loop.body.body for v in s.outputs}
    for trip in trips:
        index = constant(trip, fresh, loop)
        out.append(index)
        if trip == trips[-1]:
            pairs = zip(loop.body.results, loop.outputs, strict=True)
            bound = {r: o for r, o in reversed(list(pairs)) if r in defined}
        values = _trip(loop, index.outputs, values, bound, fresh, out)
    for value, output in zip(values, loop.outputs, strict=True):
        if value != output:  # handed through: a reshape that changes nothing gives it the name
            out.append(UOperator("reshape", (value,), (output,), (), loop.source))
    return tuple(out)


def _trip(
    loop: LoopUTask,
    index: Sequence[Value],
    values: Sequence[Value],
    bound: Mapping[Value, Value],
    fresh: FreshValues,
    out: list[Statement],
) -> tuple[Value, ...]:
    """Adds a copy of the body. `index`: none, if the loop has a condition."""
    names = dict(bound) | dict(zip(loop.body.parameters, (*index, *values), strict=True))
    out += [copied(s, names, fresh) for s in loop.body.body]
    return replaced(loop.body.results, names)


def guarded(loop: LoopUTask, fresh: FreshValues) -> tuple[Statement, ...]:
    """A loop with a condition and two trips in one: `while even and p(x): y = f(x); even = p(y); x = f(y) if
    even else x`, and behind it `x if even else y`.

    So nothing is copied from one of two buffers to the other. What is not written by parts has but one: of
    that, x becomes y in the end.
    """
    two = _written_by_parts(loop)
    x = _like(loop.carried, fresh)
    first: list[Statement] = []
    y = _trip(loop, (), x, {}, fresh, first)
    even = _test(loop, y, fresh, first)
    second: list[Statement] = []
    again = _trip(loop, (), y, {}, fresh, second)
    stay = tuple(x[k] if k in two else v for k, v in enumerate(y))
    following = _like(x, fresh)
    ways = Region((), (), stay), Region((), tuple(second), again)
    first += _choice(even, ways, following, fresh, loop.source)
    spare = tuple(y[k] for k in two)
    body = Region((*x, *_like((even, *spare), fresh)), tuple(first), (*following, even, *spare))
    start = [UOperator("constant", (), (fresh.make(even.type),), (("data", b"\1"),), loop.source)]
    start += [UOperator("empty", (), (fresh.make(v.type),), (), loop.source) for v in spare]
    outputs = list(loop.outputs) + list(_like((even, *spare), fresh))
    odd = tuple(outputs[len(x) + 1 :])
    for k in two:
        outputs[k] = fresh.make(outputs[k].type)
    initial = (*loop.initial, *(s.output for s in start))
    condition = _even_and(loop, body.parameters, fresh)
    wide = replace(loop, initial=initial, outputs=tuple(outputs), condition=condition, body=body)
    ends = Region((), (), odd), Region((), (), tuple(outputs[k] for k in two))
    results = tuple(loop.outputs[k] for k in two)
    return (*start, wide, *_choice(outputs[len(x)], ends, results, fresh, loop.source))


def out_of_place(loop: LoopUTask, constants: Mapping[Value, int], fresh: FreshValues) -> LoopUTask:
    """The loop with carries that parts update in place, all of them, written to other buffers.

    In place, a carry that all units read cannot be written before all have read it.
    """
    body: list[Statement] = []
    for statement in loop.body.body:
        if isinstance(statement, LoopUTask) and statement.parallel:
            body += _elsewhere(statement, loop.carried, constants, fresh)
        else:
            body.append(statement)
    return (
        loop if len(body) == len(loop.body.body) else replace(loop, body=replace(loop.body, body=tuple(body)))
    )


def _elsewhere(
    parts: LoopUTask, carried: Sequence[Value], constants: Mapping[Value, int], fresh: FreshValues
) -> tuple[Statement, ...]:
    """The parallel loop, and in front of it the fresh arrays that it writes instead of carries."""
    blocks = own_slices(parts, constants)
    makers = {v: s for s in parts.body.body for v in s.outputs}
    initial, spare = list(parts.initial), list[UOperator]()
    old: Names = {}
    updates: set[Statement] = set()
    for k, (array, result) in enumerate(zip(parts.carried, parts.body.results, strict=True)):
        update = makers.get(result)
        if initial[k] not in carried or k not in blocks:
            continue
        if not isinstance(update, UOperator) or update.kind != "dynamic_update_slice":
            continue
        axis, tile = blocks[k]
        shape = list(array.type.shape)
        whole, shape[axis] = shape[axis] == tile * (parts.trip_count or 0), tile
        if whole and update.inputs[0] == array and list(update.inputs[1].type.shape) == shape:
            spare.append(UOperator("empty", (), (fresh.make(array.type),), (), parts.source))
            old[array], initial[k] = initial[k], spare[-1].output
            updates.add(update)
    if not spare:
        return (parts,)
    body = tuple(
        replace(s, inputs=(s.inputs[0], *replaced(s.inputs[1:], old)))
        if isinstance(s, UOperator) and s in updates
        else with_reads(s, old)
        for s in parts.body.body
    )
    return (*spare, replace(parts, initial=tuple(initial), body=replace(parts.body, body=body)))


def _written_by_parts(loop: LoopUTask) -> list[int]:
    """Positions of carried arrays whose next value parallel loops write, and not in place."""
    definitions = {v: s for s in loop.body.body for v in s.outputs}
    found = []
    for k, (carry, value) in enumerate(zip(loop.carried, loop.body.results, strict=True)):
        made = definitions.get(value)
        while isinstance(made, UOperator) and made.kind in ("reshape", "dynamic_update_slice"):
            made = definitions.get(made.inputs[0])
        if isinstance(made, LoopUTask) and made.parallel and not stays(value, carry, definitions):
            found.append(k)
    return found


def _test(loop: LoopUTask, values: Sequence[Value], fresh: FreshValues, out: list[Statement]) -> Value:
    """Adds a copy of the loop's condition on these values."""
    assert loop.condition is not None
    names = dict(zip(loop.condition.parameters, values, strict=True))
    out += [copied(s, names, fresh) for s in loop.condition.body]
    return replaced(loop.condition.results, names)[0]


def _even_and(loop: LoopUTask, carried: Sequence[Value], fresh: FreshValues) -> Region:
    """The condition of a guarded loop."""
    parameters = _like(carried, fresh)
    body: list[Statement] = []
    count = len(loop.carried)
    true = _test(loop, parameters[:count], fresh, body)
    both = UOperator("and", (parameters[count], true), (fresh.make(true.type),), (), loop.source)
    return Region(parameters, (*body, both), both.outputs)


def _choice(
    truth: Value, ways: tuple[Region, Region], outputs: tuple[Value, ...], fresh: FreshValues, source: Source
) -> tuple[Statement, ...]:
    """A branch: the first way if a bool[] is false, else the second."""
    if not outputs:
        return ()
    selector = UOperator("convert", (truth,), (fresh.make(SELECTOR),), (), source)
    return selector, BranchUTask(selector.output, ways, outputs, source)


def _like(values: Sequence[Value], fresh: FreshValues) -> tuple[Value, ...]:
    return tuple(fresh.make(v.type) for v in values)


def stays(value: Value, carry: Value, definitions: Mapping[Value, Statement]) -> bool:
    """True if the value is the carry, updated in place at most, or may take its place at once."""
    while value != carry:
        made = definitions.get(value)
        if isinstance(made, UOperator) and made.kind == "exchange":
            return True  # complete when this unit has read the old one
        if isinstance(made, UOperator) and made.kind == "dynamic_update_slice":
            value = made.inputs[0]
        elif isinstance(made, LoopUTask):
            value = made.initial[made.outputs.index(value)]
        else:
            return False
    return True
