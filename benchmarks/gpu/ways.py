"""Batches of loops in the results of a run: each way to run one, measured and predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.packed import BY_THREADS, ENSEMBLES, TOGETHER

Sections = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds; None where nothing was measured or predicted."""

    measured: float | None = None
    predicted: float | None = None


@dataclass(frozen=True, slots=True)
class Ways:
    """A row. threads, together: kernels of the best plan of each way by the model; stock, ours: calls of
    stock XLA and of our best plan; difference: of their results; choice: of `jit` by itself, "" if it was not
    asked."""

    row: str
    threads: Pair
    together: Pair
    stock: Pair
    ours: float | None
    difference: float | None
    choice: str

    @property
    def ranked(self) -> bool | None:
        """True if the faster way is the one that the model takes; None if one was not measured."""
        one, other = self.threads, self.together
        if None in (one.measured, other.measured, one.predicted, other.predicted):
            return None
        assert one.measured and other.measured and one.predicted and other.predicted
        return (one.measured < other.measured) == (one.predicted < other.predicted)


def compared(sections: Sections) -> Iterator[Ways]:
    """All rows of which a program was timed."""
    kernels, times, auto = (sections.get(name, {}) for name in ("kernels", "times", "auto"))
    for row in ENSEMBLES:
        records = [record for record in kernels.get(row, {}).values() if "seconds" in record]
        if not records:
            continue
        call = times.get(row, {})
        seconds = call.get("seconds", {})
        stock = Pair(seconds.get("stock"), records[0]["predicted_stock_seconds"])
        difference = call.get("differences", {}).get("ours")
        choice = auto.get(row, {}).get("choice", "")
        pairs = _best(records, BY_THREADS), _best(records, TOGETHER)
        yield Ways(row, *pairs, stock, seconds.get("ours"), difference, choice)


def _best(records: list[Mapping[str, Any]], way: str) -> Pair:
    """The plan of a way that the model prefers; one with a timeline writes that, too."""
    found = [r for r in records if r["way"] == way and r["phase"] != "traced"]
    best = min(found, key=lambda record: record["predicted_seconds"], default=None)
    return Pair(best["seconds"], best["predicted_seconds"]) if best else Pair()
