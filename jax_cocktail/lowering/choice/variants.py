"""Captures a marked call, plans its programs and builds them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.extend.core as jex

from jax_cocktail.build.device import device_toolchain
from jax_cocktail.build.executable import Executable
from jax_cocktail.build.host import host_toolchain
from jax_cocktail.build.workers import MOST, Workers, finish
from jax_cocktail.codegen.machines import HOST
from jax_cocktail.config import CHECKED, DEFERRED, FRESH, LOG
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.processor import cores
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.errors import BuildError
from jax_cocktail.lowering.choice import plan_cache
from jax_cocktail.lowering.choice.checked import check_program
from jax_cocktail.lowering.choice.decisions import Plan, machine_facts, planned_for, versions
from jax_cocktail.lowering.edge import custom_call, gpu_call
from jax_cocktail.lowering.edge.adapter import is_key
from jax_cocktail.lowering.edge.capture import Capture, Region, capture
from jax_cocktail.lowering.edge.rerun import Rewritten
from jax_cocktail.lowering.state import STATE, Mark, Stopped, go_on
from jax_cocktail.memory import MEMORY
from jax_cocktail.portable import name_of
from jax_cocktail.primitives import translate
from jax_cocktail.primitives.side_exit import Exit
from jax_cocktail.schedule.policy import block_sizes, candidates
from jax_cocktail.utask.builder import uncollected
from jax_cocktail.utask.candidate import SINGLE, Candidate, Named
from jax_cocktail.utask.failure import lines_of
from jax_cocktail.utask.ir import UProgram, operators_in, places_of_loops
from jax_cocktail.utask.printer import identity
from jax_cocktail.utask.types import NOWHERE
from jax_cocktail.warning import warn

if TYPE_CHECKING:
    from jax_cocktail.compiler import Artifact, Emitted
    from jax_cocktail.lowering.edge.shardings import Spread

Part = tuple[Candidate, int]  # a way to compile the region with this number
Built = dict[int, Executable]  # by region number; regions that stay with stock XLA have no entry


@dataclass(eq=False, slots=True, kw_only=True)
class Translated:
    """The programs of a marked call for a machine, and what was planned for them. It knows nothing of JAX.

    `memory_bound`: for each program, True if it is that of a memory-bound subgraph; `learns`: other calls
    count (`families`); `pinned`: what all candidates take (the options ``choices`` and ``without``);
    `varying`: what other calls have shown so far, see `varying_of`; `emitted`: the programs for the numbers
    of this call.
    """

    machine: Machine
    programs: tuple[UProgram, ...]
    memory_bound: tuple[bool, ...]
    learns: bool = False
    pinned: Named = ()
    varying: dict[int, frozenset[int]] = field(default_factory=dict)
    emitted: dict[tuple[Candidate, int], Emitted] = field(default_factory=dict)

    def taken(self, plan: Plan) -> tuple[int, ...]:
        """The numbers of the regions that we compile."""
        return tuple(n for n in range(len(self.programs)) if n not in plan.skip)

    def forced(self, plan: Plan) -> Plan:
        """The plan with all memory-bound regions: a forced call takes them."""
        return replace(plan, skip=tuple(n for n in plan.skip if not self.memory_bound[n]))


@dataclass(eq=False, slots=True, kw_only=True)
class Prepared(Translated):
    """A marked call for a machine, captured and translated, with the programs planned and built for it.

    `traced` refers to its jaxpr, which dies with the function; nothing else here does.
    """

    traced: weakref.ref[Any]
    captured: Capture
    artifacts: dict[tuple[Candidate, int], Artifact] = field(default_factory=dict)
    built: dict[Plan, Built] = field(default_factory=dict)
    rewritten: dict[tuple[Plan, str], Rewritten] = field(default_factory=dict)  # the option `errors`

    @property
    def closed(self) -> Any:
        """The jaxpr, during its lowering."""
        return self.traced()

    def exits(self, plan: Plan) -> tuple[Exit, ...]:
        """The side exits of the regions that we compile."""
        return tuple(item for n in self.taken(plan) for item in self.captured.regions[n].exits)

    def leaving(self, plan: Plan) -> tuple[str, ...]:
        """The digests of the built programs that have side exits."""
        regions, built = self.captured.regions, self.built[plan]
        return tuple(built[n].digest for n in self.taken(plan) if regions[n].exits)


def prepare(
    closed: Any,
    name: str,
    machine: Machine = HOST,
    memory_bound: bool = False,
    donated: frozenset[int] = frozenset(),
    spread: Spread | None = None,
    insists: bool = False,
    reproducible: bool = False,
    pinned: Named = (),
) -> Prepared:
    """Captures and translates a marked jaxpr, once. `memory_bound`: see `capture`; `donated`: the positions
    of the inputs that its caller gives away, which count only then; `spread`, `insists`: see
    `divisions.divided`; `reproducible`: other calls do not count; `pinned`: see `Translated`."""
    how = memory_bound, donated, spread, insists, reproducible, pinned
    key = machine.spec, machine.host, id(closed), *how
    known: Prepared | None = MEMORY.prepared.get(key)
    if known is not None and known.closed is closed:
        return known
    with uncollected():
        captured = capture(closed, machine.platform, memory_bound, spread)
        programs = tuple(
            translate(region.program, name, _overwritable(region, machine.spec, captured, donated))
            for region in captured.regions
        )
        if spread is not None:
            from jax_cocktail.lowering.edge.divisions import divided  # few calls are

            captured, programs = divided(captured, programs, spread, insists)
    traced = weakref.ref(closed, lambda _: MEMORY.prepared.pop(key, None))
    prepared = Prepared(
        machine=machine,
        programs=programs,
        memory_bound=tuple(region.memory_bound for region in captured.regions),
        learns=not reproducible,
        pinned=pinned,
        traced=traced,
        captured=captured,
    )
    MEMORY.prepared.keep(key, prepared)
    return prepared


def _overwritable(
    region: Region, spec: DeviceSpec | None, captured: Capture, donated: frozenset[int]
) -> tuple[int, ...]:
    """The operands that a program may overwrite with results.

    XLA copies an operand that is still needed. On the host that costs as much as our own copy; on a GPU it
    costs a launch, which pays only for large arrays. A region with side exits needs all of them again. One
    without a loop copies nothing by itself, so it overwrites only what nobody needs.
    """
    if region.exits:
        return ()
    needed = _needed_beside(region, captured, donated) if region.memory_bound else set()
    least = 0 if spec is None else spec.launch_seconds * spec.memory_rate / 2  # a copy reads and writes
    sizes = (0 if is_key(v.aval) else v.aval.size * v.aval.dtype.itemsize for v in region.operands)
    large = (number for number, size in enumerate(sizes) if size >= least)
    return tuple(number for number in large if region.operands[number] not in needed)


def _needed_beside(region: Region, captured: Capture, donated: frozenset[int]) -> set[Any]:
    """The operands that the caller keeps or that other equations read, of those before the region as well."""
    flat, inside = captured.flat, set(region.members)
    kept = (v for number, v in enumerate(flat.template.invars) if number not in donated)
    read = (v for n, each in enumerate(flat.equations) if n not in inside for v in each.invars)
    everything = (*kept, *flat.constvars, *flat.outvars, *read)
    return {v for v in everything if not isinstance(v, jex.Literal)}


def spec_of(mark: Mark, platform: str) -> DeviceSpec | None:
    """The GPU to plan for, measured at first use; None for the host."""
    if platform == custom_call.PLATFORM:
        return None
    if mark.options.profile != "off" and mark.options.force != "stock":
        gpu_call.measure_once(mark.options.gpu_arch, platform)
    return gpu_call.spec_of(mark.options.gpu_arch, platform, not mark.options.reproducible)


def device_of(mark: Mark, machine: Machine) -> str:
    """Everything that a decision about a GPU depends on: the card, its driver, its performance figures and
    the device compiler; "" for the host."""
    if machine.spec is None:
        return ""
    try:
        compiler = str(device_toolchain(machine.spec.arch))
    except BuildError:
        compiler = "no compiler"
    card = custom_call.device(machine.platform, mark.options.gpu_arch)
    return f"{card}, driver {gpu_call.driver_version(machine.platform)}, {compiler}, {machine.spec}"


def units_of(mark: Mark, machine: Machine) -> int:
    """The number of units to plan for."""
    if mark.options.units:
        return mark.options.units
    if machine.spec is not None:
        return machine.spec.units
    return max((custom_call.units() or cores()) // STATE.devices, 1)


def ways(prepared: Translated, units: int) -> tuple[Candidate, ...]:
    """The candidates for at most so many units, the simplest first."""
    found = candidates(prepared.programs, units, prepared.machine)
    return tuple(dict.fromkeys(each.taking(dict(prepared.pinned)) for each in found))


def possible(prepared: Translated, plan: Plan, units: int) -> bool:
    """True if `survey` could have found the plan: a stored one may come from a file that was changed."""
    numbers = planned_for(units)
    known = {each for n in numbers for each in ways(prepared, n)}
    usual, size = plan.candidate.but(threads=0), plan.candidate.threads
    sized = not size or size in block_sizes(prepared.machine)
    asked = plan.candidate in known or (sized and usual in known)
    return asked and set(plan.skip) < set(range(len(prepared.programs)))


def whole_identity(program: UProgram, candidate: Candidate = SINGLE) -> str:
    """All of a program that a build depends on: its identity, and its messages."""
    return "\n".join((identity(program, candidate), *lines_of(operators_in(program.entry))))


def _program_key(prepared: Translated, candidate: Candidate, number: int) -> str:
    """The key of a built program in the plan cache. Without a compiler it fits what the process carries."""
    machine, program = prepared.machine, prepared.programs[number]
    try:
        compiler = repr(host_toolchain() if machine.spec is None else device_toolchain(machine.spec.arch))
    except BuildError:
        compiler = "no compiler"
    what = whole_identity(program, candidate), *versions(), str(machine.spec)
    return name_of(what, (*machine_facts(), compiler))


def program_keys(prepared: Translated, plan: Plan) -> tuple[str, ...]:
    """The keys of a plan's built programs in the plan cache."""
    return tuple(_program_key(prepared, plan.candidate, n) for n in prepared.taken(plan))


def store_programs(translated: Translated, plan: Plan, cache_limit_bytes: int) -> None:
    """Builds a plan for the plan cache alone. Raises BuildError or UnsupportedError."""
    for number in translated.taken(plan):
        key = _program_key(translated, plan.candidate, number)
        if plan_cache.program(key) is None:
            made = build(to_build(translated, plan.candidate, number), cache_limit_bytes)
            plan_cache.add_program(key, made)


def traced(prepared: Prepared, plan: Plan, mark: Mark, level: int) -> tuple[Rewritten, Built]:
    """The marked jaxpr with traced programs, and these."""
    custom_call.register(prepared.machine.platform)
    built = {}
    for number in prepared.taken(plan):
        program = prepared.programs[number]
        emitted = emit(program, prepared.machine, candidate=plan.candidate, trace=level)
        built[number] = _ready(emitted, mark.options.cache_limit_bytes).executable
    return _called(prepared, plan, built, mark), built


# ---- the compiler ------------------------------------------------------------------------------------------

# Its passes are most of the package. A call whose programs are in the plan cache imports none of them.


def emit(
    program: UProgram,
    machine: Machine,
    candidate: Candidate,
    trace: int = 0,
    varying: frozenset[int] = frozenset(),
) -> Emitted:
    """See `compiler.emit`. In the background it ends between two passes if the process ends."""
    from jax_cocktail import compiler

    return compiler.emit(program, machine, [lambda *_: go_on()], candidate, trace, varying)


def is_built(emitted: Emitted) -> bool:
    """See `compiler.is_built`."""
    from jax_cocktail import compiler

    return compiler.is_built(emitted)


def build(emitted: Emitted, cache_limit_bytes: int) -> Artifact:
    """See `compiler.build`."""
    from jax_cocktail import compiler

    return compiler.build(emitted, cache_limit_bytes=cache_limit_bytes)


def varying_of(prepared: Translated, number: int) -> frozenset[int]:
    """The positions of the numbers of a program that other calls have had otherwise."""
    if number not in prepared.varying:
        from jax_cocktail.lowering.choice import families  # what is built already need not ask

        program, learns = prepared.programs[number], prepared.learns
        prepared.varying[number] = families.varying(program, prepared.machine) if learns else frozenset()
    return prepared.varying[number]


def varying_in(prepared: Translated) -> tuple[frozenset[int], ...]:
    """The positions of these numbers in each program."""
    return tuple(varying_of(prepared, n) for n in range(len(prepared.programs)))


def to_build(prepared: Translated, candidate: Candidate, number: int) -> Emitted:
    """A program for the numbers of the call, if it is built or none of them varies; else one that serves all
    that vary, if there is such a program."""
    exact, varying = emitted(prepared, candidate, number), varying_of(prepared, number)
    if not varying or is_built(exact):
        return exact
    return emit(prepared.programs[number], prepared.machine, candidate=candidate, varying=varying)


def has_text(prepared: Translated, plan: Plan) -> bool:
    """True if what a plan builds was built before, for these numbers or others."""
    return all(is_built(to_build(prepared, plan.candidate, n)) for n in prepared.taken(plan))


def emitted(prepared: Translated, candidate: Candidate, number: int) -> Emitted:
    """A program for the numbers of the call."""
    key = candidate, number
    if key not in prepared.emitted:
        program = prepared.programs[number]
        prepared.emitted[key] = emit(program, prepared.machine, candidate=candidate)
    return prepared.emitted[key]


def _dumped(prepared: Prepared, part: Part, mark: Mark, folder: str) -> str:
    """Writes all stages of a program to a folder, and returns the one that it made there."""
    from jax_cocktail.dump import dump_program

    made, program = artifact(prepared, part, mark), prepared.programs[part[1]]
    jaxpr, machine = str(prepared.closed), prepared.machine
    return dump_program(folder, mark.function, part[1], jaxpr, program, machine, made)


@contextmanager
def building(prepared: Prepared, plans: Sequence[Plan], mark: Mark) -> Iterator[None]:
    """Builds the plans in parallel with the block; when the block ends, they are built.

    A plan that cannot be built is left out with a warning.

    Raises:
      BuildError: none of the plans can be built.
    """
    custom_call.register(prepared.machine.platform)
    todo = [plan for plan in plans if plan not in prepared.built]
    wanted = dict.fromkeys((plan.candidate, n) for plan in todo for n in prepared.taken(plan))
    ready = {part: found for part in wanted if (found := _known(prepared, part, mark)) is not None}
    parts = [part for part in wanted if part not in ready]
    futures: dict[Part, Future[Artifact]] = {}
    with Workers(min(max(len(parts), 1), MOST)) as workers:  # has no thread without work
        try:
            for part in parts:
                go_on()
                planned = to_build(prepared, *part)
                futures[part] = _submitted(workers, planned, mark.options.cache_limit_bytes)
            yield
        except (KeyboardInterrupt, Stopped):
            workers.stop()
            raise
        finally:
            finish(futures.values(), mark.function, go_on)
    for part, future in futures.items():
        if future.exception() is None:
            ready[part] = _kept(prepared, part, future.result(), mark)
    if mark.options.dump_to:
        for part in ready:
            _dumped(prepared, part, mark, mark.options.dump_to)
    for plan in todo:
        if all((plan.candidate, n) in ready for n in prepared.taken(plan)):
            prepared.built[plan] = {n: ready[plan.candidate, n] for n in prepared.taken(plan)}
    failures = [error for future in futures.values() if (error := future.exception()) is not None]
    if not any(plan in prepared.built for plan in plans):
        raise failures[0]
    for error in failures:
        text = f"a candidate for {mark.function} is left out: {error}"
        warn((text, ""), text)


def _known(prepared: Prepared, part: Part, mark: Mark) -> Executable | None:
    """The program from the plan cache, loaded; None if it is to be planned and built."""
    if mark.options.plans == FRESH:
        return None
    with suppress(BuildError):  # there is no compiler, or the program cannot be loaded
        found = plan_cache.program(_program_key(prepared, *part))
        if found is not None:
            prepared.varying[part[1]] = frozenset(found.varying)  # as it was planned
            if mark.options.plans == CHECKED:
                dump = partial(_dumped, prepared, part, mark)
                check_program(found, artifact(prepared, part, mark), mark, dump)
            custom_call.load(found)
            return found
    return None


def _kept(prepared: Prepared, part: Part, made: Artifact, mark: Mark) -> Executable:
    """A program that was built now; the plan cache keeps it."""
    prepared.artifacts[part] = made
    plan_cache.count(made)
    from jax_cocktail.lowering.choice import families

    families.keep(prepared.programs[part[1]], prepared.machine, part[0], bool(made.emitted.given))
    if mark.options.plans != FRESH:
        plan_cache.add_program(_program_key(prepared, *part), made)
    return made.executable


def artifact(prepared: Prepared, part: Part, mark: Mark) -> Artifact:
    """A program with all that is known of it. One that came from the plan cache is planned now."""
    if part not in prepared.artifacts:
        planned, limit_bytes = to_build(prepared, *part), mark.options.cache_limit_bytes
        try:
            prepared.artifacts[part] = build(planned, cache_limit_bytes=limit_bytes)
        except BuildError:  # a bundle may have it, and there is no compiler
            known = _known(prepared, part, mark)
            if known is None:
                raise
            from jax_cocktail.compiler import Artifact

            place, launch = (known.binary, known.digest), known.launch
            return Artifact(*place, planned, planned.seconds, True, known.path, launch)
    return prepared.artifacts[part]


def _submitted(workers: Workers, emitted: Emitted, limit_bytes: int) -> Future[Artifact]:
    try:
        return workers.submit(partial(_ready, emitted, limit_bytes))
    except RuntimeError as error:  # there are too many threads
        reason = f"no compiler can be started ({error})"
        raise BuildError(reason, "raise the limits of the process (ulimit -a)") from error


def _ready(emitted: Emitted, limit_bytes: int) -> Artifact:
    """Builds a program and loads it."""
    made = build(emitted, cache_limit_bytes=limit_bytes)
    custom_call.load(made.executable)
    return made


def rewritten(prepared: Prepared, plan: Plan, mark: Mark) -> Rewritten:
    """The marked jaxpr with our custom calls; builds the plan if needed."""
    key = plan, mark.options.errors
    if key not in prepared.rewritten:
        with building(prepared, (plan,), mark):
            pass
        prepared.rewritten[key] = _called(prepared, plan, prepared.built[plan], mark)
    return prepared.rewritten[key]


def _called(prepared: Prepared, plan: Plan, built: Built, mark: Mark) -> Rewritten:
    """The marked jaxpr with calls of built programs."""
    names = {}
    if mark.options.errors == LOG:
        from jax_cocktail.dump import name_of as folder_of

        programs, candidate = prepared.programs, plan.candidate
        names = {n: folder_of(mark.function, n, identity(programs[n], candidate)) for n in built}
    sync = mark.options.errors != DEFERRED
    platform = prepared.machine.platform
    loops = {n: places_in(prepared, n, each, mark) for n, each in built.items()}
    return custom_call.rewrite(prepared.captured, built, platform, mark.function, sync, names, loops)


def places_in(prepared: Prepared, number: int, executable: Executable, mark: Mark) -> tuple[str, ...]:
    """A line for each loop in which a call can be stopped. A built program knows no places: it may move.
    Recursions have loops without a place."""
    places = places_of_loops(prepared.programs[number])
    known = (places[n] if 0 <= n < len(places) else NOWHERE for n in executable.loops)
    return tuple(f"the loop at {each}" if each.file else f"a loop of {mark.function}" for each in known)
