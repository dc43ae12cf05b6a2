"""Writes nothing for batch elements that are done, instead of choosing between two arrays afterwards.

    new = scatter(x, at, part)                       new = scatter(x, active ? at : outside, part)
    select(active, new, x)              ->           new

A lock-step loop keeps the state of elements that are done by a select over whole arrays. For an array of
which an element writes a few numbers in each trip (a cache of keys and values, a list of tokens), the select
copies all of it. Here elements that are done write outside of the array, where a scatter drops them, so that
the array is updated in place. The body then computes other values for these elements. Nobody reads them,
since this is done only where no operator mixes batch elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from jax_cocktail.schedule.vmap.cut import is_apart
from jax_cocktail.schedule.vmap.emit import Emitter
from jax_cocktail.schedule.vmap.lockstep import ElementLoop, element_loop, spread
from jax_cocktail.schedule.vmap.selects import in_order
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    definitions,
    is_a,
    reads,
    regions_of,
    walk,
)
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues, region_reads
from jax_cocktail.utask.types import Value

_MOST = (1 << 31) - 1  # of an axis: positions may have 32 bits
_WORTH = 4  # times as many numbers as the scatter writes: less is chosen as fast as it is skipped


def updates(program: UProgram) -> UProgram:
    """The program with such updates in all of its loops in lock-step; its argument if there are none."""
    fresh = FreshValues(program)

    def region(region: Region) -> Region:
        return map_body(region, statement)

    def statement(statement: Statement) -> Statement:
        elements = element_loop(statement) if isinstance(statement, LoopUTask) else None
        if elements is not None and isinstance(statement, LoopUTask) and is_apart(statement, elements):
            statement = masked_updates(statement, elements, fresh)
        return map_regions(statement, region)

    return map_regions(program, region)


def masked_updates(loop: LoopUTask, elements: ElementLoop, fresh: FreshValues) -> LoopUTask:
    """The loop, in lock-step as before, which is no longer visible; its argument if nothing changes. No
    operator mixes its `elements`."""
    made, renamed, dropped = definitions(loop.body), dict[Value, Value](), set[Value]()
    masked = dict[Value, Sequence[Statement]]()  # by the result of the scatter
    for k, result in enumerate(loop.body.results):
        chain = _scatters(elements.following[k], loop.carried[k], elements.axes[k], made)
        if not chain or _steer(loop.body.body, {s.output for s in chain}):
            continue
        select = made[result]
        assert isinstance(select, UOperator)
        for scatter in chain:
            masked[scatter.output] = _masked(scatter, select, elements.axes[k], made, fresh)
        renamed[result] = elements.following[k]
        dropped.add(result)
    if not masked:
        return loop
    kept = (s for s in loop.body.body if s.outputs[0] not in dropped)
    units = [masked.get(s.outputs[0], (s,)) for s in kept]
    body = replace(loop.body, body=tuple(in_order(units)))
    return replace(loop, body=region_reads(body, renamed))


def _scatters(
    value: Value, carried: Value, axes: Sequence[int], made: Mapping[Value, Statement]
) -> tuple[UOperator, ...]:
    """The scatters that make `value` of a carry, each within its batch elements; none if it is something
    else."""
    found = list[UOperator]()
    while value != carried:
        scatter = made.get(value)
        if not is_a(scatter, "scatter") or not set(axes) <= set(scatter.ints("operand_batching_dims")):
            return ()
        value, _, part = scatter.inputs
        placed = scatter.ints("scatter_dims_to_operand_dims")
        if not placed or part.type.size * _WORTH > value.type.size or max(value.type.shape) > _MOST:
            return ()
        found.append(scatter)
    return tuple(found)


def _masked(
    scatter: UOperator,
    select: UOperator,
    axes: Sequence[int],
    made: Mapping[Value, Statement],
    fresh: FreshValues,
) -> Sequence[Statement]:
    """The scatter, with indices outside of the array where the select takes the array."""
    x, indices, part = scatter.inputs
    out = Emitter(fresh, scatter.source)
    root, _ = spread(select.inputs[0], made)
    batch = dict(
        zip(scatter.ints("operand_batching_dims"), scatter.ints("scatter_indices_batching_dims"), strict=True)
    )
    at = out.convert(indices, "int64" if indices.type.dtype in ("int64", "uint32", "uint64") else "int32")
    if scatter["mode"] == "clip":
        bounds = out.broadcast(
            out.constant(_last_starts(scatter), at.type.dtype), at.type.shape, (at.type.rank - 1,)
        )
        at = out.emit("clamp", (out.number(0, at.type), at, bounds), at.type)
    active = out.broadcast(root, at.type.shape, tuple(batch[axis] for axis in axes))
    at = out.select(active, at, out.number(-1, at.type))
    attributes = tuple(
        (name, "fill_or_drop" if name == "mode" else value) for name, value in scatter.attributes
    )
    out.out.append(replace(scatter, inputs=(x, at, part), attributes=attributes))
    return out.out


def _last_starts(scatter: UOperator) -> list[int]:
    """For each component of an index, the last one for which the window lies in the array."""
    x, _, part = scatter.inputs
    inserted = {*scatter.ints("inserted_window_dims"), *scatter.ints("operand_batching_dims")}
    window = (d for d in range(x.type.rank) if d not in inserted)
    sizes = dict(zip(window, (part.type.shape[d] for d in scatter.ints("update_window_dims")), strict=True))
    return [x.type.shape[d] - sizes.get(d, 1) for d in scatter.ints("scatter_dims_to_operand_dims")]


def _steer(body: Sequence[Statement], changed: set[Value]) -> bool:
    """True if such values decide how long a loop inside runs, or whether an operator fails the call: elements
    that are done take part in both."""
    return any(_steers(statement, changed) for statement in body)


def _steers(statement: Statement, changed: set[Value]) -> bool:
    """Adds results that depend on changed values to these."""
    if isinstance(statement, LoopUTask):
        return any(_loop_steers(statement, changed))
    touched = not changed.isdisjoint(reads(statement))
    if isinstance(statement, UOperator):
        steers = touched and not statement.facts.total
    else:
        endless = any(isinstance(s, LoopUTask) and s.condition is not None for s in walk(statement))
        chosen = endless and not changed.isdisjoint(statement.inputs)
        steers = any(_steer(region.body, changed) for region in regions_of(statement)) or chosen
    if touched:
        changed.update(statement.outputs)
    return steers


def _loop_steers(loop: LoopUTask, changed: set[Value]) -> Iterator[bool]:
    """Marks what the carries of a loop depend on after any number of trips, and tells of each region whether
    it is steered."""
    before = -1
    while before != len(changed):
        before = len(changed)
        sides = zip(loop.initial, loop.carried, loop.tested, loop.body.results, loop.outputs, strict=True)
        for start, *names, following, end in sides:
            if start in changed or following in changed:
                changed.update((*names, end))
        yield _steer(loop.body.body, changed)
        if loop.condition is not None:
            yield _steer(loop.condition.body, changed) or loop.condition.results[0] in changed
