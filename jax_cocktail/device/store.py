"""Stores the measured figures of this machine's GPUs in the cache folder, one file per device name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from jax_cocktail import cache
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.records import Store

FOLDER = "devices"
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


_STORE = Store(Measured, FOLDER)


def load_measured(name: str) -> Measured | None:
    """The stored figures of the device called `name`; None if there are none or they cannot be trusted."""
    found = _STORE.load(_file(name))
    return found if found is not None and found.spec.name == name else None


def store_measured(found: Measured) -> Path | None:
    """Stores the figures under the card's name. Returns the file, or None if it cannot be written."""
    return _STORE.store(_file(found.spec.name), found)


def one_measures(name: str) -> AbstractContextManager[bool]:
    """Lets one process at a time measure a card, see `cache.one_at_a_time`."""
    return cache.one_at_a_time(FOLDER, _file(name), _LOCK_SECONDS)
