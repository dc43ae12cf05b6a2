"""Stores the measured figures of this machine's GPUs in the cache folder, one file per device name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jax_cocktail import cache
from jax_cocktail.device.spec import DeviceSpec, from_json, to_json

FOLDER = "devices"
_FORMAT = 3
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


def _file(name: str) -> str:
    """A readable file name, distinct even for device names that differ only in special characters."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40]
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def load_measured(name: str) -> Measured | None:
    """The stored figures of the device called `name`; None if there are none or they cannot be trusted."""
    try:
        found = _parsed(cache.read_record(FOLDER, _file(name)))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.spec.name == name else None


def _parsed(facts: Any) -> Measured:
    """Parses a record. Raises ValueError, KeyError, TypeError or AttributeError if it is invalid."""
    if facts["format"] != _FORMAT or type(facts["driver"]) is not int:
        raise ValueError("not what this version writes")
    left = {str(name): str(why) for name, why in facts["left"].items()}
    return Measured(from_json(json.dumps(facts["spec"])), facts["driver"], left, str(facts["failed"]))


def store_measured(found: Measured) -> Path | None:
    """Stores the figures under the card's name. Returns the file, or None if it cannot be written."""
    facts = {"format": _FORMAT, "driver": found.driver, "failed": found.failed, "left": dict(found.left)}
    try:
        return cache.write_record(
            FOLDER, _file(found.spec.name), {**facts, "spec": json.loads(to_json(found.spec))}
        )
    except OSError:
        return None


def forget() -> None:
    """Removes the figures of all devices."""
    cache.clear_records(FOLDER)


def one_measures(name: str) -> AbstractContextManager[bool]:
    """Lets one process at a time measure a card, see `cache.one_at_a_time`."""
    return cache.one_at_a_time(FOLDER, _file(name), _LOCK_SECONDS)
