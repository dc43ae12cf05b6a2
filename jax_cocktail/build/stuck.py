"""Remembers what took too long, so that nobody waits for it twice: neither this process, nor others."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress

from jax_cocktail import cache
from jax_cocktail.memory import MEMORY

RETRY_SECONDS = 600.0  # then it is tried again: the machine may only have been busy
_FOLDER = "stuck"


def name_of(words: Sequence[str]) -> str:
    """The name of a command."""
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()


def remember(name: str) -> None:
    """Notes that the command or job with this name took too long."""
    MEMORY.stuck[name] = until = time.time() + RETRY_SECONDS
    with suppress(OSError):
        cache.write_record(_FOLDER, name, {"until": until})


def remembered(name: str) -> bool:
    """True if it took too long a short time ago."""
    until = MEMORY.stuck.get(name, 0.0)
    record = cache.read_record(_FOLDER, name)
    if isinstance(record, dict) and isinstance(record.get("until"), float):
        until = max(until, record["until"])
    return 0 < until - time.time() <= RETRY_SECONDS
