"""Loop unrolling: full, or by a factor with the remaining trips behind the loop, or by two with a guard.

Copies of a body get fresh names. What indices become constants is for `simplify` to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from jax_cocktail.errors import PlacementError
from jax_cocktail.schedule.barriers import synchronise, waits
from jax_cocktail.schedule.copies import explicit_copies
from jax_cocktail.schedule.memory_plan import plan_memory
from jax_cocktail.schedule.simplify import simplify
from jax_cocktail.stitch.fuse import stitch
from jax_cocktail.utask.graph import with_reads
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    UTaskRef,
    operators_in,
    regions_of,
    walk,
)
from jax_cocktail.utask.parallel import own_slices, scalar_constants
from jax_cocktail.utask.substitute import FreshValues, replaced
from jax_cocktail.utask.types import Source, TensorType, Value

INDEX, SELECTOR = TensorType("int64"), TensorType("int32")
FEWEST_TRIPS = 4  # of a loop that is worth alternating between two buffers
MOST_STATEMENTS = 600  # of a loop that is worth compiling twice: beside more, a barrier hardly counts

Names = dict[Value, Value]


# -- copies --------------------------------------------------------------------------------------------------
def copied(statement: Statement, names: Names, fresh: FreshValues) -> Statement:
    """The statement on the operands in `names`; what it defines gets fresh names, noted in `names` too.

    Names that `names` has for its results already are taken over.
    """
    if isinstance(statement, StitchedUTask):
        members = tuple(copied(m, names, fresh) for m in statement.members)
        changes = {"inputs": replaced(statement.inputs, names), "outputs": replaced(statement.outputs, names)}
        return replace(statement, members=members, **changes)  # type: ignore[arg-type]
    if isinstance(statement, UOperator):
        inputs = replaced(statement.inputs, names)
        return replace(statement, inputs=inputs, outputs=_named(statement.outputs, names, fresh))
    if isinstance(statement, BranchUTask):
        selector = names.get(statement.selector, statement.selector)
        branches = tuple(copied_region(r, names, fresh) for r in statement.branches)
        outputs = _named(statement.outputs, names, fresh)
        return replace(statement, selector=selector, branches=branches, outputs=outputs)
    if isinstance(statement, UTaskRef):
        arguments = replaced(statement.arguments, names)
        return replace(statement, arguments=arguments, outputs=_named(statement.outputs, names, fresh))
    initial = replaced(statement.initial, names)
    condition = statement.condition and copied_region(statement.condition, names, fresh)
    body = copied_region(statement.body, names, fresh)
    outputs = _named(statement.outputs, names, fresh)
    return replace(statement, initial=initial, condition=condition, body=body, outputs=outputs)


def copied_region(region: Region, names: Names, fresh: FreshValues) -> Region:
    """A region under fresh names."""
    parameters = _named(region.parameters, names, fresh)
    body = tuple(copied(s, names, fresh) for s in region.body)
    return Region(parameters, body, replaced(region.results, names))


def _named(values: Sequence[Value], names: Names, fresh: FreshValues) -> tuple[Value, ...]:
    for value in values:
        if value not in names:
            names[value] = fresh.make(value.type)
    return replaced(values, names)


def constant(number: int, fresh: FreshValues, like: LoopUTask) -> UOperator:
    """An int64 constant."""
    data = number.to_bytes(8, "little", signed=True)
    return UOperator("constant", (), (fresh.make(INDEX),), (("data", data),), like.source)


# -- unrolling -----------------------------------------------------------------------------------------------
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
        if isinstance(made, LoopUTask) and made.parallel and not _stays(value, carry, definitions):
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


# -- two buffers ---------------------------------------------------------------------------------------------
def unroll_pairs(program: UProgram) -> UProgram:
    """Unrolls by two the loops around parallel loops whose arrays need a second buffer.

    The next value of a carry is complete only after all parts have read the old one. Two trips in a row
    write to two buffers in turn, and no copy brings the new value back to where the old one was. So does what
    a trip hands on from unit to unit: nobody waits until that of the last trip has been read. Loops whose
    trips only the run counts are planned both ways, and unrolled where that saves barriers.
    """
    fresh = FreshValues(program)
    entry = _pairs(program.entry, fresh)
    if entry is not program.entry:
        program = replace(program, entry=entry)
    waiting = [loop.outputs for loop in _waiting(program.entry)]
    if not waiting:
        return program
    planned = _barriers(program)
    for outputs in waiting:
        loop = next((s for s in _waiting(program.entry) if s.outputs == outputs), None)
        if loop is None:  # too long by now, with a loop inside that is there twice
            continue
        fewest, chosen = 2 * planned(loop), program
        apart = out_of_place(loop, scalar_constants(operators_in(program.entry)), fresh)
        for trial in (loop, apart) if fewest and apart is not loop else (loop,) if fewest else ():
            twice = guarded(trial, fresh)
            wide = replace(program, entry=_replaced(program.entry, loop, twice))
            (inner,) = (s for s in twice if isinstance(s, LoopUTask))
            trial_plan = _barriers(wide)
            if trial_plan(inner) < fewest:
                fewest, chosen, planned = trial_plan(inner), wide, trial_plan
        program = chosen
    return program


def _waiting(region: Region) -> Iterator[LoopUTask]:
    """Loops with a condition and parallel loops inside, that are not too long; inner loops first."""
    for statement in region.body:
        for inner in regions_of(statement):
            yield from _waiting(inner)
        inside = (s for region in regions_of(statement) for s in walk(region) if isinstance(s, LoopUTask))
        short = sum(1 for region in regions_of(statement) for _ in walk(region)) <= MOST_STATEMENTS
        if (
            isinstance(statement, LoopUTask)
            and statement.condition
            and any(s.parallel for s in inside)
            and short
        ):
            yield statement


def _replaced(region: Region, loop: LoopUTask, twice: tuple[Statement, ...]) -> Region:
    """The region with other statements in the place of a loop."""
    body: list[Statement] = []
    for statement in region.body:
        if statement is loop:
            body += twice
            continue
        if isinstance(statement, LoopUTask) and not statement.parallel:
            statement = replace(statement, body=_replaced(statement.body, loop, twice))
        elif isinstance(statement, BranchUTask):
            branches = tuple(_replaced(r, loop, twice) for r in statement.branches)
            statement = replace(statement, branches=branches)
        body.append(statement)
    return replace(region, body=tuple(body))


def _barriers(program: UProgram) -> Callable[[LoopUTask], float]:
    """How many there are in a trip of the loop with the same outputs, once the program is planned."""
    found: dict[Value, float] = {}
    try:
        ready = explicit_copies(stitch(simplify(program)))
        final = synchronise(ready, plan_memory(ready))
    except PlacementError:
        return lambda loop: inf
    for statement in walk(final.entry):
        if isinstance(statement, LoopUTask):
            count = sum(waits(s) for region in statement.regions for s in region.body)
            found |= dict.fromkeys(statement.outputs, count)
    return lambda loop: next((found[v] for v in loop.outputs if v in found), inf)


def _pairs(region: Region, fresh: FreshValues) -> Region:
    body: list[Statement] = []
    for statement in region.body:
        if isinstance(statement, LoopUTask):
            condition = statement.condition and _pairs(statement.condition, fresh)
            inner = _pairs(statement.body, fresh)
            if inner is not statement.body or condition is not statement.condition:
                statement = replace(statement, condition=condition, body=inner)
            body += unroll(statement, 2, fresh) if _alternates(statement) else (statement,)
        elif isinstance(statement, BranchUTask):
            branches = tuple(_pairs(r, fresh) for r in statement.branches)
            if any(a is not b for a, b in zip(branches, statement.branches, strict=True)):
                statement = replace(statement, branches=branches)
            body.append(statement)
        else:
            body.append(statement)
    same = len(body) == len(region.body) and all(a is b for a, b in zip(body, region.body, strict=True))
    return region if same else Region(region.parameters, tuple(body), region.results)


def _alternates(loop: LoopUTask) -> bool:
    if loop.trip_count is None or loop.trip_count < FEWEST_TRIPS or loop.parallel:
        return False
    if not any(isinstance(s, LoopUTask) and s.parallel for s in loop.body.body):
        return False
    definitions = {v: s for s in loop.body.body for v in s.outputs}
    pairs = zip(loop.carried, loop.body.results, strict=True)
    return any(not c.type.is_scalar and not _stays(r, c, definitions) for c, r in pairs)


def _stays(value: Value, carry: Value, definitions: Mapping[Value, Statement]) -> bool:
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
