"""The speed of light on a CPU: the least time that a program takes, whatever the implementation is like.

All bytes that its statements read and write once, at the rate of the memory that holds all of them, or all
flops at the rate of large products, whichever takes longer, plus launches: of the call, of barriers, or of
stock XLA's kernels. (The first level of the cost models of FusionStitching, Zheng et al. 2020.)
"""

from __future__ import annotations

from dataclasses import dataclass

from jax_cocktail.cost.footprint import NO_TIME, bytes_of, bytes_of_group, touched_bytes
from jax_cocktail.cost.vector import Vector
from jax_cocktail.cost.work import trips, work
from jax_cocktail.device.host import HostSpec, Rates
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
)


@dataclass(frozen=True, slots=True)
class _Sum(Vector):
    bytes: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0  # of launches


def our_limit(program: UProgram, units: int, host: HostSpec) -> float:
    """Seconds of one call of a planned program on that many units."""
    return host.launch_seconds + _seconds(program.entry, host.ours, units, host)


def stock_limit(program: UProgram, cores: int, host: HostSpec) -> float:
    """Seconds of one call of a translated program under stock XLA on that many cores."""
    return _seconds(program.entry, host.stock, cores, host)


def _seconds(entry: Region, rates: Rates, units: int, host: HostSpec) -> float:
    found = _region(entry, rates, host)
    rate = host.bandwidth(touched_bytes(entry.body, 1), units)
    peak = max(host.stock.heavy, host.ours.heavy)
    return max(found.bytes / (units * rate), found.flops / (units * peak)) + found.seconds


def _region(region: Region, rates: Rates, host: HostSpec) -> _Sum:
    return sum((_statement(s, rates, host) for s in region.body), _Sum())


def _statement(statement: Statement, rates: Rates, host: HostSpec) -> _Sum:
    if isinstance(statement, LoopUTask):
        return sum((_region(r, rates, host) for r in statement.regions), _Sum()) * trips(statement)
    if isinstance(statement, BranchUTask):
        sides = [_region(r, rates, host) for r in statement.branches]
        return sum(sides, _Sum()) * (1 / len(sides))
    if isinstance(statement, StitchedUTask):
        return _Sum(sum(bytes_of_group(statement).values()), work(statement).flops)
    return _operator(statement, rates, host)


def _operator(operator: UOperator, rates: Rates, host: HostSpec) -> _Sum:
    if operator.kind == "wait":
        return _Sum(seconds=host.barrier_seconds)
    if operator.kind in NO_TIME:
        return _Sum()
    launch = 0.0 if rates is host.ours else rates.dispatch
    return _Sum(sum(bytes_of(operator).values()), work(operator).flops, launch)
