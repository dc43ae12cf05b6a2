"""The whole compiler on one page.

    trace (JAX) -> capture -> translate -> [

      unit_count -> exact_products -> simplify -> launch_parameters
        -> recover -> layers -> hoist -> concat_gates -> pipeline -> distribute
        -> simplify -> canonicalise -> collapse_axes -> share_exponentials
        -> split_reductions -> split_scans                           # translated; placed from recover on
        -> place -> exchange -> double_buffer -> simplify            # placed: divided over units
        -> order_factors -> join_products -> pack_factors            # with matrices as products read them
        -> sink -> fuse -> known_lengths                             # planned: in lane loops,
        -> result_copies -> plan -> divided_copies -> explicit_copies  # with its memory,
        -> residency -> barriers -> block_barriers                   # and with barriers

      -> emit -> build ]

The part in brackets is here: from a uTask program to a binary. A pass is a pure function from program to
program that returns its argument when it has nothing to do, listed here by the name of its module. `passes`
lists those up to `fuse` for a candidate (what the policy decided, see `schedule.policy`), and
`plan_tail.tail_passes` lists the rest for a machine. This module runs both lists: it verifies the result of
every pass and tells the observers. Dumps, timings and reports are observers; passes print nothing.
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from jax_cocktail.analysis.verifier import Form, verify
from jax_cocktail.build.device import build_device_program, device_toolchain
from jax_cocktail.build.host import build_program, host_toolchain
from jax_cocktail.build.kernels import DeviceToolchain, check_registers
from jax_cocktail.cache import DEFAULT_LIMIT_BYTES
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import HOST, with_threads
from jax_cocktail.codegen.program import emit_program
from jax_cocktail.codegen.stamps import StampTable, beside_counters, stamps_of, with_counters
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.target import Target
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.errors import BuildError, PlacementError
from jax_cocktail.placement.limits import in_cluster, limits_for
from jax_cocktail.placement.mesh import UnitMesh, set_resource
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.collapse_axes import collapse_axes
from jax_cocktail.schedule.exact_products import exact_products
from jax_cocktail.schedule.join_products import join_products
from jax_cocktail.schedule.known_lengths import known_lengths
from jax_cocktail.schedule.launch_parameters import launch_parameters
from jax_cocktail.schedule.loops.concat_gates import stack_gates
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.loops.layers import separate_layers
from jax_cocktail.schedule.loops.wavefront.pipeline import pipeline
from jax_cocktail.schedule.order_factors import order_factors
from jax_cocktail.schedule.pack_factors import pack_factors
from jax_cocktail.schedule.share_exponentials import share_exponentials
from jax_cocktail.schedule.simplify.canonicalise import canonicalise
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.sink import sink
from jax_cocktail.schedule.split_reductions import split_reductions
from jax_cocktail.schedule.split_scans import split_scans
from jax_cocktail.schedule.sync.double_buffer import unroll_pairs
from jax_cocktail.schedule.sync.exchange import exchange
from jax_cocktail.schedule.sync.plan_tail import Observer, Planned, TailPass, finish, run_passes
from jax_cocktail.schedule.unit_count import know_units
from jax_cocktail.schedule.vmap.recover import recover_elements
from jax_cocktail.stitch.fuse import stitch
from jax_cocktail.utask.candidate import SINGLE, Candidate
from jax_cocktail.utask.failure import lines_of
from jax_cocktail.utask.ir import UProgram, operators_in
from jax_cocktail.utask.plan import LaunchPlan, MemoryPlan
from jax_cocktail.utask.printer import fingerprint
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.sizes import Parameter

Pass = Callable[[UProgram], UProgram]
_REACHES: Mapping[str, Form] = {  # the form of a program after a pass
    "recover": "placed",  # it gives each unit its share of the batch
    "place": "placed",
    "fuse": "planned",
}


def passes(
    candidate: Candidate, remark: Listener = nobody, machine: Machine = HOST
) -> tuple[tuple[str, Pass], ...]:
    """The passes for a candidate, in order, each by the name of its module. Those that have something to say
    are given `remark`."""
    known = partial(know_units, units=candidate.units)
    table: list[tuple[str, Pass]] = [("unit_count", known)]
    if machine.spec is not None and machine.spec.matrix_float32 == "none":
        table.append(("exact_products", exact_products))
    table += [("simplify", simplify), ("launch_parameters", launch_parameters)]
    if not machine.is_gpu:  # threads have lanes of their own
        table.append(("recover", partial(recover_elements, units=candidate.units, remark=remark)))
    if candidate.distribute:
        table.append(("layers", partial(separate_layers, remark=remark)))
    table.append(("hoist", partial(hoist, remark=remark)))
    if candidate.units > 1:
        table.append(("concat_gates", stack_gates))
    if candidate.pipeline:
        table.append(("pipeline", partial(pipeline, remark=remark)))
    if candidate.distribute:
        table.append(("distribute", partial(distribute, remark=remark)))
    table += [("simplify", simplify), ("canonicalise", canonicalise)]
    if not machine.is_gpu:
        # threads load the elements of short groups side by side, and compute an exponential sooner than they
        # store it
        table += [("collapse_axes", collapse_axes), ("share_exponentials", share_exponentials)]
    table.append(("split_reductions", partial(split_reductions, machine=machine)))
    table.append(("split_scans", partial(split_scans, machine=machine)))
    divide = partial(place, mesh=UnitMesh(units=candidate.units), remark=remark)
    if machine.spec is not None:
        limits = limits_for(machine.spec, machine.target.threads)
        divide = partial(divide, limits=in_cluster(limits, machine.spec) if candidate.cluster else limits)
    table.append(("place", divide))
    several = candidate.units > 1
    if several and machine.is_gpu:
        table.append(("exchange", partial(exchange, remark=remark)))
    if several:
        table.append(("double_buffer", unroll_pairs))
    table.append(("simplify", simplify))
    if several and machine.is_gpu:
        rounds = machine.spec is not None and machine.spec.matrix_float32 == "rounded"
        table += [("order_factors", partial(order_factors, rounds=rounds)), ("join_products", join_products)]
    if not machine.is_gpu:
        table.append(("pack_factors", pack_factors))
    table += [("sink", sink), ("fuse", partial(stitch, threads=machine.target.threads))]
    if machine.is_gpu:
        table.append(("known_lengths", partial(known_lengths, most_loops=machine.target.outline_limit)))
    return tuple(table)


@dataclass(frozen=True, slots=True)
class Emitted:
    """A program ready for the host or device compiler.

    `machine`: what it is for; `fingerprint`: of the translated program and the candidate; `fired`: the passes
    that changed something; `remarks`: what the passes have to say; `seconds`: time that this took; `stamps`:
    those of a traced program; `parameters`: those of the launch.
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

    @property
    def sizes(self) -> tuple[int, ...]:
        """The values of the launch parameters."""
        return tuple(each.value for each in self.parameters)

    @property
    def target(self) -> Target:
        """How the source is spelled."""
        return self.machine.target

    @property
    def mesh(self) -> UnitMesh:
        """The units that a call asks for."""
        return set_resource(self.plan, self.candidate.units)


@dataclass(frozen=True, slots=True)
class Executable:
    """A built program as its calls need it.

    `binary`: shared object with the entry `ck_program`; `digest`: its sha256; `path`: of the built program;
    `aliases`: (operand, result) pairs that share memory; `failures`: the messages of its error codes;
    `launch`: how a GPU runs it, None for the CPU; `stamps`: those of a traced program; `own_bytes`: memory of
    each unit; `sizes`: the launch parameters.
    """

    binary: bytes
    digest: str
    path: str
    aliases: tuple[tuple[int, int], ...]
    workspace_bytes: int
    failures: tuple[str, ...]
    launch: LaunchPlan | None = None
    stamps: StampTable | None = None
    own_bytes: int = 0
    sizes: tuple[int, ...] = ()


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
        """What a call needs to know."""
        failures = lines_of(operators_in(self.emitted.program.entry))
        place = self.binary, self.digest, self.path
        sizes = self.aliases, self.workspace_bytes, failures
        given = self.emitted.plan.own_bytes, self.emitted.sizes
        return Executable(*place, *sizes, self.launch, self.emitted.stamps, *given)

    @property
    def workspace_bytes(self) -> int:
        return self.emitted.plan.workspace_bytes if self.launch is None else self.launch.workspace_bytes

    @property
    def aliases(self) -> tuple[tuple[int, int], ...]:
        return self.emitted.plan.aliases

    @property
    def source(self) -> str:
        return self.emitted.source

    @property
    def fingerprint(self) -> str:
        return self.emitted.fingerprint


def identity(program: UProgram, candidate: Candidate) -> str:
    """The fingerprint (sha256, hex) of a program compiled in the candidate's way."""
    return hashlib.sha256(f"{fingerprint(program)}\n{candidate.text}".encode()).hexdigest()


def transform(
    program: UProgram,
    observers: Sequence[Observer] = (),
    candidate: Candidate = SINGLE,
    remark: Listener = nobody,
    machine: Machine = HOST,
) -> UProgram:
    """Runs all passes up to `fuse` on a translated program."""
    verify(program, "translated")
    table = [(name, _on_programs(run)) for name, run in passes(candidate, remark, machine)]
    return run_passes(Planned(program), table, _verified(program, "translated", observers)).program


def _on_programs(run: Pass) -> TailPass:
    return lambda planned: Planned(run(planned.program))


def _verified(program: UProgram, form: Form, observers: Sequence[Observer]) -> Observer:
    """An observer that verifies whatever a pass makes of a program, and then tells others."""
    known = program, form

    def observe(name: str, planned: Planned, seconds: float) -> None:
        nonlocal known
        before, known = known, (planned.program, _REACHES.get(name, known[1]))
        if known[0] is not before[0] or known[1] != before[1]:
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
) -> Emitted:
    """From a translated program to source text. Needs no compiler and no device.

    A division over units whose parts cannot be written in place is given up, with a remark. `trace`: the
    level of the stamps of a traced program (see `codegen.stamps`); 0: it is not traced.
    """
    machine = with_threads(machine, candidate.threads)
    with uncollected():
        try:
            return _emit(program, machine, observers, candidate, trace)
        except PlacementError as error:
            emitted = _emit(program, machine, observers, replace(candidate, units=1), trace)
            note = Remark("place", False, str(error))
            return replace(emitted, candidate=candidate, remarks=(*emitted.remarks, note))


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspends the cyclic garbage collector: capture and passes make many values, which hardly ever form
    cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def schedule(
    stitched: UProgram, machine: Machine, cluster: int = 0, observers: Sequence[Observer] = ()
) -> Planned:
    """The program with its memory and its barriers. `cluster`: of so many units; 0: they need not be one."""
    return finish(stitched, machine, cluster, _verified(stitched, "planned", observers))


def _emit(
    program: UProgram, machine: Machine, observers: Sequence[Observer], candidate: Candidate, trace: int
) -> Emitted:
    start = time.perf_counter()
    made, remarks = [("translate", program)], list[Remark]()

    def keep(name: str, after: Planned, _: float) -> None:
        made.append((name, after.program))

    cluster = candidate.units if candidate.cluster else 0
    stitched = transform(program, (keep, *observers), candidate, remarks.append, machine)
    fired = tuple(dict.fromkeys(name for (_, old), (name, new) in pairwise(made) if new is not old))
    planned = schedule(stitched, beside_counters(machine) if trace else machine, cluster, observers)
    final, plan, stamps = planned.program, planned.plan, None
    if trace:
        plan = with_counters(plan, machine)
        stamps = stamps_of(final, plan, machine, trace)
    text = emit_program(final, plan, machine, stamps=stamps)
    key = identity(program, candidate)
    seconds = time.perf_counter() - start
    return Emitted(
        *(final, plan, text.source, machine, candidate, key, fired),
        remarks=tuple(dict.fromkeys(remarks)),
        seconds=seconds,
        stamps=stamps,
        parameters=text.parameters,
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


def _build_for_device(
    emitted: Emitted, spec: DeviceSpec, cache_limit_bytes: int, compiler: DeviceToolchain | None
) -> Artifact:
    """Assumes that the registers suffice, asks the compiler, and builds in other ways if they do not
    (AStitch, ASPLOS'22, section 4.4). The program that spills least is taken, and told about."""
    toolchain = compiler or device_toolchain(spec.arch)
    built = build_device_program(emitted.source, toolchain, spec, cache_limit_bytes=cache_limit_bytes)
    seconds, remarks = emitted.seconds + built.seconds, list(emitted.remarks)
    for way, machine in _other_ways(emitted.machine) if built.spills else ():
        stamps = _stamps_for(emitted, machine)
        text = emit_program(emitted.program, emitted.plan, machine, stamps=stamps)
        other = build_device_program(text.source, toolchain, spec, cache_limit_bytes=cache_limit_bytes)
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
    launch = launch_plan(emitted.program, emitted.plan, emitted.machine, emitted.sizes)
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
