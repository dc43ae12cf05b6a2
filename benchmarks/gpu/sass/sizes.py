"""A row's plan with other numbers of threads per block: what the model predicts and what is emulated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.gpu.sass.programs import planned, spilled
from benchmarks.gpu.sass.report import estimated
from jax_cocktail.compiler import emit
from jax_cocktail.cost.price import our_price
from jax_cocktail.device.spec import DeviceSpec


@dataclass(frozen=True, slots=True)
class Size:
    """A plan with so many threads per block. `predicted`, `emulated`: seconds; `cycles`: emulated, of a step;
    `spill_bytes`: of a thread."""

    threads: int
    predicted: float
    emulated: float
    cycles: float
    spill_bytes: int


def sizes_of(row: str, spec: DeviceSpec, sizes: Iterable[int]) -> tuple[Size, ...]:
    """The row's cheapest plan at these sizes."""
    usual, found = planned(row, spec), list[Size]()
    for threads in sizes:
        sized = []
        for each in usual:
            candidate = each.emitted.candidate.but(threads=threads)
            sized.append(
                replace(each, emitted=emit(each.translated, each.emitted.machine, candidate=candidate))
            )
        emitted = [each.emitted for each in sized]
        seconds = (our_price(e.program, e.mesh.units, e.machine, e.plan).seconds for e in emitted)
        result, _ = estimated(row, spec, sized, iterations=2)
        spills = sum(map(spilled, sized))
        found.append(Size(threads, sum(seconds), result.seconds, result.step_cycles, spills))
    return tuple(found)


def ranks(seconds: Sequence[float]) -> list[int]:
    """1 for the shortest."""
    ordered = sorted(seconds)
    return [1 + ordered.index(each) for each in seconds]


def told_sizes(row: str, found: Sequence[Size]) -> Iterator[str]:
    """Lines of a table."""
    predicted, emulated = (ranks([getattr(s, name) for s in found]) for name in ("predicted", "emulated"))
    for size, one, other in zip(found, predicted, emulated, strict=True):
        spills = f", spills {size.spill_bytes} bytes" if size.spill_bytes else ""
        yield (
            f"{row:16}{size.threads:8}{1e6 * size.predicted:12.1f}{one:6}"
            f"{1e6 * size.emulated:12.1f}{other:6}{size.cycles:12.0f}{spills}"
        )
