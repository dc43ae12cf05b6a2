"""A program of ours on a card without XLA: loaded and launched as the handler would, checked and timed."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """Median seconds of a launch in a graph; which kernel of the program, and on how many blocks."""

    seconds: float
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

    def restore(self) -> None:
        """Enqueues what comes before a launch."""
        for k, address in self.kept.items():
            self.card.copy(self.given[k], address, self.call.operands[k].nbytes)
        if self.cleared:
            self.card.fill(self.workspace, 0, self.cleared)

    def enqueue(self) -> None:
        """Enqueues a whole call."""
        self.restore()
        self.card.launch(self.launch)

    def run(self) -> list[Array]:
        """The results of one call. Raises CudaError."""
        self.enqueue()
        self.card.wait()
        empty = (np.empty(r.shape, r.dtype) for r in self.call.results)
        return [self.card.download(at, array) for at, array in zip(self.results, empty, strict=True)]

    def time(self) -> KernelTime:
        """Times calls in a graph, without the share of what comes before each launch. Raises CudaError."""
        self.enqueue()
        once = self.card.between_events(self.enqueue)
        number = min(max(math.ceil(GRAPH_SECONDS / max(once, 1e-9)), 1), MOST_IN_A_GRAPH)
        seconds = self.card.graph_seconds(self.enqueue, number, statistics.median)
        if self.kept or self.cleared:
            seconds -= self.card.graph_seconds(self.restore, number, statistics.median)
        return KernelTime(seconds, self.kernel, self.launch.grid)


def load(card: Card, call: Call) -> Loaded:
    """Loads a program and uploads its operands. Raises CudaError."""
    plan = call.plan
    module = card.load(call.binary)
    kernel, function, grid, shared, cluster = _choose(card, module, plan)
    uploaded = [card.upload(operand) for operand in call.operands]
    kept = {k: uploaded[k] for k in call.aliases}
    given = [
        card.allocate(operand.nbytes) if k in kept else uploaded[k] for k, operand in enumerate(call.operands)
    ]
    shared_with = {result: given[operand] for operand, result in call.aliases.items()}
    sizes = [int(np.prod(r.shape)) * np.dtype(r.dtype).itemsize for r in call.results]
    results = tuple(shared_with.get(k) or card.allocate(size) for k, size in enumerate(sizes))
    workspace = card.allocate(plan.workspace_bytes)
    cooperative = plan.cooperative and grid > 1 and cluster == 1
    pointers = (*given, *results, workspace, 0, *plan.sizes)
    launch = Launch(function, grid, plan.threads, shared, pointers, cooperative=cooperative, cluster=cluster)
    cleared = plan.header_bytes if cluster == 1 else 0
    return Loaded(card, call, kernel, launch, kept, tuple(given), results, workspace, cleared)


def _choose(card: Card, module: int, plan: LaunchPlan) -> tuple[str, int, int, int, int]:
    """Name, kernel, grid, shared memory and blocks of a cluster: by what fits, as `handler_programs.h`
    chooses on a card that is all there."""
    kernels = (
        ("ck_resident", plan.resident_shared_bytes, plan.resident_units or plan.most_units, plan.most_units),
        ("ck_portable", plan.portable_shared_bytes, 1, plan.portable_units or plan.most_units),
    )
    for name, shared, least, most in kernels:
        near = plan.cluster and name == "ck_resident"
        if shared > card.facts.attributes["shared_bytes"] or (near and card.facts.attributes["major"] < 9):
            continue
        function = card.function(module, name, shared)
        fit = card.co_resident(function, plan.threads, shared)
        if not plan.cooperative and fit:
            fit = plan.most_units
        if fit >= least:
            return name, function, min(fit, most), shared, min(fit, most) if near else 1
    raise CudaError(f"no block of {plan.threads} threads fits this card")
