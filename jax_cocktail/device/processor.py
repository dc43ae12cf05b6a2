"""The processor of this machine: its cores, vectors and caches, as Linux tells them."""

from __future__ import annotations

import functools
import hashlib
import os
from contextlib import suppress
from pathlib import Path

from jax_cocktail.device.host import HostSpec, from_table

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPUINFO = Path("/proc/cpuinfo")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@functools.cache
def table_spec() -> HostSpec:
    """The table's figures for this processor. What the system does not tell is the table's, too."""
    return from_table(vector_lanes(), cache_sizes())


@functools.cache
def name(cores: int) -> str:
    """A name of so many cores of this processor and its caches, for figures that were measured on them."""
    model = [_first(field) for field in ("model name", "CPU implementer", "CPU part")]
    return hashlib.sha256(repr((model, cache_sizes(), cores)).encode()).hexdigest()[:16]


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_sizes(folder: Path = _CACHES) -> tuple[int, int, int]:
    """Bytes of the data caches of a core, the nearest first; 0 for one that cannot be read."""
    found = [0, 0, 0]
    for index in folder.glob("index*"):
        with suppress(OSError, ValueError, KeyError, IndexError):
            kind, level, size = ((index / each).read_text().strip() for each in ("type", "level", "size"))
            if kind in ("Data", "Unified"):
                found[int(level) - 1] = int(size[:-1]) * _UNITS[size[-1]]
    return found[0], found[1], found[2]


def vector_lanes() -> int:
    """float32 values of the widest vector registers that programs use."""
    flags = _first("flags").split()
    if "avx512f" in flags:
        return 16
    if "avx" in flags:
        return 8
    return 4


def _first(field: str) -> str:
    """The first line of this field of /proc/cpuinfo, without its name; "" if there is none."""
    with suppress(OSError):
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == field:
                return value.strip()
    return ""
