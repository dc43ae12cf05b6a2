"""Policy: selects the candidates worth trying, and decides how far a program grows around its loops.

The search space is small (`Candidate`). Planning a candidate takes far less time than building it. The
planned program gives its price, since it shows shared work, barriers and cached data. So the model only has
to select the few that are worth building and timing. The measurement decides (`lowering.choice.decisions`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from jax_cocktail.codegen.machines import HOST
from jax_cocktail.device.host import SERVER
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.spec import PORTABLE_CLUSTER
from jax_cocktail.device.tuning import BLOCK, MODEL
from jax_cocktail.utask.candidate import Candidate, way
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Statement,
    UProgram,
    by_threads,
    is_a,
    is_parallel,
    regions_of,
    walk,
)
from jax_cocktail.utask.types import Source

MOST_UNITS = 256  # of the runtime: CK_MOST_UNITS of `cpu_src/cocktail_units.h`


def candidates(programs: Sequence[UProgram], units: int, machine: Machine = HOST) -> tuple[Candidate, ...]:
    """The candidates that may be worth planning for the programs of one call, the simplest first.

    Args:
      programs: the translated programs.
      units: the most units.
      machine: the machine that runs them. A GPU has enough units to give each recurrence of a wavefront its
        own; placement decides how many units an axis takes (`DeviceLimits.communicating`).
    """
    statements = [s for program in programs for s in walk(program.entry)]
    few = len(statements) <= MODEL.many_statements
    divisible = few and any(isinstance(s, LoopUTask) for s in statements)
    most = min(units, MOST_UNITS)
    ways = (True, False) if divisible else (True,)
    found = [way(count, distribute=distribute) for count in (1, most) for distribute in ways]
    if machine.is_gpu and divisible:
        found.append(way(most, pipeline=True))
    may_branch = few and any(is_a(s, "select") for s in statements)
    if machine.is_gpu and (divisible or may_branch):
        elements, local, warps = _elements(programs)
        if elements:
            found.append(way(most, elements=False))
        if local:
            found.append(way(most, local=False))
        if warps and machine.spec is not None and most > 1:
            found.append(way(most, threads=machine.spec.warp))
    if machine.spec is not None and machine.spec.cluster_units > 1:
        sizes = sorted({min(count, most) for count in (PORTABLE_CLUSTER, machine.spec.cluster_units)})
        found += [way(count, cluster=True) for count in sizes]
    return tuple(dict.fromkeys(found))


def _elements(programs: Sequence[UProgram]) -> tuple[bool, bool, bool]:
    """True if a thread or a block can run a batch element of a program; true if its thread has arrays in its
    own memory; true if a warp can run it."""
    # Not in a process that finds its programs cached.
    from jax_cocktail.schedule.simplify.simplify import simplify
    from jax_cocktail.schedule.vmap.threads import threads

    plain = [simplify(program) for program in programs]
    by_warps = (s for each in plain for s in walk(threads(each, warps=True).entry))
    warps = any(is_parallel(s) and not by_threads(s) for s in by_warps)
    taken = [threads(each) for each in plain]
    inside = (s for each in taken for loop in walk(each.entry) if by_threads(loop) for s in walk(loop.body))
    local = any(is_a(s, "empty") for s in inside)
    return any(a is not b for a, b in zip(taken, plain, strict=True)), local, warps


def worth_planning(candidate: Candidate, prices: Mapping[Candidate, float]) -> bool:
    """True if a candidate should be planned, given the prices of those already planned: planning for many
    units takes longest, and prices for one unit show the effect of fission and too small a cluster."""
    if candidate.cluster and Candidate(1) in prices:
        return prices[Candidate(1)] <= BLOCK.l2_share * candidate.units * min(prices.values())
    divided, whole = (prices.get(way(1, distribute=distribute)) for distribute in (True, False))
    if candidate.units == 1 or candidate.runs("distribute") or divided is None or whole is None:
        return True
    return divided < whole <= MODEL.unsure * divided or whole < divided


def block_sizes(machine: Machine) -> tuple[int, ...]:
    """Numbers of threads that a block may have; none on a host. Blocks of one warp are candidates of their
    own."""
    spec = machine.spec
    if spec is None:
        return ()
    return tuple(n for n in BLOCK.sizes if n % spec.warp == 0 and spec.warp < n <= spec.threads_per_block)


def better_size(seconds: Callable[[int], float], machine: Machine) -> int:
    """The number of threads per block for which a program is cheapest; the machine's own if no other one is
    cheaper by a sure margin (the adaptive thread mapping of AStitch, ASPLOS'22, section 3.3).

    `seconds`: the price by the number of threads. Prices have one valley, so the search goes downhill.
    """
    usual, sizes = machine.target.threads, block_sizes(machine)
    known = {usual: seconds(usual)}
    best = usual
    for direction in (reversed([n for n in sizes if n < usual]), [n for n in sizes if n > usual]):
        for size in direction:
            known[size] = seconds(size)
            if known[size] >= known[best]:
                break
            best = size
    return best if known[best] * BLOCK.size_gain <= known[usual] else usual


def shortlist(seconds: Sequence[float], thorough: bool) -> tuple[int, ...]:
    """The candidates to time, best first, as positions in `seconds`, their prices.

    All of them if `thorough`; else the best few that the model cannot rank.
    """
    ranked = sorted(range(len(seconds)), key=lambda i: seconds[i])  # stable: the simplest wins a tie
    if thorough or not ranked:
        return tuple(ranked)
    limit = MODEL.unsure * seconds[ranked[0]]
    return tuple(i for i in ranked[: MODEL.most_timed] if seconds[i] <= limit)


# ---- growth ------------------------------------------------------------------------------------------------

Profiler = Callable[[Statement], tuple[float, float]]  # seconds of one execution: ours, stock


@dataclass(frozen=True, slots=True)
class Growth:
    """The decision about a loop or branch. `taken`: it becomes part of a program of ours.

    Seconds of one execution: `ours`: all in one program of ours; `stock`: all under stock XLA; `cut`: stock
    XLA with programs of ours for the parts taken inside. `inner`: the loops and branches inside.
    """

    kind: str
    source: Source
    taken: bool
    ours: float
    stock: float
    cut: float
    inner: tuple[Growth, ...] = ()

    def __str__(self) -> str:
        verb = "grows around it" if self.taken else "stops at it"
        ours, stock = self.ours * 1e6, self.stock * 1e6
        times = f"the model, before transforms: {ours:.1f} us, {stock:.1f} us under stock XLA"
        place = f" at {self.source}" if self.source.file else ""
        return f"{self.kind}{place}: the program {verb} ({times})"


def schedule_control_flow(
    statements: Sequence[Statement], profile: Profiler, launch: float = SERVER.launch_seconds
) -> tuple[Growth, ...]:
    """Grows programs around loops and branches: Algorithm 1 of COCKTAILER (OSDI'23, section 4.2).

    The traversal is bottom-up. Innermost loops and branches are scheduled first. An enclosing one joins the
    same program if the profiler says that this is no slower than stock XLA, which would pay for the launches
    of the inner programs in each execution of a body. The paper's profiler runs the code; here it may also be
    the model (`model_profiler`), and whole calls are timed afterwards.

    `launch`: seconds of a call of ours in stock XLA's program.
    """
    return tuple(
        _grow(statement, profile, launch)
        for statement in statements
        if isinstance(statement, LoopUTask | BranchUTask)
    )


def _grow(statement: LoopUTask | BranchUTask, profile: Profiler, launch: float) -> Growth:
    inner = tuple(g for r in regions_of(statement) for g in schedule_control_flow(r.body, profile, launch))
    ours, stock = profile(statement)
    saved = sum(g.stock - g.ours - launch for g in inner if g.taken)
    times = statement.trip_count or 1 if isinstance(statement, LoopUTask) else 1
    cut = max(stock - max(saved, 0.0) * times, 0.0)
    kind = "loop" if isinstance(statement, LoopUTask) else "branch"
    return Growth(kind, statement.source, ours <= cut, ours, stock, cut, inner)


def model_profiler(cores: int, units: int, machine: Machine = HOST) -> Profiler:
    """A profiler that returns the model's price."""
    from jax_cocktail.cost.price import profile  # candidates are listed without prices

    return partial(profile, cores=cores, units=units, machine=machine)


def worth_taking(
    program: UProgram, profile: Profiler, launch: float = SERVER.launch_seconds
) -> tuple[bool, tuple[Growth, ...]]:
    """True if a region of one call is worth a program of ours, and the growth by Algorithm 1.

    A region is taken whole or not at all. If Algorithm 1 would stop inside, the whole must beat nothing
    taken.
    """
    grown = schedule_control_flow(program.entry.body, profile, launch)
    ours = sum(g.ours for g in grown) + launch
    return ours <= sum(g.stock for g in grown) or not grown, grown
