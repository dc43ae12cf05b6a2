"""Chooses for a call with symbolic sizes, which is exported for any.

Samples of it are compiled: numbers stand for the symbolic sizes (`edge.symbolic`). What two samples have
otherwise are numbers that vary, so a program that serves any of them serves all calls (`families`). Many, few
and one have programs of their own, as `schedule.general` divides them, and a call takes the one that suits.
If none does, stock XLA runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.lowering.choice.choose import Choice, decided
from jax_cocktail.lowering.choice.request import Request
from jax_cocktail.lowering.choice.variants import build, emit, places_in
from jax_cocktail.lowering.edge import custom_call, notices
from jax_cocktail.lowering.edge.adapter import Calls, primitive_name
from jax_cocktail.lowering.edge.capture import untaken
from jax_cocktail.lowering.edge.flatten import Flat, flatten
from jax_cocktail.lowering.edge.meshes import parts_in
from jax_cocktail.lowering.edge.symbolic import admits, names_in, obstacle, sample, sizes_in
from jax_cocktail.lowering.edge.symbolic_call import AnySize, rewrite_any_size
from jax_cocktail.lowering.state import STATE
from jax_cocktail.report import Report
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.forms import Forms, Place
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.numbers import family, numbers
from jax_cocktail.utask.printer import identity
from jax_cocktail.utask.sizes import Decision, Parameter, Size

if TYPE_CHECKING:
    from jax_cocktail.compiler import Emitted

# Numbers of the samples, many and few: no other number of a program should be one of them. One is itself.
_SAMPLES = ((119, 143, 187, 209, 221, 247), (21, 27, 26, 22, 25, 18), (1,))
_MORE = ((551, 583, 611, 649, 689, 697), (46, 51, 58, 62, 77, 82), (5, 7, 6, 10, 13, 14))
_MOST_NAMES = 2  # symbolic sizes that are many, few or one independently of each other
_NONE = "each of its sizes needs a program of its own"


def choose_symbolic(request: Request) -> Choice:
    """Our programs for a call with symbolic sizes, or the call as it came."""
    try:
        return _chosen(request)
    except UnsupportedError as error:
        reason = f"the module has symbolic sizes, and {error.reason}; export each size that you need"
        report = notices.refuse(request.closed, request.mark, reason, quiet=request.force == "stock")
        return Choice(request.closed, STATE.stock, report)


def _chosen(request: Request) -> Choice:
    if request.platform != custom_call.PLATFORM:
        raise UnsupportedError("our programs for GPUs have fixed ones")
    if request.place.devices > 1 or any(True for _ in parts_in(request.closed)):
        raise UnsupportedError("our programs for several devices have fixed ones")
    flat = flatten(request.closed, Calls(request.platform))
    pairs = [*_pairs(request, flat)]
    if not pairs:
        raise UnsupportedError("no two numbers stand for them")
    first, mark = pairs[0].requests[0], request.mark
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
    programs = {n: _programs(pairs, decision.plan.candidate, n) for n in taken}
    if not any(programs.values()):
        raise UnsupportedError(_NONE)
    without = untaken([captured.regions[n] for n, found in programs.items() if not found], _NONE)
    report = replace(report, left=(*report.left, *without), choice=decision.choice, why=decision.why)
    notices.complain(report.left, mark)
    ours = {n: found for n, found in programs.items() if found}
    loops = {n: places_in(first.prepared, n, found[0].executable, mark) for n, found in ours.items()}
    STATE.ours += 1
    return Choice(rewrite_any_size(flat, captured, ours, mark.function, loops), STATE.stock, report)


# ---- samples -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two samples of a call, and the numbers in them that stand for its symbolic sizes."""

    requests: tuple[Request, Request]
    numbers: tuple[tuple[int, ...], tuple[int, ...]]

    def programs(self, region: int) -> tuple[UProgram, UProgram]:
        first, second = (each.prepared.programs[region] for each in self.requests)
        return first, second


def _pairs(request: Request, flat: Flat) -> Iterator[_Pair]:
    """Two samples for each combination of many, few and one, many first."""
    whole = flat.close(flat.equations)
    sizes = sizes_in(whole)
    if reason := obstacle(sizes):
        raise UnsupportedError(reason)
    names = names_in(sizes)
    samples = (*_SAMPLES, *_MORE) if len(names) == 1 else _SAMPLES
    together = [(pool,) * len(names) for pool in samples]
    for pools in product(samples, repeat=len(names)) if len(names) <= _MOST_NAMES else together:
        found: list[tuple[Request, tuple[int, ...]]] = []
        for chosen in _numbers(pools):
            numbers = dict(zip(names, chosen, strict=True))
            if len(found) < 2 and admits(sizes, numbers):
                made = replace(request, closed=sample(whole, numbers))
                found += [(made, chosen)] if _is_like(made, flat) else []
        if len(found) == 2:
            (first, mine), (second, other) = found
            yield _Pair((first, second), (mine, other))


def _numbers(pools: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Numbers from pools that stand for symbolic sizes: different ones for each, and in each sample."""
    for k in range(len(_SAMPLES[0])):
        yield tuple(pool[(k + place) % len(pool)] for place, pool in enumerate(pools))


def _is_like(request: Request, flat: Flat) -> bool:
    """True if a sample has the equations of the symbolic jaxpr."""
    mine, others = request.prepared.captured.flat.equations, flat.equations
    return [*map(primitive_name, mine)] == [*map(primitive_name, others)]


# ---- programs ----------------------------------------------------------------------------------------------


def _programs(pairs: Sequence[_Pair], candidate: Candidate, region: int) -> list[AnySize]:
    """Built programs for a region that suit all samples, as far as there are any."""
    found: list[AnySize] = []
    for pair in pairs:
        programs = pair.programs(region)
        if not any(_suits(each, program) for each in found for program in programs):
            made = _program(pair, pairs[0], candidate, region)
            found += [] if made is None else [made]
    return found


def _suits(found: AnySize, program: UProgram) -> bool:
    """True if a program serves a sample."""
    shapes = [value.type.shape for value in program.entry.parameters]
    given = {parameter: int(shapes[k][d]) for parameter, (k, d) in found.places.items()}
    return all(guard.holds(given) for guard in found.guards)


def _program(pair: _Pair, usual: _Pair, candidate: Candidate, region: int) -> AnySize | None:
    """A built program for a region of both samples; None if there is none. `usual`: the pair of many."""
    regions = [each.prepared.captured.regions[region] for each in pair.requests]
    programs, (request, _) = pair.programs(region), pair.requests
    varying = _varying(*programs)
    if varying is None or any(each.exits or each.log for each in regions):
        return None
    made, other = (emit(each, request.machine, candidate=candidate, varying=varying) for each in programs)
    if not _is_same(made, other) or (varying and not made.given):
        return None
    places = {each: _place(programs, (n, other.given.get(each, -1))) for each, n in made.given.items()}
    guards = [each for parameter in places for each in _bounds(parameter)]
    for name, both in enumerate(zip(*pair.numbers, strict=True)):
        if both == (1, 1):
            one = Parameter(1, f"size {name}", least=1)
            first, second = usual.numbers
            places[one] = _place(usual.programs(region), (first[name], second[name]))
            guards.append(Decision(_size(one), 1, "==", True))
    known = {parameter: place for parameter, place in places.items() if place is not None}
    if len(known) < len(places):
        return None
    guards += made.decisions
    return _built(made, made.general or programs[0], guards, known, request.mark.options.cache_limit_bytes)


def _is_same(made: Emitted, other: Emitted) -> bool:
    """True if two samples have one program for any size."""
    if made.general is None or other.general is None:
        return made.source == other.source
    programs = (identity(each.general, each.candidate) for each in (made, other) if each.general)
    return len({*programs}) == 1 and made.given.keys() == other.given.keys() and made.source == other.source


def _varying(first: UProgram, second: UProgram) -> frozenset[int] | None:
    """The positions of the numbers that two samples have otherwise; None if they differ in more."""
    if family(first) != family(second):
        return None
    pairs = zip(numbers(first), numbers(second), strict=True)
    return frozenset(k for k, (a, b) in enumerate(pairs) if a != b)


def _place(programs: Sequence[UProgram], numbers: tuple[int, int]) -> Place | None:
    """An operand's axis that has these numbers in two samples; None if there is none."""
    first, second = (each.entry.parameters for each in programs)
    for operand, (mine, other) in enumerate(zip(first, second, strict=True)):
        both = [*zip(mine.type.shape, other.type.shape, strict=True)]
        if numbers in both:
            return operand, both.index(numbers)
    return None


def _size(parameter: Parameter) -> Size:
    return Size((((parameter,), 1),))


def _bounds(parameter: Parameter) -> Iterator[Decision]:
    yield Decision(_size(parameter), parameter.least, ">=", True)
    if parameter.most:
        yield Decision(_size(parameter), parameter.most, "<=", True)


def _built(
    emitted: Emitted,
    general: UProgram,
    guards: Sequence[Decision],
    places: Mapping[Parameter, Place],
    limit_bytes: int,
) -> AnySize:
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
    return AnySize(executable, tuple(guards), places)
