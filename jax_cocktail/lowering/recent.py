"""Tables of what came last: they stay small, however many programs a process compiles."""

from __future__ import annotations

import os
import threading
from typing import TypeVar

MOST = 1024
_lock = threading.RLock()  # a finalizer that runs meanwhile may come here again
K = TypeVar("K")
V = TypeVar("V")


def _fresh_lock() -> None:
    """A forked child may find the lock taken by a thread that it does not have."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_fresh_lock)


def keep(table: dict[K, V], key: K, value: V, most: int = MOST) -> None:
    """Makes an entry the latest of a table. Of more than `most` entries, the oldest ones go."""
    with _lock:
        table.pop(key, None)
        table[key] = value
        for old in list(table)[:-most]:
            table.pop(old, None)
