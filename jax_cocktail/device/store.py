"""Stores the measured figures of this machine's GPUs in the cache folder, one file per device name."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import filelock

from jax_cocktail.cache import cache_dir, distrust, prepare_root
from jax_cocktail.device.spec import DeviceSpec, from_json, to_json
from jax_cocktail.errors import BuildError

_FOLDER = "devices"
_FORMAT = 2
_LOCK_SECONDS = 20.0  # a measurement takes a few seconds, compilation included


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured figures of a card.

    Attributes:
      spec: its specification; figures that could not be measured come from a table.
      driver: the driver's version during the measurement; 13000 is CUDA 13.0.
      left: the fields that come from the table, with the reasons.
      failed: the reason why nothing was measured, or "". With the same driver, nothing is measured again.
    """

    spec: DeviceSpec
    driver: int
    left: Mapping[str, str] = field(default_factory=dict)
    failed: str = ""


def _file(root: Path, name: str) -> Path:
    """A readable file name, distinct even for device names that differ only in special characters."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40]
    return root / _FOLDER / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.json"


def load_measured(name: str) -> Measured | None:
    """The stored figures of the device called `name`; None if there are none or they cannot be trusted."""
    path = _file(cache_dir(), name)
    if any(distrust(place) for place in (path.parent.parent, path.parent, path)):
        return None
    try:
        found = _from_text(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.spec.name == name else None


def _from_text(text: str) -> Measured:
    """Parses the output of `_to_text`. Raises ValueError, KeyError, TypeError, AttributeError if invalid."""
    facts = json.loads(text)
    if facts["format"] != _FORMAT or type(facts["driver"]) is not int:
        raise ValueError("not what this version writes")
    left = {str(name): str(why) for name, why in facts["left"].items()}
    return Measured(from_json(json.dumps(facts["spec"])), facts["driver"], left, str(facts["failed"]))


def _to_text(found: Measured) -> str:
    facts = {"format": _FORMAT, "driver": found.driver, "failed": found.failed, "left": dict(found.left)}
    return json.dumps({**facts, "spec": json.loads(to_json(found.spec))}, indent=1) + "\n"


def store_measured(found: Measured) -> Path | None:
    """Stores the figures under the card's name. Returns the file, or None if it cannot be written."""
    try:
        path = _file(prepare_root(), found.spec.name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix="new-", dir=path.parent)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(_to_text(found))
        os.replace(temporary, path)  # atomic: readers never see a partial file
    except (BuildError, OSError):
        return None
    return path


def forget() -> None:
    """Removes the figures of all devices."""
    for path in (cache_dir() / _FOLDER).glob("*.json"):
        path.unlink(missing_ok=True)


@contextmanager
def one_measures(name: str) -> Iterator[bool]:
    """Lets one process at a time measure a card.

    It yields False if another process holds the lock for too long, and True if this process may measure. If
    nothing can be stored, there is no lock and every process measures.
    """
    lock: filelock.BaseFileLock | None = None
    ours = True
    try:
        path = _file(prepare_root(), name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        lock = filelock.FileLock(path.with_suffix(".lock"), timeout=_LOCK_SECONDS)
        lock.acquire()
    except filelock.Timeout:
        lock, ours = None, False
    except (OSError, BuildError):
        lock = None
    try:
        yield ours
    finally:
        if lock is not None:
            lock.release()
