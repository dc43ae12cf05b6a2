"""Jobs, and the thread that does them one by one, in the order in which they came."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from jax_cocktail.build import progress
from jax_cocktail.lowering.state import ENDING, Stopped

_LOG = logging.getLogger("jax_cocktail")


class Job(Protocol):
    """A job, as a queue sees it.

    Attributes:
      key: what it stands for; of two with equal keys, one is done.
      name: for people.
      kept_bytes: of the values that nobody else may need; `kept`: the identities of these values.
    """

    @property
    def key(self) -> Hashable: ...
    @property
    def name(self) -> str: ...
    @property
    def kept_bytes(self) -> int: ...
    @property
    def kept(self) -> frozenset[int]: ...


J = TypeVar("J", bound=Job)


class Queue(Generic[J]):
    """Jobs that wait, and a thread that ends when there are none.

    Attributes:
      doing: the job that the thread does; None if there is none.
      kept_bytes: of all jobs.
      kept: how many jobs keep a value, by its identity.
    """

    def __init__(self, do: Callable[[J], None], fails: Callable[[J, Exception], None]) -> None:
        """`do`: does a job; `fails`: is told of what it raises."""
        self._do, self._fails = do, fails
        self._changed = threading.Condition()
        self._jobs: dict[Hashable, J] = {}
        self._thread: threading.Thread | None = None
        self.doing: J | None = None
        self.kept_bytes = 0
        self.kept: Counter[int] = Counter()

    def __len__(self) -> int:
        """The number of jobs that are not done."""
        return len(self._jobs) + (self.doing is not None)

    def jobs(self) -> tuple[J, ...]:
        """The jobs that are not done."""
        with self._changed:
            return (*self._jobs.values(), *([] if self.doing is None else [self.doing]))

    def add(self, job: J) -> J:
        """Adds a job, unless an equal one waits or is done now. Returns the one that counts."""
        with self._changed:
            if self.doing is not None and job.key == self.doing.key:
                return self.doing
            if job.key in self._jobs:
                return self._jobs[job.key]
            self._jobs[job.key] = job
            self.kept_bytes += job.kept_bytes
            self.kept.update(job.kept)
            self._start()
            return job

    def _start(self) -> None:
        """Starts the thread. If that fails, the jobs wait for the next one."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="jax_cocktail", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the limit of threads is reached, or the process ends
                _LOG.info("jax_cocktail: %d programs wait: %s", len(self._jobs), error)
            else:
                self._thread = thread

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._do(job)
            except Stopped:
                pass
            except Exception as error:
                with suppress(Warning):  # the user has made errors of warnings; nobody would see this one
                    self._fails(job, error)
            del job  # lets go of its values

    def _next(self) -> J | None:
        with self._changed:
            if self.doing is not None:
                self.kept_bytes -= self.doing.kept_bytes
                self.kept -= Counter(self.doing.kept)
            self.doing = None
            if self._jobs and not ENDING.is_set():
                self.doing = self._jobs.pop(next(iter(self._jobs)))
            else:
                self._thread = None
            self._changed.notify_all()
            return self.doing

    def wait(self, seconds: float | None) -> bool:
        """Waits until all jobs are done. False if the time is over before, or no thread can be started."""
        end = None if seconds is None else time.monotonic() + seconds
        with progress.line(self._progress_text) as tell, self._changed:
            if self._jobs:
                self._start()
            while self._thread is not None:
                left = progress.EVERY_SECONDS if end is None else end - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, progress.EVERY_SECONDS))
                tell()
            return not self._jobs

    def join(self) -> None:
        """Waits until the thread has ended."""
        if (thread := self._thread) is not None:
            thread.join()

    def _progress_text(self) -> str:
        behind = f", {len(self._jobs)} more after it" if self._jobs else ""
        return f"compiling {self.doing.name}{behind}" if self.doing is not None else ""
