"""Checks the passes on a translated program with interpreters: needs no compiler, no device and no jax."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from unittest import mock

import numpy as np

from jax_cocktail import passes as pass_list
from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.compiler import Emitted, emit
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.tuning import PROGRAM, BatchTuning, LoopTuning
from jax_cocktail.passes import OPTIONAL
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.loops import concat_gates
from jax_cocktail.schedule.loops.distribution import distribute as loops
from jax_cocktail.schedule.loops.unroll import WHOLE
from jax_cocktail.schedule.loops.wavefront import pipeline as wavefronts
from jax_cocktail.schedule.memory import copies, sharing
from jax_cocktail.schedule.products.pack_factors import Packing
from jax_cocktail.schedule.vmap.recover import recover
from jax_cocktail.utask.candidate import OFF, SINGLE, Candidate, way
from jax_cocktail.utask.ir import UProgram, operators_in
from tests.generator.draw import FLOATS, Draw
from tests.null.grids import EagerGrids
from tests.oracle.interpreter.run import run as interpret
from tests.oracle.mesh_interpreter import run_mesh, simulate
from tests.oracle.threads import watching

# Work of any size is divided, and loops of any length: the programs are small.
_SMALL = Limits(flops=4, bytes=8, least_part=1, light=2, lanes=1)
_LIMITS = (_SMALL, EagerGrids(), EagerGrids(last=True))
_BATCH = BatchTuning(slots=3, rows=2, rounds=2, element_bytes=64, branch_flops=8.0, parallel_flops=1.0)
_LOOPS = (
    LoopTuning(flops=0, trips=2, strip_bytes=1 << 20, chunk=2),
    LoopTuning(flops=0, trips=2, strip_bytes=64, chunk=4),
)
H200_MACHINE = machine_of(H200)


@dataclass(frozen=True, slots=True)
class Task:
    """A translated program with arguments, and what it has to compute.

    `exact`: of every result, whether all bits count; `tolerance`: of the others, see `Program.tolerance`.
    """

    seed: int
    program: UProgram
    arguments: tuple[np.ndarray, ...]
    exact: tuple[bool, ...]
    tolerance: float


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to compile: a machine, a candidate, and limits; None stands for the product's own. `shares`:
    units share arrays of any size outside of parallel loops, pack them, and overlap them where they may."""

    machine: Machine = HOST
    candidate: Candidate = SINGLE
    limits: Limits | None = None
    loops: LoopTuning | None = None
    batch: BatchTuning | None = None
    shares: bool = False

    def __str__(self) -> str:
        eager = " ".join(name for name in ("limits", "loops", "batch", "shares") if getattr(self, name))
        return f"{self.machine.platform}, {self.candidate.name}, eager {eager or 'nothing'}"

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The compiler with these limits, as long as the block runs."""
        changes: dict[str, object] = {}
        if self.limits is not None:
            changes |= {"place": partial(place, limits=self.limits), "limits_for": lambda *_: self.limits}
        if self.loops is not None:
            changes["distribute"] = partial(loops.distribute, limits=self.loops)
            changes["pipeline"] = partial(wavefronts.pipeline, limits=self.loops)
        if self.batch is not None:
            changes["recover"] = partial(recover, limits=self.batch)
        of, reads = Packing.of, Packing.reads if self.limits is None else 2
        packs = mock.patch.object(Packing, "of", lambda machine: replace(of(machine), reads=reads))
        with mock.patch.dict(vars(pass_list), changes), packs, self._crowded():
            yield

    @contextmanager
    def _crowded(self) -> Iterator[None]:
        if not self.shares:
            yield
            return
        tuning = replace(PROGRAM, replicated_bytes=0, updated_bytes=0)
        with ExitStack() as stack:
            for module in (sharing, copies, concat_gates, sys.modules[place.__module__]):
                stack.enter_context(mock.patch.object(module, "PROGRAM", tuning))
            stack.enter_context(mock.patch.object(sharing.Sharing.__init__, "__defaults__", (0,)))
            yield


def variants(seed: int) -> tuple[Variant, ...]:
    """How a program can be compiled: for one unit, for several, and for a GPU."""
    draw = Draw(seed, 3)

    def several(most: int, machine: Machine) -> Variant:
        units, pipeline, cluster = 2 + draw.below(most), draw.chance(0.4), machine.is_gpu and draw.chance(0.4)
        candidate = way(units, distribute=draw.chance(0.85), pipeline=pipeline, cluster=cluster)
        limits, divided = draw.of(_LIMITS), draw.of(_LOOPS)
        return Variant(machine, candidate, limits, divided, _BATCH, draw.chance(0.5))

    single = Variant(loops=draw.of(_LOOPS), batch=_BATCH) if draw.chance(0.6) else Variant()
    found = single, several(3, HOST), several(4, H200_MACHINE)
    return tuple(replace(each, candidate=each.candidate.taking(_choices(draw))) for each in found)


def _choices(draw: Draw) -> dict[str, str]:
    """Alternatives of a few choices: one of three passes in ten is left out, and loops are unrolled."""
    if draw.chance(0.5):
        return {}
    factors = {f"unroll.{n}": draw.of(("1", "2", "4", "8", WHOLE)) for n in range(1, 5)}
    passes = sorted(OPTIONAL - {"distribute", "pipeline", "unroll"})
    return factors | {name: OFF for name in passes if draw.chance(0.1)}


def variant(task: Task) -> Variant:
    """How a program is compiled: in one of its ways, which take turns. More programs notice more than more
    ways for each. A GPU has no template for what calls LAPACK."""
    calls = any(operator.facts.largest == 0 for operator in operators_in(task.program.entry))
    ways = [way for way in variants(task.seed) if not (calls and way.machine.is_gpu)]
    return ways[task.seed % len(ways)]


def check(task: Task) -> str:
    """What goes wrong in the passes of a program, or ""."""
    way = variant(task)
    try:
        expected = interpret(task.program, task.arguments)
        found = difference(task, results(task, emitted(task, way)), expected)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    return f"{way}: {found}" if found else ""


def emitted(task: Task, variant: Variant) -> Emitted:
    """The program with its plan and its text."""
    with variant.installed():
        return emit(task.program, variant.machine, candidate=variant.candidate)


def results(task: Task, emitted: Emitted) -> list[np.ndarray]:
    """Those in the memory of the plan, by as many units as it has. Raises what the oracles find."""
    program, plan = emitted.program, emitted.plan
    order = np.random.default_rng(task.seed)
    if not emitted.machine.is_gpu:
        return run_mesh(program, plan, task.arguments, plan.most_units, order=order)
    watched = partial(simulate, order=order, raises=True)
    with watching() as watch:
        ran = watched(program, plan, task.arguments, plan.most_units, observe=watch.statement)
    if watch.unordered:
        raise RuntimeError(f"threads of a block race: {watch.unordered[0]}")
    return ran.results


def difference(task: Task, found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str:
    """What differs between results, or ""."""
    for number, (x, y, exact) in enumerate(zip(found, expected, task.exact, strict=True)):
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"result {number} is {x.dtype}{x.shape} instead of {y.dtype}{y.shape}"
        wrong = ~_agree(x, y, 0.0 if exact else task.tolerance)
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            kind = "exact" if exact else "inexact"
            return f"result {number} ({kind}) at {place}: {x[place]} instead of {y[place]}"
    return ""


def _agree(x: np.ndarray, y: np.ndarray, tolerance: float) -> np.ndarray:
    if str(x.dtype) not in FLOATS:
        return x == y
    a, b = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= tolerance * np.maximum(np.abs(b), 1)
    return (a == b) | (np.isnan(a) & np.isnan(b)) | near
