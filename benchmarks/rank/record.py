"""Measures stock XLA and our candidates, and keeps their times."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax

from benchmarks.census.measure import MOST_CALLS
from benchmarks.rank.cases import Case
from jax_cocktail.config import Options
from jax_cocktail.device import processor
from jax_cocktail.device.host import SERVER, Figures, HostSpec, from_table
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.lowering.choice.decisions import Plan
from jax_cocktail.lowering.choice.variants import Prepared, building, emitted, rewritten
from jax_cocktail.lowering.edge import custom_call
from jax_cocktail.lowering.run.stopwatch import runner
from jax_cocktail.lowering.state import Mark
from jax_cocktail.runtime import host_figures
from jax_cocktail.schedule.policy import candidates
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail_tools.commands.machine import this_machine
from jax_cocktail_tools.models.measure import interleaved_samples


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of the fastest call: of stock XLA, and of our candidates by name."""

    case: str
    stock: float
    ours: Mapping[str, float]

    def shorter(self, other: Row) -> Row:
        """The shorter time of each choice. Choices that are no longer there are left out."""
        ours = {name: min(seconds, self.ours.get(name, seconds)) for name, seconds in other.ours.items()}
        return Row(self.case, min(self.stock, other.stock), ours)


@dataclass(frozen=True, slots=True)
class Record:
    """The times of one machine. `lanes`, `caches`, `figures`: of its processor, for prices; without them, the
    table's of a server core count."""

    date: str
    cpu: str
    cores: int
    jax: str
    rows: tuple[Row, ...]
    lanes: int = SERVER.vector_lanes
    caches: tuple[int, ...] = (0, 0, 0)
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def host(self) -> HostSpec:
        spec = from_table(self.lanes, self.caches)
        return spec.with_figures(Figures(**self.figures)) if self.figures else spec

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Record:
    facts = json.loads(path.read_text(encoding="utf-8"))
    caches = tuple(facts.get("caches", (0, 0, 0)))
    return Record(**{**facts, "rows": tuple(Row(**row) for row in facts["rows"]), "caches": caches})


def new(rows: Iterable[Row]) -> Record:
    """A record of this machine."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    where = today, this_machine().processor, processor.cores(), jax.__version__
    figures = dataclasses.asdict(_figures())
    return Record(*where, tuple(rows), processor.vector_lanes(), processor.cache_sizes(), figures)


@functools.cache
def _figures() -> Figures:
    """Those of this machine at the beginning of a run."""
    return host_figures.measured()


def merged(before: Record | None, now: Record) -> Record:
    """Both records, with the shorter time of what both measured. A load of the machine only adds to a time.

    Raises:
      ValueError: they come from unlike machines or versions.
    """
    if before is None:
        return now
    if (before.cpu, before.cores, before.jax) != (now.cpu, now.cores, now.jax):
        raise ValueError(f"a record of {before.cpu}, {before.cores} cores, jax {before.jax}")
    rows = {row.case: row for row in before.rows}
    # A disturbed machine seems slower than it is.
    best = {n: (min if n == "barrier" else max)(x, before.figures.get(n, x)) for n, x in now.figures.items()}
    rows |= {row.case: rows[row.case].shorter(row) if row.case in rows else row for row in now.rows}
    return replace(now, rows=tuple(rows.values()), figures=best)


def measure(case: Case, seconds: float) -> Row:
    """Times stock XLA and every candidate with a program of its own, in turn, for so long together."""
    prepared, closed, arguments = case.prepared()
    arguments = [jax.device_put(a) for a in arguments]
    custom_call.register()
    plans = {name: Plan(candidate) for name, candidate in distinct(prepared, processor.cores())}
    mark = Mark("rank", Options())
    with building(prepared, tuple(plans.values()), mark):
        runs = [runner(closed, arguments)]
    runs += [runner(rewritten(prepared, plan, mark).jaxpr, arguments) for plan in plans.values()]
    stock, *ours = interleaved_samples(runs, seconds=seconds, most=MOST_CALLS).fastest
    return Row(case.name, stock, dict(zip(plans, ours, strict=True)))


def distinct(prepared: Prepared, units: int) -> Iterator[tuple[str, Candidate]]:
    """The candidates with programs of their own, by name, the simplest first."""
    seen = set()
    for candidate in candidates(prepared.programs, units, prepared.machine):
        try:
            planned = [emitted(prepared, candidate, n) for n in range(len(prepared.programs))]
        except UnsupportedError:  # another candidate may not need what is missing
            continue
        built = tuple((each.source, each.mesh.units) for each in planned)
        if built not in seen:
            seen.add(built)
            yield candidate.name, candidate
