"""The whole compiler on one page.

    trace (JAX) -> capture -> translate -> [

      unit_count -> exact_products -> simplify -> launch_parameters
        -> recover | threads -> updates -> layers -> hoist -> concat_gates -> pipeline
        -> distribute -> unroll
        -> simplify -> canonicalise -> collapse_axes -> share_exponentials
        -> split_reductions -> split_scans                           # translated; placed from recover on
        -> place -> exchange -> double_buffer -> simplify            # placed: divided over units
        -> products                                                  # with matrices as products read them
        -> sink -> fuse -> launch_parameters                         # planned: in lane loops,
        -> plan -> copies                                            # with its memory,
        -> residency -> barriers -> block_barriers                   # and with barriers

      -> emit -> build ]

The part in brackets is here: from a uTask program to a binary. A pass is a pure function from program to
program that returns its argument when it has nothing to do, listed here by the name of its module.
`passes.passes` lists those up to `fuse` for a candidate (what the policy decided, see `schedule.policy`), and
`plan_tail.tail_passes` lists the rest for a machine. This module runs both lists: it verifies what goes in
and what comes out, under test (`EACH_PASS`) the result of every pass, and tells the observers. Dumps, timings
and reports are observers; passes print nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

from jax_cocktail.analysis.verifier import Form, verify
from jax_cocktail.build.device import build_device_program, device_program_is_built, device_toolchain
from jax_cocktail.build.executable import Executable
from jax_cocktail.build.host import build_program, host_toolchain, program_is_built
from jax_cocktail.build.kernels import DeviceToolchain, beside_arrays, check_registers
from jax_cocktail.cache import DEFAULT_LIMIT_BYTES
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.launch import fits
from jax_cocktail.codegen.machines import HOST, with_threads
from jax_cocktail.codegen.program import emit_program
from jax_cocktail.codegen.stamps import StampTable, beside_counters, stamps_of, with_counters
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.target import Target
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.errors import BuildError, CocktailError, PlacementError
from jax_cocktail.memory import MEMORY
from jax_cocktail.passes import Pass, passes, switches
from jax_cocktail.placement.mesh import UnitMesh, set_resource
from jax_cocktail.schedule.general import LEVELS, forms_in, generalise, suits_all
from jax_cocktail.schedule.sync.plan_tail import Observer, Planned, TailPass, finish, run_passes
from jax_cocktail.utask.builder import uncollected
from jax_cocktail.utask.candidate import SINGLE, Candidate
from jax_cocktail.utask.choices import Choice, Choose, Chooser, usual
from jax_cocktail.utask.failure import lines_of
from jax_cocktail.utask.ir import UProgram, operators_in, places_of_loops
from jax_cocktail.utask.plan import LaunchPlan, MemoryPlan
from jax_cocktail.utask.printer import identity
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.sizes import Decision, Parameter, at, deciding, value_of

_REACHES: Mapping[str, Form] = {  # the form of a program after a pass
    "recover": "placed",  # it gives each unit its share of the batch
    "threads": "placed",  # and this one each thread
    "place": "placed",
    "fuse": "planned",
}
# Verifying every pass takes a twentieth of planning: no user is to pay for that, and every test is.
VERIFY, EACH_PASS = "JAX_COCKTAIL_VERIFY", "passes"  # an environment variable, and what tests set it to


@dataclass(frozen=True, slots=True)
class Emitted:
    """A program ready for the host or device compiler.

    `machine`: what it is for; `fingerprint`: of the translated program and the candidate; `fired`: the passes
    that changed something; `remarks`: what the passes have to say; `seconds`: time that this took; `stamps`:
    those of a traced program; `parameters`: those of the launch; `loops`: of each loop in which a call can be
    stopped, its number in `utask.ir.places_of_loops` of the translated program, or -1; `given`: the numbers
    of the call for the general ones, for which others stand in the program and the plan; `varying`: the
    positions of those of the program (`utask.numbers`); `decisions`: on which it relies in calls with other
    numbers; `level`: of the numbers that stand for others (`schedule.general`); `choices`: all that could be
    otherwise.
    """

    program: UProgram
    plan: MemoryPlan
    source: str
    machine: Machine = HOST
    candidate: Candidate = SINGLE
    fingerprint: str = ""
    fired: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    seconds: float = 0.0
    stamps: StampTable | None = None
    parameters: tuple[Parameter, ...] = ()
    loops: tuple[int, ...] = ()
    given: Mapping[Parameter, int] = field(default_factory=dict)
    varying: frozenset[int] = frozenset()
    decisions: tuple[Decision, ...] = ()
    level: int = 0
    choices: tuple[Choice, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The values of the launch parameters."""
        return tuple(value_of(each, self.given) for each in self.parameters)

    def in_call(self, number: int) -> int:
        """A number of the plan as it is in the call."""
        return at(number, self.given)

    @property
    def target(self) -> Target:
        """The spelling of the source."""
        return self.machine.target

    @property
    def mesh(self) -> UnitMesh:
        """The units that a call asks for."""
        return set_resource(self.plan, self.candidate.units)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A program that was planned and built, with all that is known of it.

    `seconds`: time spent in our passes and the host compiler; `cached`: the latter did not run; `key`: of the
    binary in the cache, "" if it is not there. For the rest see `Executable`.
    """

    binary: bytes
    digest: str
    emitted: Emitted
    seconds: float
    cached: bool
    path: str
    launch: LaunchPlan | None = None
    key: str = ""

    @property
    def executable(self) -> Executable:
        """The part that a call needs."""
        failures = lines_of(operators_in(self.emitted.program.entry))
        place = self.binary, self.digest, self.path
        sizes = self.aliases, self.workspace_bytes, failures
        return Executable(
            *(*place, *sizes, self.launch, self.emitted.stamps),
            own_bytes=self.emitted.in_call(self.emitted.plan.own_bytes),
            sizes=self.emitted.sizes,
            loops=self.emitted.loops,
            varying=tuple(sorted(self.emitted.varying)),
        )

    @property
    def workspace_bytes(self) -> int:
        if self.launch is not None:
            return self.launch.workspace_bytes
        return self.emitted.in_call(self.emitted.plan.workspace_bytes)

    @property
    def aliases(self) -> tuple[tuple[int, int], ...]:
        return self.emitted.plan.aliases

    @property
    def source(self) -> str:
        return self.emitted.source

    @property
    def fingerprint(self) -> str:
        return self.emitted.fingerprint


def transform(
    program: UProgram,
    observers: Sequence[Observer] = (),
    candidate: Candidate = SINGLE,
    remark: Listener = nobody,
    machine: Machine = HOST,
    choose: Choose = usual,
) -> UProgram:
    """Runs all passes up to `fuse` on a translated program."""
    verify(program, "translated")
    table = [(name, _on_programs(run)) for name, run in passes(candidate, remark, machine, choose)]
    return run_passes(Planned(program), table, _observer(program, "translated", observers)).program


def _on_programs(run: Pass) -> TailPass:
    return lambda planned: Planned(run(planned.program))


def _observer(program: UProgram, form: Form, observers: Sequence[Observer]) -> Observer:
    """An observer that tells others. Under test it first verifies whatever a pass makes of a program."""
    verifies, known = os.environ.get(VERIFY) == EACH_PASS, (program, form)

    def observe(name: str, planned: Planned, seconds: float) -> None:
        nonlocal known
        before, known = known, (planned.program, _REACHES.get(name, known[1]))
        if verifies and (known[0] is not before[0] or known[1] != before[1]):
            verify(*known)
        for observer in observers:
            observer(name, planned, seconds)

    return observe


def emit(
    program: UProgram,
    machine: Machine = HOST,
    observers: Sequence[Observer] = (),
    candidate: Candidate = SINGLE,
    trace: int = 0,
    varying: frozenset[int] = frozenset(),
) -> Emitted:
    """From a translated program to source text. Needs no compiler and no device.

    A division over units whose parts cannot be written in place is given up, with a remark.

    Args:
      program: what to compile.
      machine: what it is for.
      observers: are told of every pass.
      candidate: the way to compile it.
      trace: the level of the stamps of a traced program (see `codegen.stamps`); 0: it is not traced.
      varying: the positions of the numbers (`utask.numbers`) that other calls have otherwise: the text
        is to serve them.
    """
    machine = with_threads(machine, candidate.threads)
    with uncollected():
        if varying and not trace:
            found = _emit_general(program, machine, observers, candidate, varying)
            if found is not None:
                return found
        try:
            return _emit(program, machine, observers, candidate, trace)
        except PlacementError as error:
            emitted = _emit(program, machine, observers, candidate.but(units=1), trace)
            note = Remark("place", False, str(error))
            return replace(emitted, candidate=candidate, remarks=(*emitted.remarks, note))


def _emit_general(
    program: UProgram,
    machine: Machine,
    observers: Sequence[Observer],
    candidate: Candidate,
    varying: frozenset[int],
) -> Emitted | None:
    """A program with a text that serves these and other numbers; None if there is none. Two numbers stand for
    them in turn: what makes a difference for the text, or may vanish in a call, is not general. What passes
    have decided by comparing sizes must hold in the call as well."""
    for level in range(LEVELS):
        first = generalise(program, varying, 2 * level, machine.is_gpu)
        if first is None:
            return None
        key = identity(first.program, candidate), machine, forms_in(first.program)
        if key not in MEMORY.general:
            second = generalise(program, varying, 2 * level + 1, machine.is_gpu)
            if second is None:
                return None
            MEMORY.general.keep(key, _for_all(first.program, second.program, machine, observers, candidate))
        known: tuple[Emitted, tuple[Decision, ...]] | None = MEMORY.general.get(key)
        if known is not None and all(each.holds(first.given) for each in known[1]):
            found = replace(known[0], given=first.given, varying=varying, decisions=known[1])
            if fits(found.program, found.plan, machine, first.given):
                return replace(found, level=level, fingerprint=identity(program, candidate))
    return None


def _for_all(
    first: UProgram, second: UProgram, machine: Machine, observers: Sequence[Observer], candidate: Candidate
) -> tuple[Emitted, tuple[Decision, ...]] | None:
    """A program whose text is that of another one with other numbers, and the decisions on which it relies;
    None if they differ."""
    try:
        with deciding() as decisions:
            found = _emit(first, machine, observers, candidate, 0)
        other = _emit(second, machine, observers, candidate, 0)
    except (CocktailError, ValueError):  # shapes that do not fit each other are no program
        return None
    suits = found.source == other.source and suits_all(found.program)
    return (found, tuple(decisions.values())) if suits else None


def schedule(
    stitched: UProgram,
    machine: Machine,
    cluster: int = 0,
    observers: Sequence[Observer] = (),
    units: int = 0,
) -> Planned:
    """The program with its memory and its barriers. `cluster`: of so many units; 0: they need not be one;
    `units`: the most that are asked for, 0 for any number."""
    planned = finish(stitched, machine, cluster, _observer(stitched, "planned", observers), units)
    verify(planned.program, "planned")
    return planned


def _emit(
    program: UProgram, machine: Machine, observers: Sequence[Observer], candidate: Candidate, trace: int
) -> Emitted:
    start = time.perf_counter()
    made, remarks, chooser = [("translate", program)], list[Remark](), Chooser(dict(candidate.choices))

    def keep(name: str, after: Planned, _: float) -> None:
        made.append((name, after.program))

    cluster = candidate.units if candidate.cluster else 0
    stitched = transform(program, (keep, *observers), candidate, remarks.append, machine, chooser)
    fired = tuple(dict.fromkeys(name for (_, old), (name, new) in pairwise(made) if new is not old))
    here = beside_counters(machine) if trace else machine
    planned = schedule(stitched, here, cluster, observers, candidate.units)
    final, plan, stamps = planned.program, planned.plan, None
    if trace:
        plan = with_counters(plan, machine)
        stamps = stamps_of(final, plan, machine, trace)
    text = emit_program(final, plan, machine, stamps=stamps)
    places = places_of_loops(program)
    loops = tuple(places.index(each) if each in places else -1 for each in text.loops)
    key = identity(program, candidate)
    seconds = time.perf_counter() - start
    return Emitted(
        *(final, plan, text.source, machine, candidate, key, fired),
        remarks=tuple(dict.fromkeys(remarks)),
        seconds=seconds,
        stamps=stamps,
        parameters=text.parameters,
        loops=loops,
        choices=(*switches(candidate, machine, fired), *chooser.found.values()),
    )


def build(
    emitted: Emitted,
    *,
    cache_limit_bytes: int = DEFAULT_LIMIT_BYTES,
    compiler: DeviceToolchain | None = None,
) -> Artifact:
    """From source text to a binary, through the cache on disk. Raises BuildError.

    `compiler`: for a GPU, in place of the one that is found.
    """
    if emitted.machine.spec is not None:
        return _build_for_device(emitted, emitted.machine.spec, cache_limit_bytes, compiler)
    built = build_program(emitted.source, host_toolchain(), cache_limit_bytes=cache_limit_bytes)
    return Artifact(
        binary=built.binary,
        digest=built.digest,
        emitted=emitted,
        seconds=emitted.seconds + built.seconds,
        cached=built.cached,
        path=built.path,
        key=built.key,
    )


def is_built(emitted: Emitted) -> bool:
    """True if `build` finds a program in the cache."""
    spec = emitted.machine.spec
    with suppress(BuildError):
        if spec is None:
            return program_is_built(emitted.source, host_toolchain())
        return device_program_is_built(emitted.source, device_toolchain(spec.arch), spec.arch)
    return False


def _build_for_device(
    emitted: Emitted, spec: DeviceSpec, cache_limit_bytes: int, compiler: DeviceToolchain | None
) -> Artifact:
    """Assumes that the registers suffice, asks the compiler, and builds in other ways if they do not
    (AStitch, ASPLOS'22, section 4.5). The program that spills least is taken, and told about."""
    toolchain = compiler or device_toolchain(spec.arch)
    own = emitted.plan.thread_bytes
    built = build_device_program(emitted.source, toolchain, spec, cache_limit_bytes=cache_limit_bytes)
    built = beside_arrays(built, own)
    seconds, remarks = emitted.seconds + built.seconds, list(emitted.remarks)
    for way, machine in _other_ways(emitted.machine) if built.spills else ():
        stamps = _stamps_for(emitted, machine)
        text = emit_program(emitted.program, emitted.plan, machine, stamps=stamps)
        other = build_device_program(text.source, toolchain, spec, cache_limit_bytes=cache_limit_bytes)
        other = beside_arrays(other, own)
        seconds += other.seconds
        before, after = sum(built.spills.values()), sum(other.spills.values())
        if after < before:
            built, emitted = other, replace(emitted, machine=machine, stamps=stamps)
            emitted = replace(emitted, source=text.source, parameters=text.parameters)
            remarks.append(Remark("build", True, f"{way}: spills {after} bytes of a thread, not {before}"))
        if not after:
            break
    check = check_registers(built, spec, emitted.target.threads)
    if not check.launches:
        raise BuildError(
            check.remark, "plan for fewer threads, or leave the function to stock XLA with force='stock'"
        )
    if check.remark:
        remarks.append(Remark("build", False, check.remark))
    emitted = replace(emitted, remarks=tuple(remarks))
    facts = emitted.program, emitted.plan, emitted.machine, emitted.sizes
    launch = launch_plan(*facts, emitted.given)
    return Artifact(built.binary, built.digest, emitted, seconds, built.cached, built.path, launch, built.key)


def _stamps_for(emitted: Emitted, machine: Machine) -> StampTable | None:
    """The stamps of a traced program on another machine, whose blocks may have more warps to write them."""
    if emitted.stamps is None:
        return None
    return stamps_of(emitted.program, emitted.plan, machine, emitted.stamps.level)


def _other_ways(machine: Machine) -> Iterator[tuple[str, Machine]]:
    """Ways to build a program whose threads run out of registers: a function for every lane loop, and blocks
    of the usual size. In larger blocks a thread has fewer registers; in smaller ones it has more to do."""
    outlining = replace(machine, target=replace(machine.target, outline_limit=0))
    yield "each lane loop is a function", outlining
    usual = with_threads(machine, BLOCK.threads)
    if usual is not machine:
        yield f"{BLOCK.threads} threads per block in place of {machine.target.threads}", usual
