"""The report of `explain`: plain values that print as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

Counts = tuple[tuple[str, int], ...]
SCHEMES = ("local", "regional", "global")
_SAVING_EDGES, _GLOBAL_EDGES = 3, 2  # edges that the text shows; all are in the data
NOTABLE = 0.1  # reports mention other processes from this fraction of the cores upwards


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that one operator computes and another one reads.

    Attributes:
      made, read: ``operator at file:line (function)`` of both.
      scheme: ``"local"``, ``"regional"`` or ``"global"`` (AStitch, section 3.1).
      why: the reason, a clause or two.
      bytes: size of the value, times the executions in one call.
      saved_bytes: the loads and stores that one call is spared, compared with storing the value in memory
        that all units see and reading it again. The store counts with the first edge of a value.
      times: so many edges are alike; the bytes are those of all.
    """

    made: str
    read: str
    scheme: str
    why: str
    bytes: float
    saved_bytes: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class Stock:
    """What stock XLA makes of a region: the kernels of one call, and the bytes of their operands and results.
    A loop of unknown length counts with an assumed number of iterations, and a branch with its longest side.
    """

    kernels: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a program, in bytes.

    Attributes:
      space: ``"workspace"``: all units share it; ``"own"``, ``"private"``: each unit has so much for itself.
      bytes: its size.
      bound_bytes: the buffers that are live at the same time, at most: no plan needs less.
      separate_bytes: all buffers, which is its size if no two of them share memory.
    """

    space: str
    bytes: int
    bound_bytes: int
    separate_bytes: int


@dataclass(frozen=True, slots=True)
class Captured:
    """One region that became a custom call.

    Attributes:
      control_flow: ``primitive at file:line (function)`` of each outermost loop and branch; of a region
        without any, ``memory-bound subgraph at file:line (function)``.
      operators: the number of occurrences of each primitive in the region, nested ones included.
      scope: the scope (COCKTAILER, section 3) at which the region's loops run.
      workspace_bytes: scratch memory of the built program.
      memory: what is in it, as planned, and what each unit has besides.
      fingerprint: its identity.
      path: the file of its binary.
      seconds: compile time.
      cached: the binary came from the cache; no host compiler ran.
      units: the number of threads (on a GPU: thread blocks) that share the region.
      barriers: for each loop as compiled, (trip count or None, source line, barriers per iteration). A loop
        unrolled by two has half the trips.
      kernels: the programs that one call runs.
      waits: barriers of one call. Here and below, a loop of unknown length counts with an assumed number of
        iterations, and a branch with its worst side.
      loaded_bytes, stored_bytes: what all units together load and store in one call, as predicted; of a
        branch the mean over its sides.
      edges: the values that pass from operator to operator, those that save most first.
      stock: what stock XLA makes of the region; None unless asked for.
      fired: the passes that changed the program.
      remarks: the actions of the passes, or the reasons against them, one sentence each.
      lengths: the lengths that are launch parameters, each with the line of a loop of so many trips, or "".
        The binary serves other lengths as well.
      messages: ``primitive at file:line (function)`` of each print and debug callback inside of loops and
        branches. They are kept and made after the call.
      exits: ``file:line (function): reason`` of each side exit: a side of a branch that cannot be compiled,
        or prints and debug callbacks that may become too many.
      exited: how often calls in this process have left by a side exit, and how many calls there were.
    """

    control_flow: tuple[str, ...]
    operators: Counts
    scope: str
    workspace_bytes: int
    fingerprint: str
    path: str
    seconds: float
    cached: bool
    units: int = 1
    barriers: tuple[tuple[int | None, str, int], ...] = ()
    fired: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    exits: tuple[str, ...] = ()
    exited: tuple[int, int] = (0, 0)
    kernels: int = 1
    waits: float = 0.0
    loaded_bytes: float = 0.0
    stored_bytes: float = 0.0
    edges: tuple[Edge, ...] = ()
    stock: Stock | None = None
    memory: tuple[Memory, ...] = ()
    lengths: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """One timed candidate: seconds per call, and whether `jit` uses it."""

    name: str
    seconds: float
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """A loop, branch or memory-bound subgraph that stock XLA runs.

    Attributes:
      what: its primitive, or the primitives in it.
      reason: why, one sentence.
      where: its ``file:line (function)``, or "" if unknown.
      culprit: the place of the operation that is the reason, or "".
    """

    what: str
    reason: str
    where: str
    culprit: str = ""

    @property
    def placed(self) -> str:
        """What it is, and where."""
        return _place(self.what, self.where)

    @property
    def because(self) -> str:
        """The reason and its place."""
        return _place(self.reason, self.culprit)


@dataclass(frozen=True, slots=True)
class Report:
    """Describes how one call is compiled.

    Attributes:
      function: its name.
      captured: the regions that became custom calls.
      left: the loops and branches that stock XLA runs, and with scope="memory_bound" the subgraphs.
      beside: the primitives around the regions, which stock XLA compiles.
      recursions: the execution strategy of each recursion, one sentence each.
      choice: ``"cocktail"`` or ``"stock"``: the one that `jit` uses.
      why: the reason for `choice`.
      stock_seconds, cocktail_seconds: measured seconds per call of stock XLA and of our best candidate; None
        if nothing was measured.
      trials: everything that was timed.
      others: the fraction of our cores that other processes held during the measurement.
      pressure: how other processes have slowed down this process's calls so far; "" if they have not.
      inner: reports of jitted functions that are called from code that stock XLA runs.
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
    pressure: str = ""
    inner: tuple[Report, ...] = ()

    @property
    def workspace_bytes(self) -> int:
        return sum(region.workspace_bytes for region in self.captured)

    def __str__(self) -> str:
        names = {"cocktail": "jax_cocktail", "stock": "stock XLA"}
        lines = [f"{self.function}: runs on {names.get(self.choice, self.choice)} ({self.why})"]
        if self.stock_seconds is not None and self.cocktail_seconds is not None:
            lines.append(
                f"  measured: stock XLA {_time(self.stock_seconds)}, jax_cocktail"
                f" {_time(self.cocktail_seconds)} per call"
            )
        lines += _trial_lines(self.trials, self.others)
        lines += [f"  {self.pressure}"] if self.pressure else []
        lines += (f"  recursion {text}" for text in dict.fromkeys(self.recursions))
        for number, region in enumerate(self.captured):
            lines += _captured_lines(number, region)
        for item, same in groupby(self.left):
            lines.append(f"  left to stock XLA: {_place(item.what, item.where, len(tuple(same)))}")
            lines.append(f"    because: {item.because}")
        if self.beside:
            lines.append(f"  also compiled by stock XLA: {_counts(self.beside)}")
        for report in self.inner:
            lines += ["  " + line for line in str(report).splitlines()]
        return "\n".join(lines)


def _trial_lines(trials: Sequence[Trial], others: float) -> list[str]:
    """A table, fastest first. The ratio is the time of stock XLA (the first trial) over the candidate's."""
    if not trials:
        return []
    width = max(len(trial.name) for trial in trials)
    lines = [f"  {'candidate':{width}}  {'us per call':>12}  {'speedup':>10}"]
    for trial in sorted(trials, key=lambda t: t.seconds):
        ratio = trials[0].seconds / trial.seconds
        line = f"  {trial.name:{width}}  {trial.seconds * 1e6:12.1f}  {ratio:10.2f}"
        lines.append(line + ("  chosen" if trial.chosen else ""))
    if others >= NOTABLE:
        lines.append(
            f"  other processes held {others:.0%} of the cores during the measurement; the next process that"
            " starts on an idle machine measures again"
        )
    return lines


def _captured_lines(number: int, region: Captured) -> list[str]:
    built = "from the cache" if region.cached else "built"
    lines = [f"  custom call {number}: {_counts(region.operators)}"]
    for text, same in groupby(region.control_flow):
        what, _, where = text.partition(" at ")
        lines.append(f"    {_place(what, where, len(tuple(same)))}")
    units = f"{region.units} units; " if region.units > 1 else ""
    lines.append(f"    scope: {region.scope}; {units}workspace: {_bytes(region.workspace_bytes)}")
    lines += [f"    memory: {'; '.join(map(_packed, region.memory))}"] if region.memory else []
    lines.append(f"    {_moved(region)}")
    if region.stock is not None:
        kernels = _many(round(region.stock.kernels), "kernel")
        lines.append(f"    under stock XLA: {kernels}; loads and stores {_bytes(round(region.stock.bytes))}")
    lines += _edge_lines(region.edges)
    for (trips, loop, waits), alike in groupby(region.barriers):
        kind = "a while loop" if trips is None else f"a loop of {trips} trips"
        what = f"{_many(waits, 'barrier')} per iteration of {kind}"
        lines.append(f"    {_place(what, loop, len(tuple(alike)))}")
    for length, loop in region.lengths:
        lines.append(f"    {_place(f'launch parameter: the length {length}', loop)}")
    lines += _message_lines(region.messages)
    lines += (f"    side exit at {text}" for text in dict.fromkeys(region.exits))
    if region.exits:
        lines.append("    a call that comes to a side exit runs again on stock XLA, which compiles it, too")
    if region.exited[0]:
        lines.append("    {} of {} calls so far left by a side exit".format(*region.exited))
    if region.fired:
        lines.append(f"    changed by the passes: {', '.join(region.fired)}")
    lines += (f"      {text}" for text in region.remarks)
    lines.append(f"    {built} in {_time(region.seconds)}; fingerprint {region.fingerprint[:16]}")
    if region.path:
        lines.append(f"    files: {region.path}")
    return lines


def _message_lines(messages: Sequence[str]) -> list[str]:
    if not messages:
        return []
    prints = sum(text.startswith("debug_print") for text in messages)
    counts = ((prints, "print"), (len(messages) - prints, "debug callback"))
    told = " and ".join(_many(number, what) for number, what in counts if number)
    lines = [f"    {told} {'is' if len(messages) == 1 else 'are'} kept, and made after the call"]
    for text, same in groupby(messages):
        what, _, where = text.partition(" at ")
        lines.append(f"      {_place(what, where, len(tuple(same)))}")
    return lines


def _edge_lines(edges: Sequence[Edge]) -> list[str]:
    """The numbers of edges by scheme, then those that save most and the largest ones through memory of all
    units."""
    if not edges:
        return []
    counts = ((scheme, sum(e.times for e in edges if e.scheme == scheme)) for scheme in SCHEMES)
    told = ", ".join(f"{number:,} {scheme}" for scheme, number in counts if number)
    lines = [f"    edges: {told}; they save {_bytes(round(sum(e.saved_bytes for e in edges)))}"]
    shown = [e for e in edges if e.saved_bytes][:_SAVING_EDGES]
    shown += sorted((e for e in edges if e.scheme == SCHEMES[-1]), key=lambda e: -e.bytes)[:_GLOBAL_EDGES]
    for edge in shown:
        saved = f"saves {_bytes(round(edge.saved_bytes))}" if edge.saved_bytes else _bytes(round(edge.bytes))
        times = f" x{edge.times}" if edge.times > 1 else ""
        lines.append(f"      {edge.made} -> {edge.read}{times}")
        lines.append(f"        {edge.scheme}, {saved}: {edge.why}")
    rest = [e for e in edges if e not in shown]
    if rest:
        saved = _bytes(round(sum(e.saved_bytes for e in rest)))
        lines.append(f"      {_many(sum(e.times for e in rest), 'more edge')}: {saved}")
    return lines


def _moved(region: Captured) -> str:
    """What one call runs and moves."""
    waits = f", {_many(round(region.waits), 'barrier')}" if region.waits else ", no barrier"
    loaded, stored = (_bytes(round(size)) for size in (region.loaded_bytes, region.stored_bytes))
    return f"a call: {_many(region.kernels, 'kernel')}{waits}; loads {loaded}, stores {stored} (predicted)"


def _packed(memory: Memory) -> str:
    """A space, and what it could be at best and at worst."""
    sizes = f"lower bound {_bytes(memory.bound_bytes)}, without reuse {_bytes(memory.separate_bytes)}"
    return f"{memory.space} {_bytes(memory.bytes)} ({sizes})"


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _place(what: str, where: str, times: int = 1) -> str:
    """``what xTIMES at where``; "x1" and an empty `where` are omitted."""
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
