"""Times compiled calls against each other on concrete arguments."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jex

from jax_cocktail.lowering.state import STATE, go_on
from jax_cocktail.runtime.python import ctrl_c_stopped

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits of a measurement.

    Attributes:
      seconds: the time budget in all.
      longest: the budget for the first `fewest_rounds`.
      fewest_rounds, most_rounds: bounds on the number of rounds.
      hopeless: a run leaves the race above this ratio to the fastest.
    """

    seconds: float
    longest: float
    fewest_rounds: int
    most_rounds: int
    hopeless: float


QUICK = Effort(seconds=0.25, longest=0.6, fewest_rounds=8, most_rounds=60, hopeless=1.5)
THOROUGH = Effort(seconds=2.0, longest=4.0, fewest_rounds=16, most_rounds=400, hopeless=float("inf"))
TURN_SECONDS = 5e-4  # short calls repeat within a turn: threads of the previous run may still be spinning
MOST_REPEATS = 8
BUSY = 0.1  # measure longer if other processes hold this fraction of our cores
PATIENCE = 3.0  # longer by this factor
INSIDE_SECONDS = 0.03
LOOK_SECONDS = 0.12  # the kernel counts hundredths of a second


FAILURE = "OUT_OF_RANGE: jax_cocktail: "  # prefix of the handlers' messages if the program itself fails


class CallFails(Exception):
    """Raised if the user's program fails on these arguments, with any compiler."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds per call of every run, and the fraction of our cores that other processes held."""

    seconds: tuple[float, ...]
    others: float = 0.0


# Makes XLA capture everything it can in command buffers, loops included, whatever the size.
CAPTURE: Mapping[str, Any] = {
    "xla_gpu_enable_command_buffer": (
        "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,DYNAMIC_SLICE_FUSION,WHILE"
    ),
    "xla_gpu_graph_min_graph_size": 1,
}
# The graph also holds the body of a loop as often as it runs, if XLA knows how often. A loop whose iteration
# copies a slice between addresses that depend on the iteration is captured in no other way.
UNROLL: Mapping[str, Any] = {**CAPTURE, "xla_gpu_command_buffer_unroll_loops": True}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled call. All calls after the first take JAX's fast path. `seconds`: for which JAX has lowered
    and XLA has compiled it."""

    function: Run
    executable: Any
    seconds: float

    def __call__(self) -> Any:
        return self.function()

    @property
    def text(self) -> str:
        """The optimised module of XLA; "None" if the backend does not give it."""
        return str(self.executable.as_text())


def runner(jaxpr: Any, arguments: Sequence[Any], options: Mapping[str, Any] | None = None) -> Compiled:
    """Compiles a call. `options`: for XLA's compiler."""
    start = time.perf_counter()
    function = jax.jit(jex.jaxpr_as_fun(jaxpr), compiler_options=dict(options) if options else None)
    executable = function.lower(*arguments).compile()
    return Compiled(lambda: function(*arguments), executable, time.perf_counter() - start)


def captured_runner(
    jaxpr: Any, arguments: Sequence[Any], options: Mapping[str, Any], form: Mapping[str, Any]
) -> Compiled | None:
    """A call that is compiled with the options of a form as well, `CAPTURE` or `UNROLL`.

    None if the user's `options` contradict these or contain them all, or if XLA cannot capture the call.
    """
    together = {**form, **options}
    if together == options or any(together[name] != value for name, value in form.items()):
        return None
    try:
        return runner(jaxpr, arguments, together)
    except Exception:  # XLA does not know an option, or the driver is too old; omit this form
        return None


def race(runs: Sequence[Run], effort: Effort = QUICK, optional: Collection[int] = ()) -> Times:
    """Times the runs in turn and returns the minimum of each.

    The minimum counts because other load makes runs longer, never shorter. Load hits runs on all cores most,
    so a busy machine is measured for longer, to give each run a quiet moment. Every run executes at least
    once. The first turn warms caches and counts only if it used up the budget.

    Args:
      optional: positions of runs that may fail: a driver refuses a graph only when it is made. Their seconds
        are infinite then.

    Raises:
      CallFails: the first run (stock XLA) fails, or another one reports a failure of the program itself.
    """
    watch = Watch()
    watch.look_inside()
    best: list[list[float]] = [[] for _ in runs]
    racing = list(range(len(runs)))
    rounds = 0
    while not _enough(effort, rounds, watch):
        for which in racing[rounds % len(racing) :] + racing[: rounds % len(racing)]:
            go_on()
            try:
                best[which].append(turn(runs[which]))
            except Exception as error:
                if which == 0 or FAILURE in str(error):
                    raise CallFails(str(error)) from error
                if which not in optional:
                    raise
                best[which] = [float("inf")]
                racing.remove(which)
        rounds += 1
        if rounds >= effort.fewest_rounds:  # large results are slow until their memory is allocated
            fastest = min(_least(found) for found in best)
            racing = [i for i in racing if _least(best[i]) <= effort.hopeless * fastest]
    watch.look_inside()
    return Times(tuple(map(_least, best)), watch.others())


def _least(turns: Sequence[float]) -> float:
    return min(turns[1:] or turns)


def turn(run: Run) -> float:
    """The shortest of a few consecutive calls; a long call runs once."""
    least, spent, calls = float("inf"), 0.0, 0
    while calls == 0 or (spent < TURN_SECONDS and calls < MOST_REPEATS):
        start = time.perf_counter()
        try:
            jax.block_until_ready(run())
        except jax.errors.JaxRuntimeError as error:
            # Ctrl-C is meant for what the user has called, not for what is timed beside.
            if ctrl_c_stopped(error) and threading.current_thread() is not threading.main_thread():
                continue
            raise
        taken = time.perf_counter() - start
        least, spent, calls = min(least, taken), spent + taken, calls + 1
    return least


def _enough(effort: Effort, rounds: int, watch: Watch) -> bool:
    """True to stop. Slow programs get a few rounds beyond the budget, unless a round takes very long."""
    seconds = watch.seconds()
    if rounds < effort.fewest_rounds:
        return rounds > 0 and seconds > effort.longest
    if seconds <= effort.seconds and rounds <= effort.most_rounds:
        return False
    return seconds > PATIENCE * effort.seconds or watch.others() < BUSY


def idle() -> bool:
    """True if other processes leave our cores alone now. Takes a tenth of a second."""
    watch = Watch()
    time.sleep(LOOK_SECONDS)
    return watch.others() < BUSY


class Watch:
    """Measures wall time, and the load on our cores: of other processes, from the kernel's accounts, and of
    the user's program."""

    def __init__(self) -> None:
        self._cores = _our_cores()
        self._start, self._own, self._busy = time.perf_counter(), time.process_time(), self._ticks()
        self.inside = 0.0  # the fraction of our cores that the user's program holds

    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def others(self) -> float:
        """The fraction of our cores that other processes held since the start; 0 if it is unknown."""
        capacity = self.seconds() * len(self._cores)
        if self._busy is None or capacity < 0.1:  # the kernel counts hundredths of a second
            return 0.0
        busy = (self._ticks() or 0.0) - self._busy
        return min(max(busy - (time.process_time() - self._own), 0.0) / capacity + self.inside, 1.0)

    def look_inside(self) -> None:
        """Sleeps for a moment, and finds what the user's program does meanwhile, if this thread works beside
        it: while our runs are timed, nobody can tell them apart."""
        if STATE.beside:
            start, own = time.perf_counter(), time.process_time()
            time.sleep(INSIDE_SECONDS)
            seconds = (time.perf_counter() - start) * len(self._cores)
            self.inside = max(self.inside, (time.process_time() - own) / seconds)

    def _ticks(self) -> float | None:
        """Busy seconds of our cores since boot; None if the kernel does not report them."""
        try:
            lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            return None
        total = 0
        for name, *fields in map(str.split, lines):
            if name in self._cores:
                user, nice, system, _, _, *rest = map(int, fields)  # skips idle and iowait
                total += user + nice + system + sum(rest[:3])  # irq, softirq, steal
        return total / os.sysconf("SC_CLK_TCK")


def _our_cores() -> frozenset[str]:
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return frozenset(f"cpu{core}" for core in affinity)
