"""The cost of a program on a CPU, computed from its statements alone.

The model computes the same sum twice. The translated program under stock XLA pays for every operator and
branch that XLA dispatches, and heavy products and convolutions use all cores. In a planned program under our
runtime the units share a statement in a parallel loop, one unit (or each for itself) executes everything
else, and a barrier costs two transfers of a cache line. A statement takes the time of its arithmetic or of
its memory, whichever is longer; memory is as fast as the smallest level that holds the data of one iteration
of the enclosing loop. (The price of a fusion plan in FusionStitching, Zheng et al. 2020, section 5, has the
same parts.) The rates are those of `device.host`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import ceil

from jax_cocktail.cost.value import Price
from jax_cocktail.cost.work import element_flops, rows, trips, work
from jax_cocktail.device.host import SERVER, Rates
from jax_cocktail.utask.failure import KIND as FAIL
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    is_parallel,
    operators_of,
    walk,
)
from jax_cocktail.utask.operators import LEAVES, NO_RESULTS, PARTIAL, PRODUCTS, UPDATES, VIEWS
from jax_cocktail.utask.types import Value

NO_TIME = LEAVES | NO_RESULTS | {"reshape", "broadcast", FAIL}  # free in any runtime
_VIEWS = VIEWS - NO_TIME  # free in a runtime that has views


def stock_price(program: UProgram, cores: int) -> Price:
    """The price of one call of a translated program under stock XLA on that many cores."""
    return _priced(program.entry, _Place(SERVER.stock, cores))


def undispatched_price(program: UProgram, cores: int) -> Price:
    """The same without the time that its runtime takes to dispatch kernels."""
    return _priced(program.entry, _Place(replace(SERVER.stock, dispatch=0.0), cores))


def our_price(program: UProgram, units: int) -> Price:
    """The price of one call of a planned program on that many units."""
    call = Price(SERVER.launch_seconds + (SERVER.wake_seconds if units > 1 else 0.0))
    return _priced(program.entry, _Place(SERVER.ours, units)) + call


def statement_seconds(program: UProgram, units: int) -> dict[int, float]:
    """Seconds of one execution of each statement of a planned program, by its identity. What is inside a
    parallel loop is priced for one part."""
    found: dict[int, float] = {}
    _priced(program.entry, _Place(SERVER.ours, units, found=found))
    return found


def statement_price(statement: Statement, rates: Rates, cores: int) -> Price:
    """The price of one execution of a statement, whatever surrounds it."""
    place = _Place(rates, cores)
    return _statement(statement, replace(place, bandwidth=SERVER.bandwidth(touched_bytes((statement,), 1))))


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a statement: the runtime and its cores; whether one core already has it to itself; and the
    rate of the memory that holds the data of an iteration. `found`: collects the seconds of statements."""

    rates: Rates
    cores: int
    alone: bool = False
    bandwidth: float = field(default=SERVER.levels[-1][1])
    found: dict[int, float] | None = field(default=None, compare=False)


def _priced(region: Region, place: _Place) -> Price:
    units = 1 if place.alone else place.cores
    inside = replace(place, bandwidth=SERVER.bandwidth(touched_bytes(region.body, units)))
    return sum((_statement(s, inside) for s in region.body), Price())


def _statement(statement: Statement, place: _Place) -> Price:
    price = _one(statement, place)
    if place.found is not None:
        place.found[id(statement)] = price.seconds
    return price


def _one(statement: Statement, place: _Place) -> Price:
    if isinstance(statement, LoopUTask):
        return _loop(statement, place)
    if isinstance(statement, BranchUTask):
        sides = [sum((_statement(s, place) for s in r.body), Price()) for r in statement.branches]
        mean = sum(sides, Price()) * (1 / len(sides)) + Price(place.rates.dispatch)
        return replace(mean, least_convolutions=min(s.least_convolutions for s in sides))
    if isinstance(statement, StitchedUTask):
        return _stitched(statement, place)
    return _operator(statement, place)


def _loop(loop: LoopUTask, place: _Place) -> Price:
    number = trips(loop)
    if loop.parallel and not place.alone:
        # Each unit runs its parts one after the other; those with the most parts finish last. What a part
        # makes stays in the cache that holds the part.
        near = max(place.bandwidth, SERVER.bandwidth(touched_bytes(loop.body.body, 1)))
        alone = replace(place, alone=True, bandwidth=near)
        fetched = _fetched(loop) * (1 / place.bandwidth - 1 / near)
        once = sum((_statement(s, alone) for s in loop.body.body), Price(place.rates.dispatch + fetched))
        return once * ceil(number / place.cores)
    inside = [_priced(region, place) for region in loop.regions]
    dispatches = place.rates.loop_dispatches
    return (sum(inside, Price()) + Price(dispatches * place.rates.dispatch)) * number


def _stitched(group: StitchedUTask, place: _Place) -> Price:
    """One pass over memory; a product may be part of it."""
    heavy = sum((_heavy(member, place) for member in group.members), Price())
    flops = sum(light_flops(member) for member in group.members)
    moved = sum(bytes_of_group(group).values())
    light = max(flops / place.rates.light, moved / place.bandwidth)
    return heavy + Price(place.rates.dispatch + (0.0 if heavy.seconds > light else light))


def _operator(operator: UOperator, place: _Place) -> Price:
    if operator.kind == "wait":
        return Price(SERVER.barrier_seconds)
    if operator.kind in NO_TIME or (place.rates.views and operator.kind in _VIEWS):
        return Price()
    heavy = _heavy(operator, place)
    if heavy.seconds:
        return heavy + Price(place.rates.dispatch)
    moved = sum(bytes_of(operator).values())
    return Price(
        place.rates.dispatch + max(light_flops(operator) / place.rates.light, moved / place.bandwidth)
    )


def _heavy(operator: UOperator, place: _Place) -> Price:
    flops = heavy_flops(operator)
    wide = 0.5 if operator.outputs[0].type.dtype == "float64" else 1.0
    full = 1.0
    if operator.kind == "conv":  # vectors run over output features
        features = operator.output.type.shape[operator.ints("out_spec")[1]]
        full = max(features, 1) / (SERVER.vector_lanes * ceil(max(features, 1) / SERVER.vector_lanes))
    seconds = flops / (place.rates.heavy * wide * full * (place.cores if place.rates.spreads else 1))
    convolution = seconds if operator.kind == "conv" else 0.0
    return Price(seconds, seconds, convolution, convolution)


# ---- work of a statement -----------------------------------------------------------------------------------


def light_flops(operator: UOperator) -> float:
    if operator.kind in PRODUCTS:
        return 0.0 if heavy_flops(operator) else work(operator).flops / SERVER.thin_product
    if operator.kind in PARTIAL:
        return 0.0
    values = (*operator.inputs, *operator.outputs) if operator.kind not in UPDATES else operator.inputs[1:]
    return max(v.type.size for v in values) * element_flops(operator)


def heavy_flops(operator: UOperator) -> float:
    """Flops of a convolution, or of a product with enough rows that arithmetic limits it."""
    if operator.kind == "conv":
        return work(operator).flops
    if operator.kind != "dot":
        return 0.0
    return work(operator).flops if min(rows(operator)) >= SERVER.few_rows else 0.0


def bytes_of(operator: UOperator) -> dict[Value, int]:
    """The bytes that an operator touches, by value in memory. An element operator counts for one value, since
    both compilers fuse chains of them."""
    if operator.kind in PARTIAL:
        return {operator.output: 2 * operator.output.type.nbytes}
    if operator.facts.updates:
        moved = operator.inputs[operator.facts.updates]
        return {moved: 2 * moved.type.nbytes}
    values = operator.outputs if operator.is_element else (*operator.inputs, *operator.outputs)
    return {v: v.type.nbytes for v in values if not v.type.is_scalar}


def bytes_of_group(group: StitchedUTask) -> dict[Value, int]:
    """The bytes that the members read from memory, whole or in part, and write to it, by value."""
    outside = set(group.inputs)
    moved = {v: v.type.nbytes for v in group.outputs if not v.type.is_scalar}
    for member in group.members:
        if member.kind in PARTIAL:
            moved[member.output] = member.output.type.nbytes
            continue
        if member.kind == "dynamic_update_slice":
            moved.pop(member.output, None)
            moved[member.inputs[1]] = member.inputs[1].type.nbytes
            continue
        moved.update((v, v.type.nbytes) for v in member.inputs if v in outside and not v.type.is_scalar)
    return moved


def _fetched(loop: LoopUTask) -> float:
    """Bytes of arrays outside that a part of a parallel loop reads or writes by slices."""
    slices = [o for s in loop.body.body for o in operators_of(s) if o.kind in PARTIAL | UPDATES]
    return float(sum(v.type.nbytes for o in slices for v in bytes_of(o)))


def touched_bytes(statements: Iterable[Statement], units: int) -> float:
    """Bytes that one execution of the statements touches, per unit."""
    whole: dict[Value, int] = {}
    shared = 0.0
    for statement in statements:
        if is_parallel(statement):
            parts = max(statement.trip_count or 1, 1)
            shared += touched_bytes(statement.body.body, 1) * ceil(parts / units)
        else:
            _collect(statement, whole)
    return sum(whole.values()) + shared


def _collect(statement: Statement, found: dict[Value, int]) -> None:
    for inner in walk(statement):
        if isinstance(inner, UOperator) and inner.kind not in NO_TIME:
            found.update(bytes_of(inner))
        elif isinstance(inner, StitchedUTask):
            found.update(bytes_of_group(inner))
