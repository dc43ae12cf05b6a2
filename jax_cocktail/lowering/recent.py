"""Tables of what came last: they stay small, however many programs a process compiles."""

from __future__ import annotations

import threading
from typing import TypeVar

MOST = 1024
_lock = threading.RLock()  # a finalizer that runs meanwhile may come here again
K = TypeVar("K")
V = TypeVar("V")


def keep(table: dict[K, V], key: K, value: V, most: int = MOST) -> None:
    """Makes an entry the latest of a table. Of more than `most` entries, the oldest ones go."""
    with _lock:
        table.pop(key, None)
        table[key] = value
        for old in list(table)[:-most]:
            table.pop(old, None)
