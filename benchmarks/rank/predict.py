"""What the cost models say of a record's rows, and how well they rank them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from benchmarks.kendall import Pair, share, tau
from benchmarks.rank.cases import CASES
from benchmarks.rank.record import Record, Row, distinct
from benchmarks.rank.sol import our_limit, stock_limit
from jax_cocktail.cost.price import our_price, stock_price
from jax_cocktail.lowering.choice.decisions import STOCK
from jax_cocktail.lowering.choice.variants import Prepared, emitted
from jax_cocktail.schedule.unit_count import fix_unit_count

MODELS = "SOL", "projected"
ALIKE = 1.1  # choices whose measured times differ by a smaller factor are not ranked: that is noise


@dataclass(frozen=True, slots=True)
class Entry:
    """One choice of a case. Seconds: measured, and predicted by each of `MODELS`."""

    case: str
    choice: str
    measured: float
    predicted: Mapping[str, float]

    def pair(self, model: str) -> Pair:
        return self.predicted[model], self.measured


@dataclass(frozen=True, slots=True)
class Ranks:
    """Kendall's tau of a model: over all choices of ours, over stock XLA's rows, and over the choices within
    each case. `overestimate`: the largest predicted speedup over the measured one; `at`: where."""

    ours: float
    stock: float
    choices: float
    overestimate: float
    at: str


def entries(record: Record) -> Iterator[Entry]:
    """All choices of the record, as the present code prices them. What it no longer plans is left out."""
    cases = {case.name: case for case in CASES}
    for row in record.rows:
        if row.case in cases:
            prepared, _closed, _ = cases[row.case].prepared(record.host)
            yield from _row(row, prepared, record.cores)


def _row(row: Row, prepared: Prepared, cores: int) -> Iterator[Entry]:
    machine, programs = prepared.machine, [fix_unit_count(p, 1) for p in prepared.programs]
    stock = (
        sum(stock_limit(p, cores, machine.host) for p in programs),
        sum(stock_price(p, cores, machine).seconds for p in programs),
    )
    yield Entry(row.case, STOCK, row.stock, dict(zip(MODELS, stock, strict=True)))
    for name, candidate in distinct(prepared, cores):
        if name not in row.ours:
            continue
        planned = [emitted(prepared, candidate, n) for n in range(len(programs))]
        ours = (
            sum(our_limit(e.program, e.mesh.units, machine.host) for e in planned),
            sum(our_price(e.program, e.mesh.units, machine, e.plan).seconds for e in planned),
        )
        yield Entry(row.case, name, row.ours[name], dict(zip(MODELS, ours, strict=True)))


def ranks(found: Sequence[Entry], model: str) -> Ranks:
    stock = [e for e in found if e.choice == STOCK]
    ours = [e for e in found if e.choice != STOCK]
    worst, at = max(_overestimates(found, model))
    return Ranks(
        tau(e.pair(model) for e in ours),
        tau(e.pair(model) for e in stock),
        share((a.pair(model), b.pair(model)) for a, b in duels(found)),
        worst,
        at,
    )


def duels(found: Iterable[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Pairs of choices of one case that a measurement can tell apart."""
    for a, b in combinations(found, 2):
        if a.case == b.case and max(a.measured, b.measured) > ALIKE * min(a.measured, b.measured):
            yield a, b


def _overestimates(found: Sequence[Entry], model: str) -> Iterator[tuple[float, str]]:
    theirs = {e.case: e for e in found if e.choice == STOCK}
    for each in found:
        stock = theirs[each.case]
        said = stock.predicted[model] / each.predicted[model]
        yield said / (stock.measured / each.measured), f"{each.case}, {each.choice}"
