"""Compares two results of `bench`, row by row."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jax_cocktail_tools.commands import result
from jax_cocktail_tools.commands.intervals import Interval
from jax_cocktail_tools.commands.progress import line
from jax_cocktail_tools.commands.result import Result, Row
from jax_cocktail_tools.report.text import NOTABLE

ABOUT = "Compare two results of bench --json: what got faster, what got slower, and what is noise."
NOISE, FASTER, SLOWER = "within the noise", "faster", "slower"
_HEADINGS = ("program", "before", "after", "change", "")
_WIDTHS, _LEFT = (31, 22, 22, 8, 16), (0, 4)


@dataclass(frozen=True, slots=True)
class Change:
    """A row in both results. `ratio`: above 1, it got faster; `beyond`: the intervals do not overlap."""

    name: str
    before: Interval
    after: Interval
    ratio: float
    beyond: bool

    @property
    def verdict(self) -> str:
        """In words."""
        if not self.beyond:
            return NOISE
        return FASTER if self.ratio > 1 else SLOWER

    def slower_by(self, percent: float) -> bool:
        """True if it got slower by more than that, beyond the noise: the time grew by so many percent."""
        return self.beyond and 1 / self.ratio > 1 + percent / 100


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    command.add_argument("before", type=Path, metavar="A", help="a file of bench --json")
    command.add_argument("after", type=Path, metavar="B", help="another one")
    command.add_argument(
        "--by",
        choices=("ratio", "time"),
        default="ratio",
        help="what is compared. ratio (default): how much faster than stock XLA our program is; both ran in"
        " turn, so that load and clock of the machine cancel. time: the time of a call of our program",
    )
    command.add_argument(
        "--fail-slower",
        type=float,
        metavar="PERCENT",
        help="exit with status 1 if a row got slower by more than PERCENT, beyond the noise",
    )


def main(options: argparse.Namespace) -> int:
    """Prints the comparison. Returns 1 if something got slower than is allowed. Raises Problem."""
    before, after = result.read(options.before), result.read(options.after)
    for text in differing(before, after):
        print(text)
    found = changes(before, after, options.by)
    what = "stock / ours" if options.by == "ratio" else "ms per call of ours"
    print(f"{what}, with the interval of 95 %; change above 1: B is faster")
    print(line(_HEADINGS, _WIDTHS, _LEFT))
    for each in found:
        pair = (_interval_text(each.before, options.by), _interval_text(each.after, options.by))
        print(line((each.name, *pair, f"{each.ratio:.2f}", each.verdict), _WIDTHS, _LEFT))
    for text in alone(before, after):
        print(text)
    if options.fail_slower is None:
        return 0
    failed = [each.name for each in found if each.slower_by(options.fail_slower)]
    if failed:
        print(f"slower by more than {options.fail_slower:g} %: {', '.join(failed)}")
    return 1 if failed else 0


def changes(before: Result, after: Result, by: str = "ratio") -> list[Change]:
    """The rows in both, in the order of the first."""
    later = {row.name: row for row in after.rows}
    return [_change(row, later[row.name], by) for row in before.rows if row.name in later]


def _change(before: Row, after: Row, by: str) -> Change:
    if by == "ratio":
        old, new = before.ratio, after.ratio
        return Change(before.name, old, new, new.middle / old.middle, not old.overlaps(new))
    old, new = before.ours.median, after.ours.median
    return Change(before.name, old, new, old.middle / new.middle, not old.overlaps(new))


def _interval_text(value: Interval, by: str) -> str:
    scale = 1.0 if by == "ratio" else 1e3
    middle, low, high = (f"{each * scale:.3g}" for each in (value.middle, value.low, value.high))
    return f"{middle} ({low} to {high})"


def alone(before: Result, after: Result) -> Iterator[str]:
    """The rows of only one of them, a sentence each."""
    names = [{row.name for row in each.rows} for each in (before, after)]
    for row in before.rows:
        if row.name not in names[1]:
            yield f"{row.name}: only in A"
    for row in after.rows:
        if row.name not in names[0]:
            yield f"{row.name}: only in B"


def differing(before: Result, after: Result) -> Iterator[str]:
    """Other differences: versions, machine, settings, load."""
    pairs: dict[str, tuple[object, object]] = {}
    for name in {**before.versions, **after.versions}:
        pairs[f"version of {name}"] = before.versions.get(name), after.versions.get(name)
    for what in ("processor", "cores", "quota"):
        pairs[what] = getattr(before.machine, what), getattr(after.machine, what)
    pairs["devices"] = ", ".join(before.devices), ", ".join(after.devices)
    for name in {**before.settings, **after.settings}:
        pairs[f"setting {name}"] = before.settings.get(name), after.settings.get(name)
    for what, (old, new) in pairs.items():
        if old != new:
            yield f"{what}: {_word(old)} in A, {_word(new)} in B"
    for name, each in (("A", before), ("B", after)):
        most = max((row.others for row in each.rows), default=0.0)
        if most >= NOTABLE:
            yield f"{name} was measured while other processes held up to {most:.0%} of the cores"


def _word(value: object) -> str:
    return "none" if value is None else str(value)
