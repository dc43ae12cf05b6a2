"""Plans and prices the candidates for one marked call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from jax_cocktail.codegen.machines import with_threads
from jax_cocktail.compiler import Emitted
from jax_cocktail.config import CHECKED, FRESH
from jax_cocktail.cost.kernel import outlines_loops
from jax_cocktail.cost.price import (
    Comparison,
    Price,
    dispatch_seconds,
    launch_seconds,
    our_price,
    stock_price,
)
from jax_cocktail.device.tuning import MODEL
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.lowering import plan_cache
from jax_cocktail.lowering.checked import check_survey
from jax_cocktail.lowering.decisions import Plan, cores, machine_facts, planned_for, versions
from jax_cocktail.lowering.plan_cache import Survey
from jax_cocktail.lowering.state import Mark, go_on
from jax_cocktail.lowering.variants import Prepared, emitted, whole_identity
from jax_cocktail.portable import name_of
from jax_cocktail.schedule.policy import (
    Growth,
    better_size,
    block_sizes,
    candidates,
    model_profiler,
    worth_planning,
    worth_taking,
)
from jax_cocktail.schedule.unit_count import asks_units, know_units
from jax_cocktail.utask.candidate import SINGLE, Candidate
from jax_cocktail.utask.ir import UProgram


def known_survey(prepared: Prepared, units: int, mark: Mark, thorough: bool = False) -> Survey:
    """The survey from the plan cache, else a new one. Raises UnsupportedError as `survey` does."""
    if mark.options.plans == FRESH:
        return survey(prepared, units, thorough)
    what = [*map(whole_identity, prepared.programs), *versions(), str(prepared.machine.spec), str(thorough)]
    what.append(str([region.memory_bound for region in prepared.captured.regions]))
    key = name_of(what, [*machine_facts(), str(units)])
    found = plan_cache.survey(key, lambda: survey(prepared, units, thorough))
    fits = len(found.dispatched) == len(prepared.programs)
    if fits and all(possible(prepared, plan, units) for plan in found.plans):
        if mark.options.plans == CHECKED:
            check_survey(found, survey(prepared, units, thorough), mark)
        return found
    return survey(prepared, units, thorough)  # somebody has changed the file


def survey(prepared: Prepared, units: int, thorough: bool = False) -> Survey:
    """Plans and prices all candidates if `thorough`, else those worth planning.

    Of candidates with the same source text that ask for as many units, only the simplest counts.

    Raises:
      UnsupportedError: no candidate can be emitted.
    """
    machine = prepared.machine
    programs = [know_units(program, 1) for program in prepared.programs]
    stock = [stock_price(program, cores(), machine) for program in programs]
    total = sum(stock, Price())
    found: dict[_Text, tuple[Plan, list[Price]]] = {}
    prices: dict[Candidate, float] = {}
    refused: UnsupportedError | None = None
    alone = stock
    for candidate in candidates(prepared.programs, units, machine):
        go_on()
        if thorough or worth_planning(candidate, prices):
            try:
                planned = _planned(prepared, candidate)
            except UnsupportedError as error:  # another candidate may not need the unsupported construct
                refused = error
                continue
            ours = _prices(prepared, candidate, planned, alone)
            if candidate == SINGLE:
                alone = ours
            prices[candidate] = sum(price.seconds for price in ours)
            found.setdefault(_text(planned), (Plan(candidate), ours))
            shared = sum(ours, Price()) * (candidate.units / units)  # if units shared all of it
            if not thorough and Comparison(shared, total).hopeless():
                break
    for candidate in _resized(prepared, prices, alone, thorough):
        with suppress(UnsupportedError):
            planned = _planned(prepared, candidate)
            found.setdefault(_text(planned), (Plan(candidate), _prices(prepared, candidate, planned, alone)))
    if refused is not None and not found:
        raise refused
    plans = {plan: sum(ours, Price()) for plan, ours in found.values()}
    best, ours = min(found.values(), key=lambda item: plans[item[0]].seconds)
    doubtful = _doubtful(prepared, ours, stock)
    dear = {number for number in range(len(ours)) if not worth(prepared, number, units)[0]}
    for skip in (doubtful, doubtful | dear):
        if 0 < len(skip) < len(ours):
            mixed = (stock[n] if n in skip else price for n, price in enumerate(ours))
            plans[Plan(best.candidate, tuple(sorted(skip)))] = sum(mixed, Price())
    cheapest = min(plans.values(), key=lambda price: price.seconds)
    sure = [plan for plan in plans if doubtful <= set(plan.skip)]
    trusted = min(sure, key=lambda plan: plans[plan].seconds, default=None)
    seconds = tuple(price.seconds for price in plans.values())
    pairs = zip(programs, stock, strict=True)
    dispatched = tuple(dispatch_seconds(program, cores(), machine, price) for program, price in pairs)
    return Survey(tuple(plans), seconds, Comparison(cheapest, total), trusted, dispatched)


_Text = tuple[tuple[str, int], ...]  # of programs, each with the units that it asks for


def _planned(prepared: Prepared, candidate: Candidate) -> list[Emitted]:
    return [emitted(prepared, candidate, n) for n in range(len(prepared.programs))]


def _text(planned: Sequence[Emitted]) -> _Text:
    return tuple((each.source, each.mesh.units) for each in planned)


def _prices(
    prepared: Prepared,
    candidate: Candidate,
    planned: Sequence[Emitted],
    alone: Sequence[Price],
    threads: int = 0,
) -> list[Price]:
    """Of the planned programs. `alone`: their prices for one unit; `threads`: of a block; 0: those of the
    plan."""
    machines = (with_threads(e.machine, threads) for e in planned)
    ours = (our_price(e.program, e.mesh.units, m, e.plan) for e, m in zip(planned, machines, strict=True))
    triples = zip(prepared.programs, ours, alone, strict=True)
    return [_presumed(program, candidate, price, one) for program, price, one in triples]


def _resized(
    prepared: Prepared, prices: Mapping[Candidate, float], alone: Sequence[Price], thorough: bool
) -> Iterator[Candidate]:
    """The cheapest candidate with other numbers of threads per block: the one that promises to be cheaper,
    all of them if `thorough`. Its plan is priced for all sizes, since planning takes longer. Of programs with
    outlined functions the model knows too little: where their matrices are depends on registers."""
    machine = prepared.machine
    if not machine.is_gpu or not prices:
        return
    best = min(prices, key=lambda candidate: prices[candidate])
    planned = _planned(prepared, best)

    def seconds(threads: int) -> float:
        return sum(price.seconds for price in _prices(prepared, best, planned, alone, threads))

    sizes: tuple[int, ...] = block_sizes(machine) if thorough else ()
    if not thorough and not any(outlines_loops(e.program) for e in planned):
        sizes = (better_size(seconds, machine),)
    for size in sizes:
        if size != machine.target.threads:
            yield replace(best, threads=size)


def _doubtful(prepared: Prepared, ours: Sequence[Price], stock: Sequence[Price]) -> set[int]:
    """The numbers of memory-bound regions of which the model cannot tell whether they gain anything."""
    regions = prepared.captured.regions
    pairs = enumerate(zip(ours, stock, strict=True))
    return {
        number
        for number, (mine, theirs) in pairs
        if regions[number].memory_bound and theirs.seconds < MODEL.stitched_gain * mine.seconds
    }


def possible(prepared: Prepared, plan: Plan, units: int) -> bool:
    """True if `survey` could have found the plan: a stored one may come from a file that was changed."""
    numbers = planned_for(units)
    known = {each for n in numbers for each in candidates(prepared.programs, n, prepared.machine)}
    usual, size = replace(plan.candidate, threads=0), plan.candidate.threads
    sized = not size or size in block_sizes(prepared.machine)
    return sized and usual in known and set(plan.skip) < set(range(len(prepared.programs)))


def _presumed(program: UProgram, candidate: Candidate, price: Price, alone: Price) -> Price:
    """The price of a program for several units, given its price for one unit (`alone`).

    If the program has a variant for several units whose amount of work is known only at run time, the units
    are assumed to share the work of one.
    """
    if candidate.units == 1:
        return price
    shared = alone * (1 / candidate.units)
    return shared if asks_units(program) and shared.seconds < price.seconds else price


def worth(prepared: Prepared, number: int, units: int) -> tuple[bool, tuple[Growth, ...]]:
    """True if a region is worth compiling, and its growth by Algorithm 1 (COCKTAILER, section 4)."""
    profile = model_profiler(cores(), units, prepared.machine)
    return worth_taking(prepared.programs[number], profile, launch_seconds(prepared.machine))
