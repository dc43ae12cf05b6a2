"""A program of ours on a card without XLA: loaded and launched as the handler would, checked and timed."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jax_cocktail.runtime.cuda.card import Card, CudaError, Launch
from jax_cocktail.utask.plan import LaunchPlan

GRAPH_SECONDS = 4e-3  # a graph holds so much work, so that its own launch does not count
MOST_IN_A_GRAPH = 64

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One launch. `operands`: on the host; `results`: shapes and dtypes, the workspace left out; `aliases`:
    operand -> result that shares its memory."""

    binary: bytes
    plan: LaunchPlan
    operands: tuple[Array, ...]
    results: tuple[Any, ...]
    aliases: Mapping[int, int] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of the binary."""
        return hashlib.sha256(self.binary).hexdigest()


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Median seconds of a launch in a graph: of the kernel alone, and with the clearing of the workspace that
    a call pays as well (`call_seconds`); which kernel of the program, and on how many blocks."""

    seconds: float
    call_seconds: float
    kernel: str
    grid: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A call on a card. `kept`: operands that the kernel overwrites, to be copied to `given` before every
    launch; `cleared`: bytes of the workspace that are zero then."""

    card: Card
    call: Call
    kernel: str
    launch: Launch
    kept: Mapping[int, int]
    given: tuple[int, ...]
    results: tuple[int, ...]
    workspace: int
    cleared: int

    def copy(self) -> None:
        """Enqueues copies of the operands that the kernel overwrites, which a call does not need."""
        for k, address in self.kept.items():
            self.card.copy(self.given[k], address, self.call.operands[k].nbytes)

    def restore(self) -> None:
        """Enqueues everything that comes before a launch."""
        self.copy()
        if self.cleared:
            self.card.fill(self.workspace, 0, self.cleared)

    def enqueue(self) -> None:
        """Enqueues a launch and what comes before it."""
        self.restore()
        self.card.launch(self.launch)

    def run(self) -> list[Array]:
        """The results of one call. Raises CudaError."""
        self.enqueue()
        return self.downloaded()

    def downloaded(self) -> list[Array]:
        """The results of the last call. Raises CudaError."""
        self.card.wait()
        empty = (np.empty(r.shape, r.dtype) for r in self.call.results)
        return [self.card.download(at, array) for at, array in zip(self.results, empty, strict=True)]

    def time(self) -> KernelTime:
        """Times launches in graphs, without the share of what comes before each. Raises CudaError."""
        self.enqueue()
        once = self.card.between_events(self.enqueue)
        number = min(max(math.ceil(GRAPH_SECONDS / max(once, 1e-9)), 1), MOST_IN_A_GRAPH)

        def seconds(work: Callable[[], None], wanted: bool = True) -> float:
            return self.card.graph_seconds(work, number, statistics.median) if wanted else 0.0

        copies = seconds(self.copy, bool(self.kept))
        before = seconds(self.restore) if self.cleared else copies
        whole = seconds(self.enqueue)
        return KernelTime(whole - before, whole - copies, self.kernel, self.launch.grid)


def load(card: Card, call: Call) -> Loaded:
    """Loads a program and uploads its operands. Raises CudaError."""
    plan = call.plan
    kernel, launch = _choose(card, card.load(call.binary), plan)
    uploaded = [card.upload(operand) for operand in call.operands]
    kept = {k: uploaded[k] for k in call.aliases}
    given = [
        card.allocate(operand.nbytes) if k in kept else uploaded[k] for k, operand in enumerate(call.operands)
    ]
    shared_with = {result: given[operand] for operand, result in call.aliases.items()}
    sizes = [int(np.prod(r.shape)) * np.dtype(r.dtype).itemsize for r in call.results]
    results = tuple(shared_with.get(k) or card.allocate(size) for k, size in enumerate(sizes))
    workspace = card.allocate(plan.workspace_bytes)
    launch = replace(launch, pointers=(*given, *results, workspace, 0, *plan.sizes))
    cleared = plan.header_bytes if launch.cluster == 1 else 0
    return Loaded(card, call, kernel, launch, kept, tuple(given), results, workspace, cleared)


def _choose(card: Card, module: int, plan: LaunchPlan) -> tuple[str, Launch]:
    """The name of the kernel, and its launch without pointers: by what fits, as `handler_programs.h` chooses
    on a card that is all there."""
    units = plan.resident_units or plan.most_units, plan.portable_units or plan.most_units
    kernels = (
        ("ck_resident", plan.resident_shared_bytes, units[0], plan.most_units, plan.cluster),
        ("ck_portable", plan.portable_shared_bytes, 1, units[1], False),
    )
    for name, shared, least, most, near in kernels:
        if shared > card.facts.attributes["shared_bytes"]:
            continue
        function = card.function(module, name, shared)
        cluster = plan.most_units if near else 1
        launch = Launch(function, plan.most_units, plan.threads, shared, (), cluster=cluster)
        if near:
            fit = plan.most_units if card.fits_cluster(launch) else 0
        else:
            fit = card.co_resident(function, plan.threads, shared)
        if not plan.cooperative and fit:
            fit = plan.most_units
        if fit >= least:
            grid = min(fit, most)
            alone = plan.cooperative and grid > 1 and not near
            return name, replace(launch, grid=grid, cooperative=alone, cluster=grid if near else 1)
    raise CudaError(f"no block of {plan.threads} threads fits this card")
