"""Micro-benchmarks of a card: launches, barriers, hops between blocks, and bandwidths of the memories.

Each figure is the difference of two launches with different numbers of rounds, so the launch cancels out.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax_cocktail.build.device import build_device_program, device_toolchain
from jax_cocktail.device.spec import PORTABLE_CLUSTER, DeviceSpec
from jax_cocktail.runtime.cuda import micro_kernels as kernels
from jax_cocktail.runtime.cuda.card import Card, CudaError, Facts, Launch, spec_of
from jax_cocktail.runtime.cuda.micro_kernels import Kernel, MicroRun

L2_BYTES = 16 << 20  # a third of the smallest L2 cache of such cards, and larger than any L1 cache
TIMES_L2 = 4  # memory bandwidth is measured on this multiple of the L2 cache
IN_A_GRAPH = 200
PLAUSIBLE = 20.0  # a figure that differs by this factor from the nearest known card is rejected

Figures = dict[str, dict[str, Any]]
Figure = tuple[str, Callable[[], dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A run on the card. `numbers`, `result`, `workspace`: addresses; `scale`, `times`: as in `Bench`."""

    card: Card
    run: MicroRun
    launch: Launch
    numbers: int
    result: int
    workspace: int
    scale: float
    times: int

    def seconds(self, rounds: int, times: int = 0) -> float:
        """The shortest time of a launch with this many rounds. Checks the result."""
        run = replace(self.run, rounds=rounds)
        self.card.write(self.numbers, run.numbers)

        def clear() -> None:
            self.card.fill(self.workspace, 0, kernels.HEADER_BYTES)

        found = self.card.seconds(self.launch, clear, times or self.times, min)
        problem = run.problem(self.card.download(self.result, run.result()))
        if problem:
            raise CudaError(problem)
        return found

    def each(self, few: int, many: int) -> float:
        """The seconds of one round."""
        few, many = (max(int(n * self.scale), k) for n, k in ((few, 1), (many, 3)))
        return (self.seconds(many) - self.seconds(few)) / (many - few)


def program(arch: str) -> bytes:
    """The compiled micro-benchmarks, possibly from the cache. Raises BuildError."""
    return build_device_program(kernels.text(kernels.THREADS), device_toolchain(arch), arch).binary


class Bench:
    """A card under measurement. `scale`: factor for rounds and sizes; `times`: repetitions of each launch;
    `binary`: what `program` returns, if it is known."""

    def __init__(self, card: Card, scale: float = 1.0, times: int = 5, binary: bytes = b"") -> None:
        self.card, self.scale, self.times = card, scale, times
        self.units = card.facts.attributes["units"]
        self._binary = binary
        self._function = 0

    def run(self, kernel: Kernel, units: int, data: kernels.Array = kernels.NO_DATA, **how: Any) -> _Prepared:
        """Prepares the run of a kernel: memory and launch parameters."""
        return self.prepare(MicroRun(kernel, units, 1, data, threads=kernels.THREADS, **how))

    def prepare(self, run: MicroRun) -> _Prepared:
        """Memory for a run, and how it is launched."""
        card, scratch = self.card, run.kernel.scratch
        if not self._function:
            module = card.load(self._binary or program(card.facts.arch))
            self._function = card.function(module, "ck_portable", kernels.SHARED_BYTES)
        if run.units > (most := card.co_resident(self._function, run.threads, scratch)):
            raise CudaError(f"{run.units} blocks of {run.kernel.name} do not fit: at most {most}")
        numbers, data = card.upload(run.numbers), card.upload(run.data, run.tiles)
        result, workspace = card.upload(run.result()), card.allocate(kernels.WORKSPACE_BYTES)
        launch = Launch(
            self._function,
            run.units,
            run.threads,
            scratch,
            (numbers, data, result, workspace, 0),
            cooperative=run.units > 1 and run.cluster == 1,
            cluster=run.cluster,
        )
        return _Prepared(card, run, launch, numbers, result, workspace, self.scale, self.times)

    def release(self) -> None:
        """Frees the memory of all runs."""
        self._function = 0
        self.card.release()


def barriers(bench: Bench) -> Iterator[Figure]:
    """Seconds of a barrier for several numbers of blocks, and of a cluster barrier for several sizes."""
    units = bench.units
    grids = sorted({g for g in (1, 2, 8, 16, 32, 64, units // 2, units, 2 * units) if g})

    def barrier(grid: int) -> dict[str, Any]:
        bench.run(kernels.BARRIER_CHECKED, grid).seconds(100, times=1)
        return {"seconds": bench.run(kernels.BARRIER, grid).each(100, 5100)}

    def cluster(size: int, grid: int) -> dict[str, Any]:
        return {"seconds": bench.run(kernels.CLUSTER, grid, cluster=size).each(100, 5100)}

    for grid in grids:
        yield f"barrier, {grid} blocks", functools.partial(barrier, grid)
    most = spec_of(bench.card.facts).cluster_units
    if most > 1:
        for size in sorted({PORTABLE_CLUSTER, most}):
            for grid in (size, 64):
                name = f"cluster barrier of {size}, {grid} blocks"
                yield name, functools.partial(cluster, size, grid)


def hops(bench: Bench) -> Iterator[Figure]:
    """Seconds of a message from one block to another."""

    def hop(kernel: Kernel, words: int) -> dict[str, Any]:
        return {"seconds": bench.run(kernel, 2, size=words).each(100, 4100) / 2}

    def gather(units: int, words: int) -> dict[str, Any]:
        return {"seconds": bench.run(kernels.GATHER, units, size=words).each(100, 4100)}

    yield "hop, flag", lambda: hop(kernels.FLAG, 0)
    yield "hop, tagged, 1 word", lambda: hop(kernels.TAGGED, 1)
    yield f"hop, tagged, {kernels.WORDS} words", lambda: hop(kernels.TAGGED, kernels.WORDS)
    for units in (16, bench.units):
        for words in (64, 256, kernels.WORDS):
            if words >= units:
                name = f"tagged exchange of {words} words, {units} blocks"
                yield name, functools.partial(gather, units, words)


def launches(bench: Bench) -> Iterator[Figure]:
    """Seconds of an empty kernel."""
    card, number = bench.card, max(int(IN_A_GRAPH * bench.scale), 3)

    def empty() -> _Prepared:
        return bench.run(kernels.EMPTY, bench.units)

    def plain() -> Launch:
        return replace(empty().launch, cooperative=False)

    def in_a_graph(launch: Launch) -> dict[str, Any]:
        return {"seconds": card.graph_seconds(lambda: card.launch(launch), number)}

    yield "empty launch between events", lambda: {"seconds": empty().seconds(0, times=20)}
    yield "launch in a graph", lambda: in_a_graph(plain())
    yield "cooperative launch in a graph", lambda: in_a_graph(empty().launch)
    yield "launch in a stream", lambda: {"seconds": card.many_seconds(plain(), number)}


def rates(bench: Bench) -> Iterator[Figure]:
    """Bytes and operations per second, by all units together."""
    units, facts = bench.units, bench.card.facts

    def read(size: float, few: int, many: int) -> dict[str, Any]:
        """Measures reads of `size` bytes, of which at most L2_BYTES are distinct."""
        step = units * kernels.THREADS * 4
        groups = max(int(min(size, L2_BYTES) * bench.scale) // 16 // step, 1) * step
        tiles = max(int(size * bench.scale) // (16 * groups), 1)
        data = kernels.pattern(4 * groups)
        prepared = bench.run(kernels.READ, units, data, size=tiles * groups, tiles=tiles)
        return {"rate": 16 * tiles * groups / prepared.each(few, many)}

    def shared() -> dict[str, Any]:
        data = kernels.pattern(kernels.SHARED_BYTES // 4)
        return {"rate": units * kernels.SHARED_BYTES / bench.run(kernels.SHARED, units, data).each(100, 2100)}

    def fma() -> dict[str, Any]:
        work = 2 * 8 * 16 * 2 * units * kernels.THREADS
        return {"rate": work / bench.run(kernels.FMA, 2 * units, kernels.chains()).each(100, 4100)}

    yield "L2 read", lambda: read(L2_BYTES, 10, 110)
    beyond = TIMES_L2 * facts.attributes["l2_bytes"]
    yield "memory read", lambda: read(min(max(beyond, 4 * L2_BYTES), facts.memory_bytes // 16), 1, 9)
    yield "shared memory read", shared
    yield "float32 multiply-add", fma


GROUPS = (launches, barriers, hops, rates)


def measure(
    card: Card,
    scale: float = 1.0,
    times: int = 5,
    only: Sequence[str] = (),
    until: float = math.inf,
    binary: bytes = b"",
) -> Figures:
    """Measures every figure, or records its error. After a failed kernel nothing more can be measured.

    `only`: the names of the wanted figures, if not all; `until`: no figure is begun after this moment of
    `time.perf_counter`; `binary`: as for `Bench`.
    """
    bench, found = Bench(card, scale, times, binary), Figures()
    for group in GROUPS:
        for name, figure in group(bench):
            if only and name not in only:
                continue
            try:
                found[name] = figure() if time.perf_counter() < until else {"error": "no time was left"}
            except Exception as error:  # omits this figure
                found[name] = {"error": f"{type(error).__name__}: {error}"}
        bench.release()
    return found


def names(card: Card) -> tuple[str, ...]:
    """The names of all figures of a card."""
    return tuple(name for group in GROUPS for name, _ in group(Bench(card)))


_SPEC = {
    "launch_seconds": "launch in a graph",
    "hop_seconds": "hop, flag",
    "shared_rate": "shared memory read",
    "l2_rate": "L2 read",
    "memory_rate": "memory read",
    "flops": "float32 multiply-add",
}


def names_of_spec(facts: Facts) -> Mapping[str, str]:
    """The measured fields of a `DeviceSpec`, each with the name of its figure."""
    return {**_SPEC, "barrier_seconds": f"barrier, {facts.attributes['units']} blocks"}


def measured_spec(facts: Facts, figures: Figures) -> tuple[DeviceSpec, dict[str, str]]:
    """The card's specification with the measured figures; and for each rejected field the reason."""
    spec = spec_of(facts)
    taken: dict[str, Any] = {}
    left: dict[str, str] = {}
    for field, name in names_of_spec(facts).items():
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
