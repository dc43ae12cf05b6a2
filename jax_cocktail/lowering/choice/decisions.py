"""Decides between our candidates and stock XLA, and stores the decision.

A decision is measured once per program and machine, on the first concrete arguments. Candidates are timed as
whole calls, in turn, so that a drift of the machine affects all of them.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jaxlib

from jax_cocktail import cache, portable
from jax_cocktail.build.job import program_folders
from jax_cocktail.config import VERSION
from jax_cocktail.device.cards import DEFAULTS
from jax_cocktail.device.processor import cores
from jax_cocktail.lowering.edge.jaxpr_text import jaxpr_text
from jax_cocktail.lowering.run.stopwatch import BUSY, CAPTURE, UNROLL, Times
from jax_cocktail.memory import MEMORY
from jax_cocktail.records import Store
from jax_cocktail.report import Trial
from jax_cocktail.utask.candidate import SINGLE, Candidate

MARGIN = 0.98  # ours must take at most this fraction of stock's time: a smaller difference is noise
# Used if heavy operators dominate, ours uses fewer cores than stock, and other processes held some cores.
WIDE_MARGIN = 0.85
QUIET = 0.03  # the machine is quiet if other processes held at most this fraction of our cores
# On a busy machine a plan for several units may lose this much to one for a single unit. Its units come back
# when the machine is free, whereas another plan could change the bits of the results.
SPARE = 0.9
LEAST_SAVED_SECONDS = 0.1  # of XLA's compilation: less is noise
STOCK = "stock XLA"
CAPTURED = "stock XLA, captured"
UNROLLED = "stock XLA, captured and unrolled"
# The options of XLA's compiler that make these forms. Only the caller of `jit` can pass them.
FORMS: Mapping[str, Mapping[str, Any]] = {CAPTURED: CAPTURE, UNROLLED: UNROLL}
FOLDER = "decisions"
_LOCK_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Our plan for a whole call: the candidate for its regions, and the numbers of the regions that stay with
    stock XLA nevertheless."""

    candidate: Candidate = SINGLE
    skip: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        left = f" without call {', '.join(map(str, self.skip))}" if self.skip else ""
        return self.candidate.name + left


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision for one call.

    Attributes:
      choice: ``"cocktail"`` or ``"stock"``.
      plan: our best plan, whatever the choice.
      trials: everything that was timed; empty if nothing was measured.
      why: the reason for the choice if nothing was measured.
      thorough: all candidates were timed.
      others: the fraction of our cores that other processes held during the measurement.
      kept: why the first choice stays although the other one measured faster later; "" if it did not.
      stock_compile_seconds, our_compile_seconds: for which XLA has compiled the call as it came, and with our
        calls; 0 if nothing was measured.
    """

    choice: str
    plan: Plan = Plan()
    trials: tuple[Trial, ...] = ()
    why: str = ""
    thorough: bool = False
    others: float = 0.0
    kept: str = ""
    stock_compile_seconds: float = 0.0
    our_compile_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.choice not in ("cocktail", "stock"):
            raise ValueError(f"not a choice: {self.choice!r}")

    @property
    def text(self) -> str:
        """All of it, for people."""
        facts = {"choice": self.choice, "plan": self.plan.name, "why": self.why, "kept": self.kept}
        lines = [f"{name}: {value}" for name, value in facts.items() if value]
        lines += [f"{trial.seconds * 1e6:.1f} us: {trial.name}" for trial in self.trials]
        if self.trials:
            lines.append(f"other processes held {self.others:.0%} of the cores")
        return "\n".join(lines)

    @property
    def measured(self) -> bool:
        return bool(self.trials)

    @property
    def provisional(self) -> bool:
        """True if other processes held so many cores that the measurement is to be taken again."""
        return self.measured and self.others >= BUSY

    @property
    def stock_seconds(self) -> float | None:
        return next((t.seconds for t in self.trials if t.name == STOCK), None)

    @property
    def cocktail_seconds(self) -> float | None:
        """Seconds per call of our best plan; None if it was not timed."""
        return next((t.seconds for t in self.trials if t.name == self.plan.name), None)

    def pays_anew(self, seconds: float) -> bool:
        """True if our program is better although stock XLA's is faster: a function that is jitted again and
        again is compiled each time, and XLA has less to compile with our calls.

        `seconds`: between the last two of these times, which is the most that the calls between them took.
        """
        stock, ours = self.stock_seconds, self.cocktail_seconds
        saved = self.stock_compile_seconds - self.our_compile_seconds
        if stock is None or ours is None or self.why or saved < LEAST_SAVED_SECONDS:
            return False  # or there is another reason than the times
        calls = max(seconds - self.stock_compile_seconds, 0.0)
        return calls * (ours / stock - 1) < saved

    @property
    def advice(self) -> str:
        """Advice to the caller, or "": the fastest of the forms that only the caller can have."""
        stock, ours = self.stock_seconds, self.cocktail_seconds
        captured = [trial for trial in self.trials if trial.name in FORMS]
        if stock is None or ours is None or not captured:
            return ""
        now, best = stock if self.choice == "stock" else ours, min(captured, key=lambda t: t.seconds)
        if best.seconds > MARGIN * now:
            return ""
        loops = " with unrolled loops" if best.name == UNROLLED else ""
        times = "" if self.provisional else f", {now / best.seconds:.1f} times as fast as what runs now"
        return (
            f"stock XLA captured in command buffers{loops} is fastest{times}:"
            f" jit(..., compiler_options={dict(FORMS[best.name])})"
        )


def choose(
    plans: Sequence[Plan],
    times: Times,
    heavy: bool,
    cores: int,
    forms: Sequence[str] = (STOCK,),
    prices: Sequence[float] = (),
) -> Decision:
    """Decides from measured times.

    A plan for several threads must beat one for a single thread by the margin too, because its threads may
    have to wait for busy cores. Ours is compared with stock XLA as it would run instead. Only the caller can
    select another form of it (see `Decision.advice`).

    Args:
      plans: our plans.
      times: of the forms of stock XLA and of the plans, in this order; infinite if a form cannot run.
      heavy: heavy operators dominate the run time.
      cores: the number of cores; 0 for a GPU.
      forms: the names of stock XLA's forms; the default one is the first.
      prices: seconds of the plans on an idle machine, as the model sees it. On a busy machine they favour
        plans for several units (see `SPARE`).
    """
    stock, ours = times.seconds[0], times.seconds[len(forms) :]
    handicaps = [1.0 if plan.candidate.units == 1 else 1 / MARGIN for plan in plans]
    if times.others >= BUSY and prices:
        units = [plan.candidate.units for plan in plans]
        alone = min((p for p, n in zip(prices, units, strict=True) if n == 1), default=0.0)
        gains = [p < alone and n > 1 for p, n in zip(prices, units, strict=True)]
        handicaps = [SPARE if gain else h for gain, h in zip(gains, handicaps, strict=True)]
    best = min(range(len(plans)), key=lambda i: ours[i] * handicaps[i])
    unfair = heavy and plans[best].candidate.units < cores and times.others > QUIET
    margin = WIDE_MARGIN if unfair else MARGIN
    choice = "cocktail" if ours[best] <= margin * stock else "stock"
    timed = zip((*forms, *(plan.name for plan in plans)), times.seconds, strict=True)
    trials = tuple(Trial(name, seconds) for name, seconds in timed if seconds < math.inf)
    return Decision(choice, plans[best], trials, others=times.others)


def settle(first: Decision, second: Decision, exact: bool) -> Decision:
    """The decision after a provisional one was measured again.

    A function's results keep their bits as long as its program and machine stay the same. So the first choice
    stays if another one could round differently.

    Args:
      first: the provisional decision.
      second: the one that was measured now.
      exact: the call has no floating-point values, so every choice gives the same bits.
    """
    if second.provisional:
        return first
    same = first.choice == second.choice and (first.choice == "stock" or first.plan == second.plan)
    if same or exact:
        return second
    better = STOCK if second.choice == "stock" else second.plan.name
    kept = (
        f"chosen while other processes held {first.others:.0%} of the cores; {better} measured faster since,"
        ' but could change the last bits of results: options={"profile": "full"} takes it'
    )
    return replace(second, choice=first.choice, plan=first.plan, kept=kept)


def known_why(decision: Decision) -> str:
    """The reason for a decision that was measured before."""
    return why_of(decision, "measured before on this machine")


def why_of(decision: Decision, otherwise: str) -> str:
    """The reason for a decision, with what else a reader should know."""
    return "; ".join(filter(None, (decision.why or otherwise, decision.kept, decision.advice)))


def key_of(
    jaxpr: Any,
    units: int,
    device: str = "",
    options: Mapping[str, Any] | None = None,
    memory_bound: bool = False,
    card: str = "",
    near: str = "",
) -> str:
    """The key of a decision.

    It covers the computation, the versions of the compilers, the machine, the number of units, the `card`
    and the whole `device` ("" for the CPU), the `options` of XLA's compiler and the option `scope`
    (`memory_bound`), but no name and no position in the user's program. It uses the jaxpr's text, so a
    process that finds a decision for stock XLA need not capture anything. `near`: for all calls with sizes
    near those of this one, which this text tells from others.
    """
    text = jaxpr_text(jaxpr)
    what = [re.sub(r"\d+", "", text) + near if near else text, *versions(), card]
    what += [f"{name}={value}" for name, value in sorted((options or {}).items())]
    what += ["memory-bound"] if memory_bound else []
    return portable.name_of(what, [*machine_facts(), os.environ.get("XLA_FLAGS", ""), str(units), device])


@functools.cache
def versions() -> tuple[str, ...]:
    """The part of every key about the installation: the versions, and our compiler's sources."""
    return jax.__version__, jaxlib.__version__, VERSION, _compiler_digest()


@functools.cache
def machine_facts() -> tuple[str, ...]:
    """The part of every key about this machine: its processor and the number of cores."""
    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.split(":")[0].strip() in ("model name", "CPU part"):
                model = line
                break
    except OSError:
        model = platform.processor()
    return platform.machine(), model, str(cores())


def _compiler_digest() -> str:
    """SHA-256 of our own sources: a changed compiler needs a new measurement."""
    digest = hashlib.sha256()
    for path in compiler_sources():
        digest.update(os.path.basename(path).encode())
        with open(path, "rb", buffering=0) as file:
            digest.update(file.read())
    return digest.hexdigest()


def compiler_sources() -> Iterator[str]:
    """The files that decide what a program becomes: the package, and what emitted text includes."""
    package = Path(cache.__file__).resolve().parent
    targets = (f"{platform}_src" for platform in ("cpu", *DEFAULTS))
    for folder in dict.fromkeys((package, *(each for target in targets for each in program_folders(target)))):
        yield from _sources(str(folder))


def _sources(folder: str) -> Iterator[str]:
    """The sources in a folder and below, in a fixed order."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir():
            if entry.name != "_src":
                yield from _sources(entry.path)
        elif entry.name.endswith((".py", ".h", ".cc")):
            yield entry.path


# ---- the store ---------------------------------------------------------------------------------------------

STORE = Store(Decision, FOLDER)


def load(key: str) -> Decision | None:
    """The stored decision; None if there is no valid one."""
    here = (str(cache.cache_dir()), key)
    if (found := STORE.load(key)) is not None:
        MEMORY.decisions.keep(here, found)
    known: Decision | None = MEMORY.decisions.get(here)
    return known


def used_here(key: str) -> bool:
    """True if this process has loaded or stored a decision for the key, as far as it remembers."""
    return (str(cache.cache_dir()), key) in MEMORY.decisions


def plan_for(units: Iterable[int]) -> None:
    """Lets plans for these numbers of units count as well: another machine has made them."""
    MEMORY.planned_for.update(units)


def planned_for(units: int) -> tuple[int, ...]:
    """The numbers of units that a known plan may be for. `units`: what is planned for here."""
    return units, *sorted(MEMORY.planned_for)


def store(key: str, decision: Decision) -> None:
    """Stores a decision, if only for this process."""
    MEMORY.decisions.keep((str(cache.cache_dir()), key), decision)
    STORE.store(key, decision)


def exclusive(key: str) -> AbstractContextManager[bool]:
    """Lets one process at a time measure a program, see `cache.one_at_a_time`."""
    return cache.one_at_a_time(FOLDER, key, _LOCK_SECONDS)
