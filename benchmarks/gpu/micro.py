"""What a card takes for what programs are made of: launches, barriers, hops, and bytes of every level.

Each figure is a difference of two launches with different numbers of rounds, so that the launch cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.gpu import kernels
from benchmarks.gpu.driver import Card, CudaError, Launch, spec_of
from benchmarks.gpu.kernels import Kernel, Run
from jax_cocktail.build_device import build_device_program, device_toolchain
from jax_cocktail.device import DeviceSpec

L2_BYTES = 16 << 20  # a third of the smallest level that such cards have; no unit's first level holds it
MEMORY_BYTES = 1 << 30
IN_A_GRAPH = 200
PLAUSIBLE = 20.0  # a figure this far from that of the nearest known card is not believed

Figures = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A run on the card. `workspace`: address; `launch`: with that many rounds."""

    card: Card
    run: Run
    launch: Launch
    numbers: int
    result: int
    workspace: int
    scale: float

    def seconds(self, rounds: int, times: int = 5) -> float:
        """The median time of a launch with so many rounds, its result checked."""
        run = replace(self.run, numbers=(rounds, *self.run.numbers[1:]))
        values = np.asarray(run.numbers, np.int64)
        self.card.library("cuMemcpyHtoD_v2", self.numbers, values.ctypes.data, values.nbytes)
        header = run.kernel.header_bytes
        found = self.card.seconds(self.launch, lambda: self.card.fill(self.workspace, 0, header), times)
        problem = run.problem(self.card.download(self.result, run.result()))
        if problem:
            raise CudaError(problem)
        return found

    def each(self, few: int, many: int) -> float:
        """Seconds of one round."""
        few, many = (max(int(n * self.scale), k) for n, k in ((few, 1), (many, 3)))
        return (self.seconds(many) - self.seconds(few)) / (many - few)


class Bench:
    """Kernels on a card, compiled when first asked for. `scale`: of rounds and sizes."""

    def __init__(self, card: Card, scale: float = 1.0) -> None:
        self.card, self.scale = card, scale
        self.units = card.facts.attributes["units"]
        self._functions: dict[Kernel, int] = {}

    def prepare(self, run: Run) -> _Prepared:
        """Memory for a run, and how it is launched."""
        card, kernel = self.card, run.kernel
        function = self._function(kernel)
        if run.units > (most := card.co_resident(function, kernel.threads, kernel.scratch)):
            raise CudaError(f"{run.units} blocks of {kernel.name} do not fit: at most {most}")
        numbers = card.upload(np.asarray(run.numbers, np.int64))
        data, result = card.upload(run.data), card.upload(run.result())
        workspace = card.allocate(kernel.workspace_bytes)
        launch = Launch(
            function,
            run.units,
            kernel.threads,
            kernel.scratch,
            (numbers, data, result, workspace, 0),
            cooperative=run.units > 1 and run.cluster == 1,
            cluster=run.cluster,
        )
        return _Prepared(card, run, launch, numbers, result, workspace, self.scale)

    def _build(self, kernel: Kernel) -> Any:
        arch = self.card.facts.arch
        return build_device_program(kernel.text, device_toolchain(arch), arch)

    def compile(self, kernels: Sequence[Kernel]) -> None:
        """Into the cache, several at once; what fails fails again, and is told, when it is asked for."""
        with ThreadPoolExecutor(8) as threads:
            for future in [threads.submit(self._build, kernel) for kernel in kernels]:
                future.exception()

    def _function(self, kernel: Kernel) -> int:
        if kernel not in self._functions:
            built = self._build(kernel)
            module = self.card.load(built.binary)
            self._functions[kernel] = self.card.function(module, "ck_portable", kernel.scratch)
        return self._functions[kernel]

    def release(self) -> None:
        """Frees what runs took."""
        self._functions.clear()
        self.card.release()


_NO_DATA = np.zeros(4, np.float32)


def barriers(bench: Bench) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Seconds of a barrier by its number of blocks, of a cluster's barrier by its size."""
    units = bench.units
    grids = sorted({g for g in (1, 2, 8, 16, 32, 64, units // 2, units, 2 * units) if g})

    def barrier(grid: int) -> dict[str, Any]:
        bench.prepare(Run(kernels.BARRIER_CHECKED, grid, (1,), _NO_DATA)).seconds(100, times=1)
        return {"seconds": bench.prepare(Run(kernels.BARRIER, grid, (1,), _NO_DATA)).each(100, 5100)}

    def cluster(size: int, grid: int) -> dict[str, Any]:
        run = Run(kernels.CLUSTER, grid, (1,), _NO_DATA, cluster=size)
        return {"seconds": bench.prepare(run).each(100, 5100)}

    for grid in grids:
        yield f"barrier, {grid} blocks", lambda grid=grid: barrier(grid)
    if bench.card.facts.attributes["major"] >= 9:
        for size in (8, 16):
            for grid in (size, 64):
                name = f"cluster barrier of {size}, {grid} blocks"
                yield name, lambda size=size, grid=grid: cluster(size, grid)


def hops(bench: Bench) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Seconds from one block to another."""

    def hop(kernel: Kernel, words: int) -> dict[str, Any]:
        run = Run(kernel, 2, (1, words), _NO_DATA)
        return {"seconds": bench.prepare(run).each(100, 4100) / 2}

    def gather(units: int) -> dict[str, Any]:
        run = Run(kernels.GATHER, units, (1, kernels.WORDS), _NO_DATA)
        return {"seconds": bench.prepare(run).each(100, 4100)}

    yield "hop, flag", lambda: hop(kernels.FLAG, 0)
    yield "hop, tagged, 1 word", lambda: hop(kernels.TAGGED, 1)
    yield f"hop, tagged, {kernels.WORDS} words", lambda: hop(kernels.TAGGED, kernels.WORDS)
    for units in (16, bench.units):
        name = f"tagged exchange of {kernels.WORDS} words, {units} blocks"
        yield name, lambda units=units: gather(units)


def launches(bench: Bench) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Seconds of a kernel that does nothing."""

    def prepared(units: int) -> _Prepared:
        return bench.prepare(Run(kernels.EMPTY, units, (0,), _NO_DATA))

    def plain(units: int) -> Launch:
        return replace(prepared(units).launch, cooperative=False)

    units = bench.units
    yield "empty launch between events", lambda: {"seconds": prepared(units).seconds(0, times=20)}
    yield "launch in a graph", lambda: {"seconds": bench.card.graph_seconds(plain(units), IN_A_GRAPH)}
    yield (
        "cooperative launch in a graph",
        lambda: {"seconds": bench.card.graph_seconds(prepared(units).launch, IN_A_GRAPH)},
    )
    yield "launch in a stream", lambda: {"seconds": bench.card.many_seconds(plain(units), IN_A_GRAPH)}


def rates(bench: Bench) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Bytes and operations a second, by all units together."""
    units, threads = bench.units, kernels.READ.threads

    def read(size: int, few: int, many: int) -> dict[str, Any]:
        step = units * threads * 4
        groups = max(int(size * bench.scale) // 16 // step, 1) * step
        data = kernels.pattern(4 * groups)
        prepared = bench.prepare(Run(kernels.READ, units, (1, groups), data))
        return {"rate": 16 * groups / prepared.each(few, many)}

    def shared() -> dict[str, Any]:
        data = kernels.pattern(kernels.SHARED_BYTES // 4)
        prepared = bench.prepare(Run(kernels.SHARED, units, (1,), data))
        return {"rate": units * kernels.SHARED_BYTES / prepared.each(100, 2100)}

    def fma() -> dict[str, Any]:
        run = Run(kernels.FMA, 2 * units, (1,), np.array([0.5, 0.25, 0, 0], np.float32))
        work = 2 * 8 * 16 * 2 * units * kernels.FMA.threads
        return {"rate": work / bench.prepare(run).each(100, 4100)}

    yield "L2 read", lambda: read(L2_BYTES, 10, 110)
    yield "memory read", lambda: read(min(MEMORY_BYTES, bench.card.facts.memory_bytes // 16), 1, 4)
    yield "shared memory read", shared
    yield "float32 multiply-add", fma


GROUPS = (launches, barriers, hops, rates)


def measure(card: Card, scale: float = 1.0) -> Figures:
    """Every figure, or what was in its way. After a kernel that failed nothing can be measured any more."""
    bench, found = Bench(card, scale), Figures()
    bench.compile(kernels.KERNELS)
    for group in GROUPS:
        for name, figure in group(bench):
            try:
                found[name] = figure()
            except Exception as error:  # one figure less
                found[name] = {"error": f"{type(error).__name__}: {error}"}
        bench.release()
    return found


_SPEC = {
    "launch_seconds": "launch in a graph",
    "hop_seconds": "hop, flag",
    "shared_rate": "shared memory read",
    "l2_rate": "L2 read",
    "memory_rate": "memory read",
    "flops": "float32 multiply-add",
}


def measured_spec(card: Card, figures: Figures) -> tuple[DeviceSpec, dict[str, str]]:
    """The card with what was measured; and for every field that was not taken over, why."""
    spec = spec_of(card.facts)
    names = {**_SPEC, "barrier_seconds": f"barrier, {spec.units} blocks"}
    taken: dict[str, float] = {}
    left: dict[str, str] = {}
    for field, name in names.items():
        figure = figures.get(name, {})
        value = figure.get("seconds", figure.get("rate"))
        known = getattr(spec, field)
        if value is None:
            left[field] = str(figure.get("error", "not measured"))
        elif not math.isfinite(value) or not known / PLAUSIBLE < value < known * PLAUSIBLE:
            left[field] = f"{value:.3g} is not plausible beside {known:.3g}"
        else:
            taken[field] = value
    return replace(spec, **taken), left
