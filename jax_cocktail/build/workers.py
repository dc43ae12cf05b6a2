"""Threads that run compilers. A process that ends does not wait for them, unlike for those of an executor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from jax_cocktail.build import command, progress

MOST = 4  # threads that wait for compilers
T = TypeVar("T")
_Task = tuple[Future[Any], Callable[[], Any]]


class Workers:
    """At most `most` threads, which end with the block."""

    def __init__(self, most: int) -> None:
        self._most, self._low, self._owner = most, command.is_low(), command.owner() or self
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._tasks.put(None)

    def stop(self) -> None:
        """Kills the compilers that run for this work, and starts no others."""
        while not self._tasks.empty():
            with suppress(Empty):
                if (task := self._tasks.get_nowait()) is not None:
                    task[0].cancel()
        command.stop(self._owner)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Starts some work soon. Raises RuntimeError if there can be no thread for it."""
        future: Future[T] = Future()
        if len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name="jax_cocktail builder", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not self._threads:
                    raise
            else:
                self._threads.append(thread)
        self._tasks.put((future, work))
        return future

    def _work(self) -> None:
        with command.low_priority() if self._low else nullcontext(), command.owned_by(self._owner):
            while (task := self._tasks.get()) is not None:
                _run(*task)


def _run(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # whoever waits gets it
        future.set_exception(error)
    else:
        future.set_result(result)


def finish(futures: Collection[Future[Any]], name: str, go_on: Callable[[], None]) -> None:
    """Waits for the work, and tells on the terminal how far it is, unless it has low priority.

    `name`: of what is being compiled; `go_on` is called now and then, and ends the wait with an exception.
    """

    def progress_text() -> str:
        return f"compiling {name}, {sum(f.done() for f in futures)} of {len(futures)} programs ready"

    with progress.line(progress_text if not command.is_low() else lambda: "") as tell:
        while wait(futures, progress.EVERY_SECONDS).not_done:
            go_on()
            tell()
