"""Plans and prices the candidates for one marked call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from jax_cocktail.codegen.machines import with_threads
from jax_cocktail.cost.kernel import outlines_loops
from jax_cocktail.cost.price import (
    Comparison,
    Price,
    dispatch_seconds,
    launch_seconds,
    our_price,
    stock_price,
)
from jax_cocktail.device.processor import cores
from jax_cocktail.device.tuning import MODEL
from jax_cocktail.errors import ChoiceError, UnsupportedError
from jax_cocktail.lowering.choice.decisions import Plan
from jax_cocktail.lowering.choice.plan_cache import Survey
from jax_cocktail.lowering.choice.variants import Translated, emitted, ways
from jax_cocktail.lowering.state import go_on
from jax_cocktail.passes import OF_ELEMENTS, OPTIONAL
from jax_cocktail.schedule.policy import (
    Growth,
    better_size,
    block_sizes,
    model_profiler,
    worth_planning,
    worth_taking,
)
from jax_cocktail.schedule.unit_count import asks_units, fix_unit_count
from jax_cocktail.utask.candidate import OFF, ON, SINGLE, Candidate
from jax_cocktail.utask.ir import UProgram

if TYPE_CHECKING:
    from jax_cocktail.compiler import Emitted


def survey(
    prepared: Translated, units: int, thorough: bool = False, available: int = 0, insists: bool = False
) -> Survey:
    """Plans and prices all candidates if `thorough`, else those worth planning.

    Of candidates with the same source text that ask for as many units, only the simplest counts. `available`:
    the number of cores that stock XLA may use; 0: those of this process. `insists`: ours runs, gain or not.

    Raises:
      UnsupportedError: no candidate can be emitted.
    """
    machine, available = prepared.machine, available or cores()
    programs = [fix_unit_count(program, 1) for program in prepared.programs]
    stock = [stock_price(program, available, machine) for program in programs]
    total = sum(stock, Price())
    found: dict[_Text, tuple[Plan, list[Price]]] = {}
    prices: dict[Candidate, float] = {}
    refused: UnsupportedError | None = None
    alone = stock
    for candidate in ways(prepared, units):
        go_on()
        if thorough or worth_planning(candidate, prices):
            try:
                planned = _planned(prepared, candidate)
            except UnsupportedError as error:  # another candidate may not need the unsupported construct
                refused = error
                continue
            go_on()
            ours = _prices(prepared, candidate, planned, alone)
            if candidate.units == SINGLE.units and alone is stock:
                alone = ours
            prices[candidate] = sum(price.seconds for price in ours)
            found.setdefault(_text(planned), (Plan(candidate), ours))
            shared = sum(ours, Price()) * (candidate.units / units)  # if units shared all of it
            if not (thorough or insists) and Comparison(shared, total).hopeless():
                break
    for candidate in _resized(prepared, prices, alone, thorough):
        with suppress(UnsupportedError):
            planned = _planned(prepared, candidate)
            found.setdefault(_text(planned), (Plan(candidate), _prices(prepared, candidate, planned, alone)))
    if refused is not None and not found:
        raise refused
    _check_pinned(prepared)
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
    dispatched = tuple(dispatch_seconds(program, available, machine, price) for program, price in pairs)
    return Survey(tuple(plans), seconds, Comparison(cheapest, total), trusted, dispatched)


_Text = tuple[tuple[str, int], ...]  # of programs, each with the units that it asks for


def _planned(prepared: Translated, candidate: Candidate) -> list[Emitted]:
    return [emitted(prepared, candidate, n) for n in range(len(prepared.programs))]


def _text(planned: Sequence[Emitted]) -> _Text:
    return tuple((each.source, each.mesh.units) for each in planned)


def _check_pinned(prepared: Translated) -> None:
    """Raises ChoiceError for what is named and is no choice of the programs that were planned."""
    choices: dict[str, tuple[str, ...]] = {}
    for each in prepared.emitted.values():
        for choice in each.choices:
            choices[choice.name] = tuple(dict.fromkeys((*choices.get(choice.name, ()), *choice.alternatives)))
    for name, taken in prepared.pinned:
        known = choices.get(name, (ON, OFF) if name in {*OPTIONAL, *OF_ELEMENTS} else ())
        if taken not in known and not (name == "threads" and taken.isdecimal()):
            listed = (f"{each} ({', '.join(others)})" for each, others in sorted(choices.items()))
            what = f"the choice {name} cannot be {taken}" if known else f"there is no choice {name}"
            raise ChoiceError(what, "; ".join(listed))


def _prices(
    prepared: Translated,
    candidate: Candidate,
    planned: Sequence[Emitted],
    alone: Sequence[Price],
    threads: int = 0,
) -> list[Price]:
    """Prices of planned programs. `alone`: those for one unit; `threads`: of a block, 0 for the plan's."""
    machines = (with_threads(e.machine, threads) for e in planned)
    ours = (our_price(e.program, e.mesh.units, m, e.plan) for e, m in zip(planned, machines, strict=True))
    triples = zip(prepared.programs, ours, alone, strict=True)
    return [_presumed(program, candidate, price, one) for program, price, one in triples]


def _resized(
    prepared: Translated, prices: Mapping[Candidate, float], alone: Sequence[Price], thorough: bool
) -> Iterator[Candidate]:
    """The cheapest candidate with other numbers of threads per block: the one that promises to be cheaper,
    all of them if `thorough`. Its plan is priced for all sizes, since planning takes longer. Of programs with
    outlined functions the model knows too little: where their matrices are depends on registers."""
    machine, usual = prepared.machine, [candidate for candidate in prices if not candidate.threads]
    if not machine.is_gpu or not usual:
        return
    best = min(usual, key=lambda candidate: prices[candidate])
    planned = _planned(prepared, best)

    def seconds(threads: int) -> float:
        return sum(price.seconds for price in _prices(prepared, best, planned, alone, threads))

    sizes: tuple[int, ...] = block_sizes(machine) if thorough else ()
    if not thorough and not any(outlines_loops(e.program) for e in planned):
        sizes = (better_size(seconds, machine),)
    for size in sizes:
        if size != machine.target.threads:
            yield best.but(threads=size)


def _doubtful(prepared: Translated, ours: Sequence[Price], stock: Sequence[Price]) -> set[int]:
    """The numbers of memory-bound regions of which the model cannot tell whether they gain anything."""
    pairs = enumerate(zip(ours, stock, strict=True))
    return {
        number
        for number, (mine, theirs) in pairs
        if prepared.memory_bound[number] and theirs.seconds < MODEL.stitched_gain * mine.seconds
    }


def _presumed(program: UProgram, candidate: Candidate, price: Price, alone: Price) -> Price:
    """The price of a program for several units, given its price for one unit (`alone`).

    If the program has a variant for several units whose amount of work is known only at run time, the units
    are assumed to share the work of one.
    """
    if candidate.units == 1:
        return price
    shared = alone * (1 / candidate.units)
    return shared if asks_units(program) and shared.seconds < price.seconds else price


def worth(prepared: Translated, number: int, units: int) -> tuple[bool, tuple[Growth, ...]]:
    """True if a region is worth compiling, and its growth by Algorithm 1 (COCKTAILER, section 4)."""
    profile = model_profiler(cores(), units, prepared.machine)
    return worth_taking(prepared.programs[number], profile, launch_seconds(prepared.machine))
