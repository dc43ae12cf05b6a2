"""The whole compiler on one page.

    trace (JAX) -> capture -> translate
      -> [ simplify -> hoist -> distribute -> canonicalise -> stitch -> plan memory -> emit -> build ]

The part in brackets is here: from a uTask program to a binary. A pass is a pure function from program to
program that returns its argument when it has nothing to do; this module owns the only loop over them: it
calls the pass, verifies the result and tells the observers. Dumps, timings and reports are observers; passes
print nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jax_cocktail.build import build_program, host_toolchain
from jax_cocktail.cache import DEFAULT_LIMIT_BYTES
from jax_cocktail.codegen.cpu import CPU
from jax_cocktail.codegen.program import emit_program
from jax_cocktail.codegen.target import Target
from jax_cocktail.schedule.canonicalise import canonicalise
from jax_cocktail.schedule.distribute import distribute
from jax_cocktail.schedule.hoist import hoist
from jax_cocktail.schedule.memory_plan import plan_memory
from jax_cocktail.schedule.simplify import simplify
from jax_cocktail.stitch.fuse import stitch
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.printer import fingerprint
from jax_cocktail.utask.verifier import verify

Pass = Callable[[UProgram], UProgram]
Observer = Callable[[str, UProgram, float], None]  # (pass, program after it, seconds)

PASSES: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify),
    ("hoist", hoist),
    ("distribute", distribute),
    ("tidy", simplify),
    ("canonicalise", canonicalise),
    ("stitch", stitch),
)


@dataclass(frozen=True, slots=True)
class Emitted:
    """A program ready for the host or device compiler."""

    program: UProgram
    plan: MemoryPlan
    source: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built program.

    `binary`: shared object with the entry `ck_program`; `digest`: its sha256; `aliases`: (operand, result)
    pairs that share memory; `seconds`: time spent in the compiler pipeline; `cached`: no compiler ran.
    """

    binary: bytes
    digest: str
    workspace_bytes: int
    aliases: tuple[tuple[int, int], ...]
    source: str
    fingerprint: str
    seconds: float
    cached: bool
    path: str


def transform(program: UProgram, observers: Sequence[Observer] = ()) -> UProgram:
    """Runs all passes on a translated program."""
    verify(program)
    for name, run in PASSES:
        start = time.perf_counter()
        after = run(program)
        if after is not program:
            verify(after)
        program = after
        for observer in observers:
            observer(name, program, time.perf_counter() - start)
    return program


def emit(program: UProgram, target: Target = CPU, observers: Sequence[Observer] = ()) -> Emitted:
    """From a translated program to source text. Needs no compiler and no device."""
    stitched = transform(program, observers)
    plan = plan_memory(stitched)
    return Emitted(stitched, plan, emit_program(stitched, plan, target))


def compile_program(
    program: UProgram, observers: Sequence[Observer] = (), *, cache_limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Artifact:
    """From a translated program to a binary, through the cache on disk. Raises BuildError."""
    start = time.perf_counter()
    key = fingerprint(program)
    emitted = emit(program, CPU, observers)
    built = build_program(emitted.source, host_toolchain(), cache_limit_bytes=cache_limit_bytes)
    return Artifact(
        binary=built.binary,
        digest=built.digest,
        workspace_bytes=emitted.plan.workspace_bytes,
        aliases=emitted.plan.aliases,
        source=emitted.source,
        fingerprint=key,
        seconds=time.perf_counter() - start,
        cached=built.cached,
        path=built.path,
    )
