"""The values of a report: what `explain` finds, without any form of showing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

Counts = tuple[tuple[str, int], ...]
SCHEMES = ("local", "regional", "global")
KINDS = ("loop", "parts", "branch", "side", "condition", "stage", "barrier", "exchange")


def place(what: str, where: str, times: int = 1) -> str:
    """``what xTIMES at where``; "x1" and an empty `where` are omitted."""
    return what + (f" x{times}" if times > 1 else "") + (f" at {where}" if where else "")


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
    """The kernels of one call that stock XLA makes of a region, and the bytes of their operands and results.
    A loop of unknown length counts with an assumed number of iterations, and a branch with its longest side.
    """

    kernels: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a program, in bytes.

    Attributes:
      space: ``"workspace"``: all units share it; ``"own"``, ``"private"``: each unit has so much for itself;
        ``"thread"``: each thread of a GPU has.
      bytes: its size.
      bound_bytes: the buffers that are live at the same time, at most: no plan needs less.
      separate_bytes: all buffers, which is its size if no two of them share memory.
    """

    space: str
    bytes: int
    bound_bytes: int
    separate_bytes: int


@dataclass(frozen=True, slots=True)
class Node:
    """A part of the program that runs: a loop, a branch, operators that are computed together, or a barrier.

    Attributes:
      number: which one, in the order of the program.
      kind: one of `KINDS`. A `"parts"` is a parallel loop, whose trips the units share, or their threads.
      what: its operators, or the part in words.
      where: its ``file:line (function)``, or "".
      others: the places of its other operators, in the order of the program.
      trips: iterations of a loop; None for other parts, and if the number is known only at run time.
      seconds: predicted time of one execution; of a loop, of one iteration.
      barriers: of a loop, how often the units wait for each other in one iteration, without inner loops.
      inner: the parts inside.
    """

    number: int
    kind: str
    what: str
    where: str = ""
    trips: int | None = None
    seconds: float = 0.0
    barriers: int = 0
    inner: tuple[Node, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """Edges between two nodes, or inside one.

    Attributes:
      made, read: the numbers of the nodes.
      scheme: as of an `Edge`.
      bytes: size of the values, times the executions in one call.
      times: so many edges.
    """

    made: int
    read: int
    scheme: str
    bytes: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """The place where a report was made.

    Attributes:
      jax_cocktail, jax: the versions.
      device: the processor or the card that the program is for.
      cores: processor cores that this process may use.
    """

    jax_cocktail: str = ""
    jax: str = ""
    device: str = ""
    cores: int = 0


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
        iterations. Of the sides of a branch, the worst one counts here.
      loaded_bytes, stored_bytes: what all units together load and store in one call, as predicted; of a
        branch the mean over its sides.
      flops: the floating-point operations of one call, as predicted; a function such as `tanh` has several.
      edges: the values that pass from operator to operator, those that save most first.
      stock: what stock XLA makes of the region; None unless asked for.
      fired: the passes that changed the program.
      remarks: the actions of the passes, or the reasons against them, one sentence each.
      choices: ``name: what is taken, not the alternatives (file:line)`` of each choice, which the options
        ``choices`` and ``without`` name.
      lengths: the lengths that are launch parameters, each with the line of a loop of so many trips, or "".
        The binary serves other lengths as well.
      messages: ``primitive at file:line (function)`` of each print and debug callback inside of loops and
        branches. They are kept and made after the call.
      exits: ``file:line (function): reason`` of each side exit: a side of a branch that cannot be compiled,
        or prints and debug callbacks that may become too many.
      exited: how often calls in this process have left by a side exit, and how many calls there were.
      tree: the program that runs, as nested parts.
      flows: the edges between these parts.
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
    choices: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    exits: tuple[str, ...] = ()
    exited: tuple[int, int] = (0, 0)
    kernels: int = 1
    waits: float = 0.0
    loaded_bytes: float = 0.0
    stored_bytes: float = 0.0
    flops: float = 0.0
    edges: tuple[Edge, ...] = ()
    stock: Stock | None = None
    memory: tuple[Memory, ...] = ()
    lengths: tuple[tuple[int, str], ...] = ()
    tree: tuple[Node, ...] = ()
    flows: tuple[Flow, ...] = ()


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
        """Says what it is, and where."""
        return place(self.what, self.where)

    @property
    def because(self) -> str:
        """The reason and its place."""
        return place(self.reason, self.culprit)


@dataclass(frozen=True, slots=True)
class Contents:
    """The fields of a `Report`, which says what they are. What shows a report needs no more."""

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
    now: str = ""
    inner: tuple[Self, ...] = ()
    made: Setting = Setting()
    code: tuple[tuple[str, str], ...] = ()
