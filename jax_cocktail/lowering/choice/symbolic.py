"""Chooses for a call with symbolic sizes, which is exported for any.

Samples of it are compiled: numbers stand for the symbolic sizes (`edge.symbolic`). What samples have
otherwise are numbers that vary, and a program that is made general in one way for all samples serves all
calls. Sizes are polynomials, and there is a sample more than their highest degree: what is equal in all
samples is equal. Many, few and one have programs of their own, as `schedule.general` divides them, and a call
takes the one that suits. If none does, stock XLA runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import TYPE_CHECKING

from jax_cocktail.build.executable import Executable
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.lowering.choice.choose import Choice, decided
from jax_cocktail.lowering.choice.request import Request
from jax_cocktail.lowering.choice.variants import build, emit, places_in
from jax_cocktail.lowering.edge import custom_call, notices
from jax_cocktail.lowering.edge.adapter import Calls, primitive_name
from jax_cocktail.lowering.edge.capture import untaken
from jax_cocktail.lowering.edge.flatten import Flat, flatten
from jax_cocktail.lowering.edge.meshes import parts_in
from jax_cocktail.lowering.edge.symbolic import (
    admits,
    degree_of,
    names_in,
    obstacle,
    sample,
    sizes_in,
)
from jax_cocktail.lowering.edge.symbolic_call import AnySize, rewrite_any_size
from jax_cocktail.lowering.state import STATE
from jax_cocktail.report import Report
from jax_cocktail.schedule.general import forms_in, generalise
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.forms import Forms, Place
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.numbers import family, numbers
from jax_cocktail.utask.printer import identity
from jax_cocktail.utask.sizes import Decision, Parameter, size_of

if TYPE_CHECKING:
    from jax_cocktail.compiler import Emitted

# Numbers of the samples, many and few. One is itself.
_SAMPLES = ((119, 142, 187, 208, 221, 247), (21, 26, 27, 22, 25, 18), (1,) * 6)
# For what suits the others may not suit these: even ones, more, fewer.
_MORE = (
    *((202, 235, 274, 303, 346, 381), (551, 582, 611, 649, 689, 697), (46, 51, 58, 62, 77, 82)),
    *((22, 25, 18, 27, 21, 26), (5, 6, 7, 10, 13, 14)),
)
_MOST_NAMES = 2  # symbolic sizes that are many, few or one independently of each other
_NONE = "each of its sizes needs a program of its own"
_FEW = "of its symbolic sizes, only a few have programs of ours"
_ADVICE = "export each size that you need"


def choose_symbolic(request: Request) -> Choice:
    """Our programs for a call with symbolic sizes, or the call as it came."""
    try:
        return _chosen(request)
    except UnsupportedError as error:
        reason = f"the module has symbolic sizes, and {error.reason}; {_ADVICE}"
        report = notices.refuse(request.closed, request.mark, reason, quiet=request.force == "stock")
        return Choice(request.closed, STATE.stock, report)


def _chosen(request: Request) -> Choice:
    if request.platform != custom_call.PLATFORM:
        raise UnsupportedError("our programs for GPUs have fixed ones")
    if request.place.devices > 1 or any(True for _ in parts_in(request.closed)):
        raise UnsupportedError("our programs for several devices have fixed ones")
    flat = flatten(request.closed, Calls(request.platform))
    samples = [*_samples(request, flat)]
    if not samples:
        raise UnsupportedError("too few numbers stand for them")
    first, mark = samples[0].requests[0], request.mark
    captured = first.prepared.captured
    report = Report(mark.function, left=captured.left, beside=captured.beside, choice="stock")
    if not captured.regions:
        notices.complain(captured.left, mark)
        return Choice(request.closed, STATE.stock, replace(report, why="nothing was captured"))
    decision = decided(first)
    if decision.choice == "stock":
        return Choice(request.closed, True, replace(report, why=decision.why))
    custom_call.register(request.platform)
    taken = first.prepared.taken(decision.plan)
    programs = {n: _programs(samples, decision.plan.candidate, n) for n in taken}
    if not any(programs.values()):
        raise UnsupportedError(_NONE)
    usual = {n for n in taken if any(_suits(each, first.prepared.programs[n]) for each in programs[n])}
    seldom = (untaken([captured.regions[n]], _FEW if programs[n] else _NONE) for n in taken if n not in usual)
    without = (*chain.from_iterable(seldom),)
    notices.complain(captured.left, mark)
    notices.complain(without, mark, _ADVICE)
    report = replace(report, left=(*captured.left, *without), choice=decision.choice, why=decision.why)
    ours = {n: found for n, found in programs.items() if found}
    jaxpr = rewrite_any_size(flat, captured, ours, mark.function)
    STATE.ours += 1
    return Choice(jaxpr, STATE.stock, report)


# ---- samples -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Samples:
    """Samples of a call, and the numbers in each of them that stand for its symbolic sizes."""

    requests: tuple[Request, ...]
    numbers: tuple[tuple[int, ...], ...]

    def programs(self, region: int) -> list[UProgram]:
        return [each.prepared.programs[region] for each in self.requests]


def _samples(request: Request, flat: Flat) -> Iterator[_Samples]:
    """Samples for each combination of many, few and one, many first."""
    whole = flat.close(flat.equations)
    sizes, needed = sizes_in(whole), degree_of(whole) + 1
    if reason := obstacle(sizes):
        raise UnsupportedError(reason)
    names = names_in(sizes)
    pools = (*_SAMPLES, *_MORE) if len(names) == 1 else _SAMPLES
    together = [(pool,) * len(names) for pool in pools]
    for combined in product(pools, repeat=len(names)) if len(names) <= _MOST_NAMES else together:
        wanted = 1 if {*chain.from_iterable(combined)} == {1} else needed
        found: dict[tuple[int, ...], Request] = {}
        for k in range(len(_SAMPLES[0])):  # other numbers for each size, and in each sample
            chosen = tuple(pool[(k + place) % len(pool)] for place, pool in enumerate(combined))
            given = dict(zip(names, chosen, strict=True))
            if len(found) < wanted and chosen not in found and admits(sizes, given):
                made = replace(request, closed=sample(whole, given))
                found.update({chosen: made} if _is_like(made, flat) else {})
        if len(found) == wanted:
            yield _Samples(tuple(found.values()), tuple(found))


def _is_like(request: Request, flat: Flat) -> bool:
    """True if a sample has the equations of the symbolic jaxpr."""
    mine, others = request.prepared.captured.flat.equations, flat.equations
    return [*map(primitive_name, mine)] == [*map(primitive_name, others)]


# ---- programs ----------------------------------------------------------------------------------------------


def _programs(samples: Sequence[_Samples], candidate: Candidate, region: int) -> list[AnySize]:
    """Built programs for a region that suit all samples, as far as there are any."""
    found: list[AnySize] = []
    for each in samples:
        if not any(_suits(known, each.programs(region)[0]) for known in found):
            with suppress(UnsupportedError):
                found.append(_program(each, samples[0], candidate, region))
    return found


def _suits(found: AnySize, program: UProgram) -> bool:
    """True if a program serves a sample."""
    shapes = [value.type.shape for value in program.entry.parameters]
    given = {parameter: int(shapes[k][d]) for parameter, (k, d) in found.places.items()}
    return all(guard.holds(given) for guard in found.guards)


def _program(samples: _Samples, usual: _Samples, candidate: Candidate, region: int) -> AnySize:
    """A built program for a region of samples. `usual`: those of many. Raises UnsupportedError."""
    programs, request = samples.programs(region), samples.requests[0]
    if any((found := each.prepared.captured.regions[region]).exits or found.log for each in samples.requests):
        raise UnsupportedError("stock XLA may have to run it again")
    varying = _varying(programs)
    made = emit(programs[0], request.machine, candidate=candidate, varying=varying)
    general, numbers_of = _general(made, programs, varying)
    places = {each: _place(programs, given) for each, given in numbers_of.items()}
    guards = [each for parameter in places for each in _bounds(parameter)]
    for name, given in enumerate(zip(*samples.numbers, strict=True)):
        if {*given} == {1}:
            one = Parameter(1, f"size {name}", least=1)
            known = tuple(each[name] for each in usual.numbers)
            places[one] = _place(usual.programs(region), known)
            guards.append(Decision(size_of(one), 1, "==", True))
    guards += made.decisions
    executable = _built(made, general, guards, places, request.mark.options.cache_limit_bytes)
    loops = places_in(request.prepared, region, executable, request.mark)
    return AnySize(executable, tuple(guards), places, loops)


def _varying(programs: Sequence[UProgram]) -> frozenset[int]:
    """The positions of the numbers that samples have otherwise. Raises UnsupportedError if they differ in
    more."""
    if len({*map(family, programs)}) > 1:
        raise UnsupportedError(_NONE)
    columns = zip(*map(numbers, programs), strict=True)
    return frozenset(k for k, column in enumerate(columns) if len({*column}) > 1)


def _general(
    made: Emitted, programs: Sequence[UProgram], varying: frozenset[int]
) -> tuple[UProgram, dict[Parameter, tuple[int, ...]]]:
    """The translated program that was emitted, and the numbers that each of its parameters has in samples.
    Raises UnsupportedError if samples have other programs."""
    if not varying:
        return programs[0], {}
    found = [generalise(each, varying, 2 * made.level) for each in programs]
    general = [each for each in found if each is not None and each.given.keys() == made.given.keys()]
    texts = {(identity(each.program, made.candidate), forms_in(each.program)) for each in general}
    if not made.given or len(general) < len(programs) or len(texts) > 1:
        raise UnsupportedError(_NONE)
    return general[0].program, {k: tuple(each.given[k] for each in general) for k in made.given}


def _place(programs: Sequence[UProgram], numbers: tuple[int, ...]) -> Place:
    """An operand's axis that has these numbers in samples. Raises UnsupportedError if there is none."""
    for operand, values in enumerate(zip(*(each.entry.parameters for each in programs), strict=True)):
        axes = [*zip(*(value.type.shape for value in values), strict=True)]
        if numbers in axes:
            return operand, axes.index(numbers)
    raise UnsupportedError("no operand has a size by itself")


def _bounds(parameter: Parameter) -> Iterator[Decision]:
    yield Decision(size_of(parameter), parameter.least, ">=", True)
    if parameter.most:
        yield Decision(size_of(parameter), parameter.most, "<=", True)


def _built(
    emitted: Emitted,
    general: UProgram,
    guards: Sequence[Decision],
    places: Mapping[Parameter, Place],
    limit_bytes: int,
) -> Executable:
    forms, plan, entry = Forms(places), emitted.plan, general.entry
    for guard in guards:
        forms.guard(guard)
    executable = replace(
        build(emitted, limit_bytes).executable,
        workspace_bytes=forms.number(plan.workspace_bytes),
        own_bytes=forms.number(plan.own_bytes),
        sizes=tuple(map(forms.parameter, emitted.parameters)),
        shapes=tuple(tuple(map(forms.number, v.type.shape)) for v in (*entry.parameters, *entry.results)),
        forms=forms.encoded,
    )
    custom_call.load(executable)
    return executable
