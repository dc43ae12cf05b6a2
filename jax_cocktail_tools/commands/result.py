"""The result of `bench` as values, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jax_cocktail.plain import from_plain, to_plain
from jax_cocktail_tools.commands.intervals import Interval
from jax_cocktail_tools.commands.machine import MachineFacts
from jax_cocktail_tools.commands.problem import Problem
from jax_cocktail_tools.report.text import NOTABLE

SCHEMA = "jax_cocktail bench 1"


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one program, in seconds: the median of a call with its interval, the quartiles of all calls,
    and the first call, compilation included."""

    median: Interval
    quartiles: tuple[float, float]
    first: float


@dataclass(frozen=True, slots=True)
class Row:
    """A model under stock XLA, under jax_cocktail with our program forced, and as `jit` chooses.

    Attributes:
      model, batch: which it is; description: for people.
      captured: ``"k of n"`` loops and branches became custom calls.
      choice: ``"cocktail"`` or ``"stock"``, what `jit` uses.
      difference, tolerance: of the results to those of stock XLA: the largest, and what is accepted.
      stock, ours, auto: their times.
      ratio, auto_ratio: the time of stock XLA over that of ours, and over that of `jit`.
      rounds: how often each was called.
      others: the fraction of our cores that other processes held meanwhile.
      units: threads or thread blocks of our program, the most of its custom calls.
      flops, bytes: of the custom calls of one call, as predicted: operations; loads and stores.
      plan: the name of the candidate that `jit` uses, if it has timed several; else what it uses.
      by_hand: times of the same by code that was written by hand for stock XLA, by the name of the way.
    """

    model: str
    batch: int
    description: str
    captured: str
    choice: str
    difference: float
    tolerance: float
    stock: Timing
    ours: Timing
    auto: Timing
    ratio: Interval
    auto_ratio: Interval
    rounds: int
    others: float
    units: int
    flops: float
    bytes: float
    plan: str = ""
    by_hand: dict[str, Timing] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.model}/{self.batch}"

    @property
    def wrong(self) -> bool:
        """True if the results differ from those of stock XLA by more than is accepted."""
        return not self.difference <= self.tolerance


@dataclass(frozen=True, slots=True)
class Step:
    """A point of a curve: a batch size or a number of units, and seconds per call."""

    at: int
    stock: Interval
    ours: Interval


@dataclass(frozen=True, slots=True)
class Curve:
    """Times of a model that grows. `axis`: ``"batch"`` or ``"units"``."""

    model: str
    axis: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The rates of the machine that no program exceeds: `flops` per second, and bytes per second from each
    level of its memory. `source`: ``"measured"`` or ``"data sheet"``; `others`: the fraction of the cores
    that other processes held meanwhile."""

    flops: float
    levels: dict[str, float]
    source: str
    others: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """The findings of a run of `bench`.

    Attributes:
      made: when, in ISO 8601.
      versions: of jax, jaxlib, jax_cocktail, Python, NumPy and compilers.
      devices: what jax computes on, with the platform.
      settings: of the run.
    """

    made: str
    versions: dict[str, str]
    machine: MachineFacts
    devices: tuple[str, ...]
    settings: dict[str, str]
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...] = ()
    ceilings: Ceilings | None = None
    schema: str = field(default=SCHEMA)


def remarks(found: Result) -> Iterator[str]:
    """Warns who reads the figures, a sentence each."""
    busy = [row for row in found.rows if row.others >= NOTABLE]
    if busy:
        most = max(row.others for row in busy)
        yield (
            f"The machine was busy: other processes held up to {most:.0%} of the cores during {len(busy)} of"
            f" {len(found.rows)} rows. Programs on several cores suffer most. Measure again when it is idle."
        )
    if found.settings["sizes"] == "small":
        yield "These are tiny models: a check that all works, not a benchmark."


def by_hand(row: Row) -> Iterator[str]:
    """Times of code that was written by hand for stock XLA, beside `jit`, a sentence each."""
    for way, timing in row.by_hand.items():
        seconds = timing.median.middle
        ratio = seconds / row.auto.median.middle
        yield f"{row.name} by hand, {way}: {seconds * 1e3:.3f} ms under stock XLA, {ratio:.2f} times jit"


def to_json(result: Result) -> str:
    """The text of a file."""
    return json.dumps(to_plain(result), indent=1) + "\n"


def read(path: Path) -> Result:
    """The result in a file. Raises Problem if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Problem(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise Problem(f"{path} is not JSON ({error})", "a file that bench --json has written") from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        remedy = "a file that bench --json of this version has written"
        raise Problem(f"{path} has the schema {schema!r}, not {SCHEMA!r}", remedy)
    try:
        result = from_plain(Result, found, "result", finite=False)  # wrong results may differ infinitely
    except ValueError as error:
        raise Problem(f"{path} is no result of bench: {error}", "make it again with bench --json") from error
    assert isinstance(result, Result)
    return result
