"""The cost model against a record of measured times: `gpu_check.py --fit FILE.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.kernels import Measured, Record, load, measured, path_of, planned, spec_of, store
from benchmarks.kendall import Pair, tau
from jax_cocktail.cost.gpu import kernel_spent

FURTHEST = 1.4  # factor between prediction and measurement of a kernel, either way
LEAST_TAU = 0.9


@dataclass(frozen=True, slots=True)
class Fitted:
    """A measurement and its prediction, in seconds."""

    measured: Measured
    predicted: float

    @property
    def pair(self) -> Pair:
        return self.predicted, self.measured.seconds

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured.seconds

    @property
    def fits(self) -> bool:
        """Only kernels are held to it: a call that `jit` timed has the host's time in it."""
        return not self.measured.alone or 1 / FURTHEST <= self.ratio <= FURTHEST


def fitted(path: Path, record: Record) -> tuple[Fitted, ...]:
    """Everything that the record has measured, with the model's prediction for the recorded kernels."""
    spec, kernels = spec_of(record), load(path_of(path))
    found = []
    for each in measured(record):
        trips = kernels.trips_of(each.row, each.plan)
        spent = (kernel_spent(k, spec, kernels.templates, trips) for k in kernels.plans[each.row][each.plan])
        found.append(Fitted(each, sum(s.seconds for s in spent)))
    return tuple(found)


def fit(path: Path) -> int:
    """Prints the table. Returns 1 if a kernel is further off than `FURTHEST`, the ranks differ, or nothing
    was timed."""
    record = json.loads(path.read_text(encoding="utf-8"))
    if not any(measured(record)):
        print(f"nothing of ours was timed in {path}")
        return 1
    if not path_of(path).exists():
        store(planned(record), path_of(path))
    found = fitted(path, record)
    print(f"{'row':16}{'plan':28}{'predicted, us':>14}{'measured, us':>14}{'ratio':>8}")
    for each in found:
        what, times = each.measured, f"{each.predicted * 1e6:14.1f}{each.measured.seconds * 1e6:14.1f}"
        note = f"beyond {FURTHEST}" if not each.fits else "" if what.alone else "a call that jit timed"
        print(f"{what.row:16}{what.plan:28}{times}{each.ratio:8.2f}  {note}".rstrip())
    rank = tau(each.pair for each in found)
    print(f"Kendall tau of {len(found)}: {rank:.2f}, at least {LEAST_TAU}")
    return int(rank < LEAST_TAU or not all(each.fits for each in found))
