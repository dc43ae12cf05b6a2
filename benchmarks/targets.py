"""Judges results of `bench` by what the project requires: ratios to stock XLA at its best, and targets.

    python -m benchmarks.targets FILE.json ...    files of `python -m jax_cocktail bench --by-hand --json`
        --calls FILE                              a file of `python -m benchmarks.calls overhead --out`
        --first FILE                              a file of `python -m benchmarks.first_call --how auto --out`

The first file has the figures. Others are of the same programs with other settings of XLA (`XLA_FLAGS`).
Stock XLA counts at its best: the fastest of all settings and of what was written by hand for it, which is
the input projection hoisted, and a loop in place of recursion. Ours is `jit` without options. Two columns are
for information: the ratio to a program that was distributed by hand, and the fraction of the machine's limit.
`make benchmark` measures and judges all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_cocktail_tools.commands import result
from jax_cocktail_tools.commands.problem import Problem
from jax_cocktail_tools.commands.result import Ceilings, Result, Row

LAYER = 4 * 256 * 1024  # bytes of a 256 x 1024 matrix, input or recurrent, of an LSTM layer
HEADS = 4 * 12 * 64 * 64  # bytes of a 64 x 64 matrix for each of 12 heads
L2, L3 = "L2 cache", "L3 cache"
DISTRIBUTED = "distributed"  # by hand: a different program
SAME = 0.97  # if both names run stock XLA, a ratio from here upwards counts as 1

# What isolates one cost, which has targets of its own.
ISOLATED = frozenset({"skipped_conds", "tiny_conds", "scalar_leaves", "scalar_leaves_gradient", "empty_call"})
ISOLATED |= {"pass_through", "lstm_stacked", "vmapped_while", "vmapped_cond"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The targets and the minimum work of a row. `must`, `aim`: ratios of stock XLA's time to ours; `flops`:
    of large products; bytes read from the memory that holds them (`level`)."""

    must: float
    aim: float
    flops: float = 0.0
    bytes: float = 0.0
    level: str = L2

    def limit(self, machine: Ceilings) -> float:
        """The seconds that the work takes at the machine's peak rates; 0 if it or the rate is unknown."""
        if self.bytes and self.level not in machine.levels:
            return 0.0
        return self.flops / machine.flops + (self.bytes and self.bytes / machine.levels[self.level])


def _lstm(batch: int) -> dict[str, float]:
    """Ten layers, 64 steps. Projections are products; at batch 1 recurrent weights are read in every step."""
    projection = 2.0 * 640 * batch * 256 * 1024
    return {"flops": projection, "bytes": 640 * LAYER} if batch == 1 else {"flops": 2 * projection}


def _nasrnn(batch: int) -> dict[str, float]:
    projection = 2.0 * 1000 * batch * 256 * 2048
    return {"flops": projection, "bytes": 1000 * 2 * LAYER} if batch == 1 else {"flops": 2 * projection}


WANTED: Mapping[str, Wanted] = {
    "lstm/1": Wanted(5, 8, **_lstm(1)),
    "lstm_stacked/1": Wanted(11, 16, **_lstm(1)),
    "lstm/64": Wanted(1.5, 1.9, **_lstm(64)),
    "nasrnn/1": Wanted(2.5, 3.5, **_nasrnn(1)),
    "nasrnn/64": Wanted(1.15, 1.4, **_nasrnn(64)),
    # four matrices per head, and the keys and values of every row
    "attention/1": Wanted(3, 5, bytes=32 * 6 * HEADS),
    "attention/64": Wanted(2, 3, flops=32 * 64 * 2 * HEADS, bytes=32 * 64 * 2 * HEADS, level=L3),
    # an LSTM cell and 256 x 3797 logits, ten and fifty steps
    "seq2seq/1": Wanted(2, 3, bytes=10 * (2 * LAYER + 4 * 256 * 3797), level=L3),
    "seq2seq/64": Wanted(1.5, 2.2, flops=50 * 64 * 2.0 * 256 * (2 * 1024 + 3797)),
    "rae/1": Wanted(1.6, 2.2, bytes=32 * 4 * 1024 * 512, level=L3),
    "blockdrop/1": Wanted(1, 1.2),
    "blockdrop/64": Wanted(1, 1.2),
    "skipnet/1": Wanted(1, 1.2),
    "vmapped_while/1": Wanted(5, 6),
    "vmapped_cond/1": Wanted(9, 10),
    "rae_recursive/1": Wanted(3.5, 5, bytes=32 * 4 * 1024 * 512, level=L3),
    "tree_lstm/64": Wanted(5, 8),
    "child_sum_tree_lstm/64": Wanted(5, 8),
    "fibonacci/1": Wanted(8, 15),
}


# ---- ratios to stock XLA at its best -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Best:
    """A row beside the best of stock XLA. `how`: which that is; `share`: fraction of the machine's limit."""

    row: Row
    stock: float
    how: str
    ratio: float
    share: float | None
    to_distributed: float | None

    @property
    def share_of_must(self) -> float:
        return self.ratio / WANTED[self.row.name].must

    def __str__(self) -> str:
        wanted = WANTED[self.row.name]
        state = "aim" if self.ratio >= wanted.aim else "met" if self.ratio >= wanted.must else "missed"
        share = "-" if self.share is None else f"{self.share:.0%}"
        by_hand = "-" if self.to_distributed is None else f"{self.to_distributed:.2f}"
        times = f"{self.stock * 1e6:11.1f}{self.row.auto.median.middle * 1e6:11.1f}{self.ratio:7.2f}"
        aims = f"{wanted.must:6g}{wanted.aim:6g}{share:>7}{by_hand:>9}"
        return f"{self.row.name:28}{times}{aims}  {state:6}  {self.row.plan}; {self.how}"


def judged(found: Sequence[Result]) -> list[Best]:
    """The rows that have targets, each judged within the run that has the best of stock XLA."""
    names = [row.name for row in found[0].rows if row.name in WANTED]
    return [_judged(name, found) for name in names]


def _judged(name: str, found: Sequence[Result]) -> Best:
    rows = [(row, each) for each in found for row in each.rows if row.name == name]
    pairs = [
        (seconds / row.auto.median.middle, seconds, how, row, each)
        for row, each in rows
        for how, seconds in _stock(row).items()
        if how != DISTRIBUTED
    ]
    ratio, seconds, how, row, run = min(pairs, key=lambda pair: pair[0])
    if row.choice == "stock" and how == "stock" and ratio >= SAME:
        ratio = max(ratio, 1.0)
    full = run.settings["sizes"] == "full" and run.ceilings is not None
    limit = WANTED[name].limit(run.ceilings) if full and run.ceilings else 0.0
    distributed = [
        row.by_hand[DISTRIBUTED].median.middle / row.auto.median.middle
        for row, _ in rows
        if DISTRIBUTED in row.by_hand
    ]
    flags = run.settings.get("XLA_FLAGS", "")
    return Best(
        row,
        seconds,
        f"{how}, {flags}" if flags else how,
        ratio,
        limit / row.auto.median.middle if limit else None,
        min(distributed, default=None),
    )


def _stock(row: Row) -> dict[str, float]:
    """Seconds of stock XLA, of the program itself and of what was written by hand."""
    by_hand = {how: timing.median.middle for how, timing in row.by_hand.items()}
    return {"stock": row.stock.median.middle, **by_hand}


# ---- targets -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """One target, and what it bounds the worst of: (row, value) pairs. `least`: it is a lower bound."""

    name: str
    limit: float
    unit: str
    rows: Sequence[tuple[str, float]]
    least: bool = True

    def __str__(self) -> str:
        limit = f"{'>=' if self.least else '<='} {self.limit:g} {self.unit}"
        if not self.rows:
            return f"{self.name:54}{limit:>12}{'-':>10}  not measured"
        name, worst = (min if self.least else max)(self.rows, key=lambda row: row[1])
        met = worst >= self.limit if self.least else worst <= self.limit
        return f"{self.name:54}{limit:>12}{worst:>10.3f}  {'met' if met else 'missed'} ({name})"


def targets(
    found: Result, best: Sequence[Best], calls: Sequence[Any] = (), first: Sequence[Any] = ()
) -> Iterator[Target]:
    """All targets, with the figures of the files."""

    def ratios(*models: str) -> list[tuple[str, float]]:
        """Those of our calls, forced."""
        return [(row.name, row.ratio.middle) for row in found.rows if row.model in models]

    auto = [(row.name, row.auto_ratio.middle) for row in found.rows if row.model not in ISOLATED]
    over = [(row["call"], row["wrapper"] - row["stock"]) for row in calls if "ours" not in row]
    late, again = (
        [(row["row"], row[side]["first"] - row["stock"]["first"]) for row in first]
        for side in ("first", "next")
    )
    leaves = ratios("scalar_leaves", "scalar_leaves_gradient")
    must = [(each.row.name, each.share_of_must) for each in best]
    yield Target("models, as jit runs them: stock / auto", 0.97, "x", auto)
    yield Target("ratios to stock at its best: share of what must be", 1, "x", must)
    yield Target("skipped conds: stock / ours", 10, "x", ratios("skipped_conds"))
    yield Target("tiny conds: stock / ours", 3, "x", ratios("tiny_conds"))
    yield Target("60 scalar leaves and gradient: stock / ours", 8, "x", leaves)
    yield Target("pass-through carries: stock / ours", 1, "x", ratios("pass_through"))
    yield Target("calls, Fibonacci: stock's stack machine / ours", 100, "x", ratios("fibonacci"))
    yield Target("tree model's gradient: stock / ours", 20, "x", ratios("rae_recursive_gradient"))
    yield Target("call overhead", 2, "us", over, least=False)
    yield Target("first call, above stock", 1.5, "s", late, least=False)
    yield Target("first call of a second process, above stock", 0.05, "s", again, least=False)


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.targets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--calls", type=Path, metavar="FILE")
    parser.add_argument("--first", type=Path, metavar="FILE")
    options = parser.parse_args()
    try:
        found = [result.read(path) for path in options.files]
    except Problem as problem:
        parser.error(str(problem))
    calls, first = (json.loads(path.read_text()) if path else () for path in (options.calls, options.first))
    best = judged(found)
    print(
        f"{'ratio to stock at its best':28}{'stock us':>11}{'ours us':>11}{'ratio':>7}{'must':>6}{'aim':>6}"
        f"{'limit':>7}{'by hand':>9}  state   plan; stock's best"
    )
    print(*best, sep="\n")
    print(f"\n{'target':54}{'limit':>12}{'worst':>10}  state")
    print(*targets(found[0], best, calls, first), sep="\n")


if __name__ == "__main__":
    main()
