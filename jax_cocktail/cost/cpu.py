"""The cost of a program on a CPU, computed from its statements alone.

The model computes the same sum twice. The translated program under stock XLA pays for every operator and
branch that XLA dispatches, and heavy products and convolutions use all cores. In a planned program under our
runtime the units share a statement in a parallel loop, one unit (or each for itself) executes everything
else, and a barrier costs two transfers of a cache line. A statement takes the time of its arithmetic or of
its memory, whichever is longer; memory is as fast as the smallest level that holds the data of one iteration
of the enclosing loop. (The price of a fusion plan in FusionStitching, Zheng et al. 2020, section 5, has the
same parts.) The rates are those of a `HostSpec`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from jax_cocktail.cost.footprint import NO_TIME, bytes_of, bytes_of_group, bytes_of_pieces, touched_bytes
from jax_cocktail.cost.vector import Price, mean
from jax_cocktail.cost.work import element_flops, rows, trips, work
from jax_cocktail.device.host import HostSpec, Rates
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    is_parallel,
    performers,
)
from jax_cocktail.utask.operators import PARTIAL, PRODUCTS, UPDATES, VIEWS

_VIEWS = VIEWS - NO_TIME  # free in a runtime that has views


def stock_price(program: UProgram, cores: int, host: HostSpec) -> Price:
    """The price of one call of a translated program under stock XLA on that many cores."""
    return _priced(program.entry, _Context(host, host.stock, cores))


def undispatched_price(program: UProgram, cores: int, host: HostSpec) -> Price:
    """The price without the time that its runtime takes to dispatch kernels."""
    return _priced(program.entry, _Context(host, replace(host.stock, dispatch=0.0), cores))


def our_price(program: UProgram, units: int, host: HostSpec) -> Price:
    """The price of one call of a planned program on that many units."""
    call = Price(host.launch_seconds + (host.wake_seconds if units > 1 else 0.0))
    return _priced(program.entry, _Context(host, host.ours, units)) + call


def statement_seconds(program: UProgram, units: int, host: HostSpec) -> dict[int, float]:
    """Seconds of one execution of each statement of a planned program, by its identity. What is inside a
    parallel loop is priced for one part."""
    found: dict[int, float] = {}
    _priced(program.entry, _Context(host, host.ours, units, found=found))
    return found


def statement_price(statement: Statement, rates: Rates, cores: int, host: HostSpec) -> Price:
    """The price of one execution of a statement, whatever surrounds it, at the `rates` of one runtime."""
    context = _Context(host, rates, cores)
    return _statement(statement, replace(context, bandwidth=host.bandwidth(touched_bytes((statement,), 1))))


@dataclass(frozen=True, slots=True)
class _Context:
    """The surroundings of a statement: the host, the runtime and its cores; whether one core has it to itself
    already; the rate of the memory with the data of an iteration. `found`: collects the seconds of
    statements."""

    host: HostSpec
    rates: Rates
    cores: int
    alone: bool = False
    bandwidth: float = 0.0
    found: dict[int, float] | None = field(default=None, compare=False)

    def reread(self, touched: float) -> float:
        """Bytes per second of each core at which all of them reread so many bytes. Stock XLA spreads heavy
        operators alone, so memory serves one core."""
        return self.host.bandwidth(touched, 1 if self.rates.spreads else self.cores)


def _priced(region: Region, context: _Context) -> Price:
    units = 1 if context.alone else context.cores
    inside = replace(context, bandwidth=context.reread(touched_bytes(region.body, units)))
    return _in_turn(region, inside)


def _in_turn(region: Region, context: _Context) -> Price:
    """The statements of a region one after the other, but for parallel loops of different units."""
    units = 1 if context.alone else context.cores
    whole, own = Price(), [Price()] * units  # `own`: what each unit does between two statements of all
    for statement in region.body:
        price = _statement(statement, context)
        if is_parallel(statement) and (statement.trip_count or 0) < units:
            for unit in performers(statement, units):
                own[unit] = own[unit] + price
        elif price != Price():
            whole, own = whole + _longest(own) + price, [Price()] * units
    return whole + _longest(own)


def _longest(prices: Sequence[Price]) -> Price:
    return max(prices, key=lambda price: price.seconds)


def _statement(statement: Statement, context: _Context) -> Price:
    price = _one(statement, context)
    if context.found is not None:
        context.found[id(statement)] = price.seconds
    return price


def _one(statement: Statement, context: _Context) -> Price:
    if isinstance(statement, LoopUTask):
        return _loop(statement, context)
    if isinstance(statement, BranchUTask):
        sides = [_in_turn(side, context) for side in statement.branches]
        return mean(sides) + Price(context.rates.dispatch)
    if isinstance(statement, StitchedUTask):
        return _stitched(statement, context)
    return _operator(statement, context)


def _loop(loop: LoopUTask, context: _Context) -> Price:
    number = trips(loop)
    if loop.parallel and not context.alone:
        # Each unit runs its parts one after the other; those with the most parts finish last. What a part
        # makes stays in the cache that holds the part.
        near = max(context.bandwidth, context.reread(touched_bytes(loop.body.body, 1)))
        alone = replace(context, alone=True, bandwidth=near)
        fetched = bytes_of_pieces(loop.body.body) * (1 / context.bandwidth - 1 / near)
        once = sum((_statement(s, alone) for s in loop.body.body), Price(context.rates.dispatch + fetched))
        return once * ceil(number / context.cores)
    inside = [_priced(region, context) for region in loop.regions]
    dispatches = context.rates.loop_dispatches
    return (sum(inside, Price()) + Price(dispatches * context.rates.dispatch)) * number


def _stitched(group: StitchedUTask, context: _Context) -> Price:
    """One pass over memory; a product may be part of it."""
    heavy = sum((_heavy(member, context) for member in group.members if member.kind in PRODUCTS), Price())
    flops = sum(light_flops(member, context.host) for member in group.members)
    moved = sum(bytes_of_group(group).values())
    light = max(flops / context.rates.light, moved / context.bandwidth)
    return heavy + Price(context.rates.dispatch + (0.0 if heavy.seconds > light else light))


def _operator(operator: UOperator, context: _Context) -> Price:
    if operator.kind == "wait":
        return Price(context.host.barrier_seconds)
    if operator.kind in NO_TIME or (context.rates.views and operator.kind in _VIEWS):
        return Price()
    heavy = _heavy(operator, context)
    if heavy.seconds:
        return heavy + Price(context.rates.dispatch)
    moved = sum(bytes_of(operator).values())
    flops = light_flops(operator, context.host)
    return Price(context.rates.dispatch + max(flops / context.rates.light, moved / context.bandwidth))


def _heavy(operator: UOperator, context: _Context) -> Price:
    flops = heavy_flops(operator, context.host)
    wide = 0.5 if operator.outputs[0].type.dtype == "float64" else 1.0
    full = 1.0
    if operator.kind == "conv":  # vectors run over output features
        features = operator.output.type.shape[operator.ints("out_spec")[1]]
        lanes = context.host.vector_lanes
        full = max(features, 1) / (lanes * ceil(max(features, 1) / lanes))
    seconds = flops / (context.rates.heavy * wide * full * (context.cores if context.rates.spreads else 1))
    convolution = seconds if operator.kind == "conv" else 0.0
    return Price(seconds, seconds, convolution, convolution)


# ---- work of a statement -----------------------------------------------------------------------------------


def light_flops(operator: UOperator, host: HostSpec) -> float:
    if operator.kind in PRODUCTS:
        return 0.0 if heavy_flops(operator, host) else work(operator).flops / host.thin_speed
    if operator.kind in PARTIAL:
        return 0.0
    values = (*operator.inputs, *operator.outputs) if operator.kind not in UPDATES else operator.inputs[1:]
    return max(v.type.size for v in values) * element_flops(operator)


def heavy_flops(operator: UOperator, host: HostSpec) -> float:
    """Flops of a convolution, or of a product with enough rows that arithmetic limits it."""
    if operator.kind == "conv":
        return work(operator).flops
    if operator.kind != "dot":
        return 0.0
    return work(operator).flops if min(rows(operator)) >= host.few_rows else 0.0
