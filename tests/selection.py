"""The cases that a usual run takes of tests with many alike. `make test-long` takes all.

    @pytest.mark.long            none of them
    @pytest.mark.sampled(20)     twenty, at even distances
    @pytest.mark.covering(1)     as few as have every value of every parameter; 2: every pair of values of two
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest

ALL = bool(os.environ.get("JAX_COCKTAIL_TEST_ALL"))
MARKERS = (
    "long: runs only with JAX_COCKTAIL_TEST_ALL=1, as in `make test-long`",
    "sampled(n): a usual run takes n of the cases, at even distances",
    "covering(n): a usual run takes as few cases as have all values of every n parameters",
)


def at_even_distances(cases: Sequence[Any], count: int) -> list[Any]:
    """So many of the cases, the first among them."""
    count = min(count, len(cases))
    return [cases[number * len(cases) // count] for number in range(count)]


def covering(cases: Sequence[frozenset[tuple[str, str]]], strength: int) -> list[int]:
    """The positions of few cases that have all values of every so many parameters. Each is the case with most
    new ones."""
    combined = [set(combinations(sorted(case), min(strength, len(case)))) for case in cases]
    missing = set().union(*combined)
    chosen: list[int] = []
    while missing:
        best = max(range(len(cases)), key=lambda number: (len(combined[number] & missing), -number))
        chosen.append(best)
        missing -= combined[best]
    return sorted(chosen)


def _values(item: pytest.Item) -> frozenset[tuple[str, str]]:
    """The parameters of a case with their values."""
    params = item.callspec.params  # type: ignore[attr-defined]
    return frozenset((name, repr(value)) for name, value in params.items())


def _usual(items: Sequence[pytest.Item]) -> Iterable[pytest.Item]:
    """The cases of one test that a usual run takes."""
    items = [item for item in items if not item.get_closest_marker("long")]
    if not items or not hasattr(items[0], "callspec"):
        return items
    if sampled := items[0].get_closest_marker("sampled"):
        return at_even_distances(items, sampled.args[0])
    if marker := items[0].get_closest_marker("covering"):
        return [items[number] for number in covering([_values(item) for item in items], *marker.args)]
    return items


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what only `make test-long` runs, and nobody asked for by its whole name.

    `--exact-xla` leaves out the tests with that mark, or all others."""
    if exact := config.getoption("--exact-xla", None):
        others = [i for i in items if bool(i.get_closest_marker("exact_xla")) != (exact == "only")]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)
    if ALL:
        return
    asked = {arg.lstrip("./") for arg in config.args if "::" in arg}
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    taken: set[pytest.Item] = set()
    for test, cases in tests.items():
        taken |= set(cases if test in asked else _usual(cases))
        taken |= {case for case in cases if case.nodeid in asked}
    waiting = [item for item in items if item not in taken]
    items[:] = [item for item in items if item in taken]
    config.hook.pytest_deselected(items=waiting)
