"""The whole compiler on one page.

    trace (JAX) -> capture -> translate
      -> [ inline -> simplify -> layers -> hoist -> distribute -> canonicalise -> stitch
           -> plan memory -> emit -> build ]

The part in brackets is here: from a uTask program to a binary. A pass is a pure function from program to
program that returns its argument when it has nothing to do; `passes` says which there are for a candidate
(what the policy decided, see `schedule.policy`). This module owns the only loop over them: it calls the pass,
verifies the result and tells the observers. Dumps, timings and reports are observers; passes print nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from jax_cocktail.build import build_program, host_toolchain
from jax_cocktail.cache import DEFAULT_LIMIT_BYTES
from jax_cocktail.codegen.cpu import CPU
from jax_cocktail.codegen.program import emit_program
from jax_cocktail.codegen.target import Target
from jax_cocktail.errors import PlacementError
from jax_cocktail.placement.mesh import UnitMesh, set_resource
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.barriers import synchronise
from jax_cocktail.schedule.canonicalise import canonicalise
from jax_cocktail.schedule.copies import explicit_copies
from jax_cocktail.schedule.distribute import distribute
from jax_cocktail.schedule.hoist import hoist
from jax_cocktail.schedule.inline import inline
from jax_cocktail.schedule.lanes import recover_lanes
from jax_cocktail.schedule.layers import separate_layers
from jax_cocktail.schedule.memory_plan import plan_memory
from jax_cocktail.schedule.simplify import simplify
from jax_cocktail.schedule.unroll import unroll_pairs
from jax_cocktail.stitch.fuse import stitch
from jax_cocktail.utask.candidate import SINGLE, Candidate
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.printer import fingerprint
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.verifier import verify

Pass = Callable[[UProgram], UProgram]
Observer = Callable[[str, UProgram, float], None]  # (pass, program after it, seconds)


def passes(candidate: Candidate, remark: Listener = nobody) -> tuple[tuple[str, Pass], ...]:
    """The passes for a candidate, in order. Those that have something to say are given `remark`."""
    table: list[tuple[str, Pass]] = [("inline", inline), ("simplify", simplify)]
    table.append(("lanes", partial(recover_lanes, units=candidate.units, remark=remark)))
    if candidate.distribute:
        table.append(("layers", partial(separate_layers, remark=remark)))
    table.append(("hoist", partial(hoist, remark=remark)))
    if candidate.distribute:
        table.append(("distribute", partial(distribute, remark=remark)))
    table += [("tidy", simplify), ("canonicalise", canonicalise)]
    if candidate.units > 1:
        mesh = UnitMesh(units=candidate.units)
        table += [("place", partial(place, mesh=mesh, remark=remark))]
        table += [("unroll", unroll_pairs), ("tidy parts", simplify)]
    return (*table, ("stitch", stitch))


@dataclass(frozen=True, slots=True)
class Emitted:
    """A program ready for the host or device compiler.

    `fingerprint`: of the translated program and the candidate; `fired`: the passes that changed something;
    `remarks`: what the passes have to say; `seconds`: time that this took.
    """

    program: UProgram
    plan: MemoryPlan
    source: str
    candidate: Candidate = SINGLE
    fingerprint: str = ""
    fired: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    seconds: float = 0.0

    @property
    def mesh(self) -> UnitMesh:
        """The units that a call asks for."""
        return set_resource(self.plan, self.candidate.units)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built program.

    `binary`: shared object with the entry `ck_program`; `digest`: its sha256; `aliases`: (operand, result)
    pairs that share memory; `seconds`: time spent in our passes and the host compiler; `cached`: the latter
    did not run; `path`: of the built program.
    """

    binary: bytes
    digest: str
    emitted: Emitted
    seconds: float
    cached: bool
    path: str

    @property
    def workspace_bytes(self) -> int:
        return self.emitted.plan.workspace_bytes

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
) -> UProgram:
    """Runs all passes on a translated program."""
    verify(program)
    for name, run in passes(candidate, remark):
        start = time.perf_counter()
        after = run(program)
        if after is not program:
            verify(after)
        program = after
        for observer in observers:
            observer(name, program, time.perf_counter() - start)
    return program


def emit(
    program: UProgram,
    target: Target = CPU,
    observers: Sequence[Observer] = (),
    candidate: Candidate = SINGLE,
) -> Emitted:
    """From a translated program to source text. Needs no compiler and no device.

    A division over units whose parts cannot be written in place is given up, with a remark.
    """
    try:
        return _emit(program, target, observers, candidate)
    except PlacementError as error:
        emitted = _emit(program, target, observers, replace(candidate, place="none"))
        note = Remark("place", False, str(error))
        return replace(emitted, candidate=candidate, remarks=(*emitted.remarks, note))


def _emit(program: UProgram, target: Target, observers: Sequence[Observer], candidate: Candidate) -> Emitted:
    start = time.perf_counter()
    stages, remarks = [("translate", program)], list[Remark]()

    def keep(name: str, after: UProgram, _: float) -> None:
        stages.append((name, after))

    stitched = transform(program, (keep, *observers), candidate, remarks.append)
    fired = tuple(name for (_, old), (name, new) in pairwise(stages) if new is not old)
    scheduled = explicit_copies(stitched)
    plan = plan_memory(scheduled)
    final = synchronise(scheduled, plan)
    source = emit_program(final, plan, target)
    key = identity(program, candidate)
    seconds = time.perf_counter() - start
    return Emitted(final, plan, source, candidate, key, fired, tuple(dict.fromkeys(remarks)), seconds)


def build(emitted: Emitted, *, cache_limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Artifact:
    """From source text to a binary, through the cache on disk. Raises BuildError."""
    built = build_program(emitted.source, host_toolchain(), cache_limit_bytes=cache_limit_bytes)
    return Artifact(
        binary=built.binary,
        digest=built.digest,
        emitted=emitted,
        seconds=emitted.seconds + built.seconds,
        cached=built.cached,
        path=built.path,
    )


def compile_program(
    program: UProgram,
    observers: Sequence[Observer] = (),
    *,
    candidate: Candidate = SINGLE,
    cache_limit_bytes: int = DEFAULT_LIMIT_BYTES,
) -> Artifact:
    """From a translated program to a binary, through the cache on disk. Raises BuildError."""
    return build(emit(program, CPU, observers, candidate), cache_limit_bytes=cache_limit_bytes)
