"""All that this process remembers of calls and programs, in one object: made once, and anew by a test.

Not here is what holds until the process ends: the lowering rule (`lowering.edge.intercept`), handlers and
libraries (`custom_call`, `gpu_call` and `failure_call` beside it), the programs that may run
(`runtime.trust`), and the thread of the background (`lowering.run.background`).
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, TypeVar

MOST = 1024
MOST_PREPARED, MOST_PLANS, MOST_USED = 32, 64, 4096
_lock = threading.RLock()  # a finalizer that runs meanwhile may come here again
K = TypeVar("K")
V = TypeVar("V")


def _fresh_lock() -> None:
    """A forked child may find the lock taken by a thread that it does not have, and does none of its work."""
    global _lock
    _lock = threading.RLock()
    MEMORY.unfinished.clear()


os.register_at_fork(after_in_child=_fresh_lock)


class Recent(dict[K, V]):
    """A table of what came last. It stays small, however many programs a process compiles."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: K, value: V) -> None:
        """Makes an entry the latest. Of more than `most` entries, the oldest ones go."""
        with _lock:
            self.pop(key, None)
            self[key] = value
            for old in list(self)[: -self.most] if len(self) > self.most else ():
                self.pop(old, None)


@dataclass(slots=True)
class Counts:
    """Numbers of runs of compilers for programs, of programs that a binary for other lengths serves, and of
    calls that have changed over, or cannot since an error has occurred."""

    compiled: int = 0
    resized: int = 0
    changed_over: int = 0
    failed: int = 0


Place = tuple[str, str]  # a folder, and a name or key in it


class Carried:
    """Records and programs from another machine (`portable`): by place, and by the first part of the name; by
    key, and the digests of their binaries."""

    def __init__(self) -> None:
        self.records: dict[Place, Any] = {}
        self.elsewhere: dict[Place, Any] = {}
        self.programs: dict[str, Any] = {}
        self.digests: set[str] = set()


class ProcessMemory:
    """All tables. Types of values are those of the modules that are named; they are above this one.

    Attributes:
      wrapped: by the identity of a function, what its wrappers share (`lowering.edge.marked`).
      prepared: calls that were captured (`lowering.choice.variants`). An entry dies with its jaxpr, since it
        holds what the function closes over: constants of the jaxpr.
      decisions: also of a cache folder that cannot be written (`lowering.choice.decisions`).
      lowered: by the keys of decisions, when a call was lowered, and for whom (`lowering.choice.request`).
      plans: what was planned and built, by kind (`lowering.choice.plan_cache`); `lookups`: numbers of those
        that were found here, were stored, or were made.
      failures: of jobs and compilers, a short time ago (`build.job`).
      stuck: by name, the time until which nobody tries again what took too long (`build.stuck`).
      cards: measured figures, also if they cannot be stored (`runtime.cuda.measure`).
      counts: see `Counts`.
      warned: causes of warnings (`warning`).
      watched: decisions for programs with side exits (`lowering.choice.leaving`).
      planned_for: numbers of units that another machine has planned for (`lowering.choice.decisions`).
      used: the latest records that were read or written, by cache folder and place (`portable`).
      carried: see `Carried`.
      families: programs that are alike but for their numbers (`lowering.choice.families`).
      general: programs that serve any of some sizes, by those that stand for them (`compiler`).
      unfinished: by key, the calls that the background plans and builds (`lowering.choice.unfinished`).
    """

    def __init__(self) -> None:
        self.wrapped: dict[int, Any] = {}
        self.prepared: Recent[Any, Any] = Recent(MOST_PREPARED)
        self.decisions: Recent[Place, Any] = Recent()
        self.lowered: Recent[str, Any] = Recent()
        self.plans: defaultdict[str, Recent[Place, Any]] = defaultdict(lambda: Recent(MOST_PLANS))
        self.families: Recent[Place, Any] = Recent()
        self.general: Recent[Any, Any] = Recent(MOST_PREPARED)
        self.failures: dict[tuple[str, str], tuple[float, str, str, str]] = {}
        self.stuck: dict[str, float] = {}
        self.cards: dict[tuple[str, ...], Any] = {}
        self.lookups: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self.counts = Counts()
        self.warned: Recent[tuple[str, str], None] = Recent()
        self.watched: Recent[Place, Any] = Recent()
        self.planned_for: set[int] = set()
        self.used: Recent[tuple[str, Place], None] = Recent(MOST_USED)
        self.carried = Carried()
        self.unfinished: dict[str, Any] = {}

    def forget(self) -> None:
        """Drops what is known of programs. What runs keeps running."""
        calls = self.wrapped, self.prepared, self.decisions, self.lowered, self.failures, self.stuck
        for table in (*calls, self.families, self.general, self.cards, *self.plans.values()):
            table.clear()

    def renew(self) -> None:
        """Makes everything anew: what a new process remembers."""
        vars(self).update(vars(ProcessMemory()))


MEMORY = ProcessMemory()
