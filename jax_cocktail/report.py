"""What `explain` returns: plain values that print as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

Counts = tuple[tuple[str, int], ...]
NOTABLE = 0.1  # part of the cores that others held, from which on it is told


@dataclass(frozen=True, slots=True)
class Captured:
    """One region that became a custom call.

    Attributes:
      control_flow: ``primitive at file:line (function)`` of each outermost loop and branch.
      operators: how often each primitive occurs in the region, nested ones included.
      level: the COCKTAILER unit level at which the region's loops run.
      workspace_bytes, fingerprint, path: scratch memory, identity, and place of the built program.
      seconds, cached: time spent in the compiler; no C++ compiler ran if `cached`.
      units: how many threads share the region.
      barriers: (trips or None, where, how often the units wait for each other in an iteration) of each loop,
        as it was compiled: unrolled by two, a loop has half the trips.
      fired: the passes that changed the program.
      remarks: what the passes did to which loop, or why they did not, one sentence each.
    """

    control_flow: tuple[str, ...]
    operators: Counts
    level: str
    workspace_bytes: int
    fingerprint: str
    path: str
    seconds: float
    cached: bool
    units: int = 1
    barriers: tuple[tuple[int | None, str, int], ...] = ()
    fired: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to run the call that was timed: seconds of one call."""

    name: str
    seconds: float
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """Control flow that stock XLA runs, with the reason and where in the user's program it comes from."""

    what: str
    reason: str
    where: str


@dataclass(frozen=True, slots=True)
class Report:
    """How one call is compiled.

    Attributes:
      function: its name.
      captured: regions that became custom calls.
      left: control flow that did not.
      beside: primitives around the regions, which stock XLA compiles.
      recursions: how each recursion runs, one sentence each.
      choice: ``"cocktail"`` or ``"stock"``, what `jit` uses; `why` says who decided.
      stock_seconds, cocktail_seconds: measured times of one call, if it was measured; ours is the best of it.
      trials: all that was timed.
      others: the part of our cores that other processes held meanwhile.
      inner: reports of marked functions that are called from what stock XLA runs.
    """

    function: str
    captured: tuple[Captured, ...] = ()
    left: tuple[Left, ...] = ()
    beside: Counts = ()
    recursions: tuple[str, ...] = ()
    choice: str = "stock"
    why: str = ""
    stock_seconds: float | None = None
    cocktail_seconds: float | None = None
    trials: tuple[Trial, ...] = ()
    others: float = 0.0
    inner: tuple[Report, ...] = ()

    @property
    def workspace_bytes(self) -> int:
        return sum(region.workspace_bytes for region in self.captured)

    def with_inner(self, reports: Sequence[Report]) -> Report:
        return replace(self, inner=tuple(reports))

    def __str__(self) -> str:
        names = {"cocktail": "jax_cocktail", "stock": "stock XLA"}
        lines = [f"{self.function}: runs on {names.get(self.choice, self.choice)} ({self.why})"]
        if self.stock_seconds is not None and self.cocktail_seconds is not None:
            lines.append(
                f"  measured: stock XLA {_time(self.stock_seconds)}, jax_cocktail"
                f" {_time(self.cocktail_seconds)} a call"
            )
        lines += _trial_lines(self.trials, self.others)
        lines += (f"  recursion {text}" for text in dict.fromkeys(self.recursions))
        for number, region in enumerate(self.captured):
            lines += _captured_lines(number, region)
        for item, same in groupby(self.left):
            lines.append(f"  left to stock XLA: {_place(item.what, item.where, len(tuple(same)))}")
            lines.append(f"    because: {item.reason}")
        if self.beside:
            lines.append(f"  compiled by stock XLA beside that: {_counts(self.beside)}")
        for report in self.inner:
            lines += ["  " + line for line in str(report).splitlines()]
        return "\n".join(lines)


def _trial_lines(trials: Sequence[Trial], others: float) -> list[str]:
    """A table, fastest first; the ratio is that of stock XLA (the first of the trials) to each."""
    if not trials:
        return []
    width = max(len(trial.name) for trial in trials)
    lines = [f"  {'candidate':{width}}  {'us a call':>12}  {'stock / it':>10}"]
    for trial in sorted(trials, key=lambda t: t.seconds):
        ratio = trials[0].seconds / trial.seconds
        line = f"  {trial.name:{width}}  {trial.seconds * 1e6:12.1f}  {ratio:10.2f}"
        lines.append(line + ("  chosen" if trial.chosen else ""))
    if others >= NOTABLE:
        lines.append(f"  meanwhile other processes held {others:.0%} of the cores")
    return lines


def _captured_lines(number: int, region: Captured) -> list[str]:
    built = "from the cache" if region.cached else "built"
    lines = [f"  custom call {number}: {_counts(region.operators)}"]
    for text, same in groupby(region.control_flow):
        what, _, where = text.partition(" at ")
        lines.append(f"    {_place(what, where, len(tuple(same)))}")
    units = f"{region.units} units; " if region.units > 1 else ""
    lines.append(f"    level: {region.level}; {units}workspace: {_bytes(region.workspace_bytes)}")
    for (trips, loop, waits), alike in groupby(region.barriers):
        kind = "a while loop" if trips is None else f"a loop of {trips} trips"
        what = f"{waits} barrier{'s' if waits != 1 else ''} per iteration of {kind}"
        lines.append(f"    {_place(what, loop, len(tuple(alike)))}")
    if region.fired:
        lines.append(f"    transforms that changed it: {', '.join(region.fired)}")
    lines += (f"      {text}" for text in region.remarks)
    lines.append(f"    {built} in {_time(region.seconds)}; fingerprint {region.fingerprint[:16]}")
    if region.path:
        lines.append(f"    files: {region.path}")
    return lines


def _place(what: str, where: str, times: int) -> str:
    """``what xTIMES at where``, without what goes without saying."""
    return what + (f" x{times}" if times > 1 else "") + (f" at {where}" if where else "")


def _counts(counts: Counts) -> str:
    return ", ".join(name if n == 1 else f"{n} {name}" for name, n in counts)


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _bytes(number: int) -> str:
    if number < 1 << 10:
        return f"{number} B"
    return f"{number / (1 << 10):.1f} KiB" if number < 1 << 20 else f"{number / (1 << 20):.1f} MiB"
