"""The project's targets for the figures of `run.py`, and whether they are met."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """One target. `measured(figures)` yields (row, value) pairs, and `limit` bounds the worst of them.

    least: the limit is a lower bound.
    """

    name: str
    limit: float
    unit: str
    measured: Callable[[Figures], Iterator[tuple[str, float]]]
    least: bool = True

    def judge(self, figures: Figures) -> dict[str, Any]:
        """The worst row as plain data. `state` is met, missed or not measured."""
        rows = list(self.measured(figures))
        result: dict[str, Any] = {"target": self.name, "limit": self.limit, "unit": self.unit}
        if not rows:
            return {**result, "state": "not measured"}
        worst = (min if self.least else max)(rows, key=lambda row: row[1])
        met = worst[1] >= self.limit if self.least else worst[1] <= self.limit
        return {**result, "worst": worst[1], "row": worst[0], "state": "met" if met else "missed"}


def _ratio(*names: str) -> Callable[[Figures], Iterator[tuple[str, float]]]:
    """Stock time over ours, with our calls forced."""
    return lambda figures: ((r["program"], r["ratio"]) for r in figures["programs"] if r["program"] in names)


def _models(figures: Figures) -> Iterator[tuple[str, float]]:
    """Stock time over `jit` without options."""
    return ((r["program"], r["auto_ratio"]) for r in figures["programs"] if "/" in r["program"])


def _share_of_must(figures: Figures) -> Iterator[tuple[str, float]]:
    """The ratio to stock XLA at its best over the required ratio."""
    return ((row["program"], row["ratio"] / row["must"]) for row in figures.get("ratios", {}).get("rows", ()))


def _overhead(figures: Figures) -> Iterator[tuple[str, float]]:
    return ((row["call"], row["overhead"] * 1e6) for row in figures["calls"])


def _slower(column: str) -> Callable[[Figures], Iterator[tuple[str, float]]]:
    """Seconds above stock's first call. The import of jax_cocktail has a column of its own."""
    return lambda figures: (
        (row["program"], row[column] - row["stock"]) for row in figures.get("processes", ())
    )


TARGETS = (
    Target("models, as jit runs them: stock / auto", 0.97, "x", _models),
    Target("ratios to stock at its best: share of what must be", 1, "x", _share_of_must),
    Target("skipped conds: stock / ours", 10, "x", _ratio("skipped_conds")),
    Target("tiny conds: stock / ours", 3, "x", _ratio("tiny_conds")),
    Target(
        "60 scalar leaves and gradient: stock / ours",
        8,
        "x",
        _ratio("scalar_leaves", "scalar_leaves_gradient"),
    ),
    Target("pass-through carries: stock / ours", 1, "x", _ratio("pass_through")),
    Target("calls, Fibonacci: stock's stack machine / ours", 100, "x", _ratio("fibonacci/1")),
    Target("tree model's gradient: stock / ours", 20, "x", _ratio("rae_recursive_gradient/1")),
    Target("call overhead", 2, "us", _overhead, least=False),
    Target("first call, above stock", 1.5, "s", _slower("auto"), least=False),
    Target("first call of a second process, above stock", 0.05, "s", _slower("second auto"), least=False),
)


def judge_all(figures: Figures) -> list[dict[str, Any]]:
    """Judges all targets and prints one row for each."""
    print(f"\n{'target':54}{'limit':>12}{'worst':>10}  state")
    found = [target.judge(figures) for target in TARGETS]
    for target, row in zip(TARGETS, found, strict=True):
        limit = f"{'>=' if target.least else '<='} {target.limit:g} {target.unit}"
        worst = f"{row['worst']:.3f}" if "worst" in row else "-"
        print(
            f"{target.name:54}{limit:>12}{worst:>10}  {row['state']}"
            + (f" ({row['row']})" if "row" in row else "")
        )
    return found
