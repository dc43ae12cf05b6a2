"""What was measured on this machine's GPUs, kept beside the compiled programs: one file for each name."""

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
_LOCK_SECONDS = 20.0  # a measurement takes a few, with its compiler


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a card.

    Attributes:
      spec: its numbers; those that could not be measured are a table's.
      driver: the one that it was measured with; 13000 is CUDA 13.0.
      left: the fields that are the table's, and why.
      failed: why none was measured, or "". Nobody tries again with the same driver.
    """

    spec: DeviceSpec
    driver: int
    left: Mapping[str, str] = field(default_factory=dict)
    failed: str = ""


def _file(root: Path, name: str) -> Path:
    """Readable, and different for names that differ only in what a file's name cannot hold."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40]
    return root / _FOLDER / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.json"


def load_measured(name: str) -> Measured | None:
    """What `store_measured` kept of the device called `name`; None if nothing can be trusted."""
    path = _file(cache_dir(), name)
    if any(distrust(place) for place in (path.parent.parent, path.parent, path)):
        return None
    try:
        found = _from_text(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.spec.name == name else None


def _from_text(text: str) -> Measured:
    """Raises ValueError, KeyError, TypeError or AttributeError for what `_to_text` did not write."""
    facts = json.loads(text)
    if facts["format"] != _FORMAT or type(facts["driver"]) is not int:
        raise ValueError("not what this version writes")
    left = {str(name): str(why) for name, why in facts["left"].items()}
    return Measured(from_json(json.dumps(facts["spec"])), facts["driver"], left, str(facts["failed"]))


def _to_text(found: Measured) -> str:
    facts = {"format": _FORMAT, "driver": found.driver, "failed": found.failed, "left": dict(found.left)}
    return json.dumps({**facts, "spec": json.loads(to_json(found.spec))}, indent=1) + "\n"


def store_measured(found: Measured) -> Path | None:
    """Keeps what was measured under the card's name. The file, or None if there is no place to keep it."""
    try:
        path = _file(prepare_root(), found.spec.name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix="new-", dir=path.parent)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(_to_text(found))
        os.replace(temporary, path)  # complete or absent, whoever reads
    except (BuildError, OSError):
        return None
    return path


def forget() -> None:
    """Removes what was measured of every device."""
    for path in (cache_dir() / _FOLDER).glob("*.json"):
        path.unlink(missing_ok=True)


@contextmanager
def one_measures(name: str) -> Iterator[bool]:
    """One process at a time measures a card. Says whether it is ours to measure: not while another one does,
    for longer than anybody likes to wait. Where nothing can be kept, everybody measures for himself."""
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
