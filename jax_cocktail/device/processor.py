"""The processor of this machine: its vectors and its caches, as Linux tells them."""

from __future__ import annotations

import functools
import hashlib
import platform
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


def name() -> str:
    """A name of this processor and its caches, for figures that were measured on it."""
    sizes = "-".join(map(str, cache_sizes()))
    return hashlib.sha256(f"{_first('model name')} {_first('CPU part')} {sizes}".encode()).hexdigest()[:16]


def cache_sizes(folder: Path = _CACHES) -> tuple[int, ...]:
    """Bytes of the data caches of a core, the nearest first; () if they cannot be read."""
    found: dict[int, int] = {}
    with suppress(OSError, ValueError, KeyError):
        for index in sorted(folder.glob("index*")):
            kind, level, size = ((index / each).read_text().strip() for each in ("type", "level", "size"))
            if kind in ("Data", "Unified") and size[:-1]:
                found[int(level)] = int(size[:-1]) * _UNITS[size[-1]]
        return tuple(found[level] for level in sorted(found) if found[level] > 0)
    return ()


def vector_lanes() -> int:
    """float32 values of the widest vector registers that programs use."""
    flags = _first("flags").split()
    if "avx512f" in flags:
        return 16
    if "avx2" in flags:
        return 8
    return 4


def _first(field: str) -> str:
    """The first line of this field of /proc/cpuinfo, without its name; "" if there is none."""
    with suppress(OSError):
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == field:
                return value.strip()
    return platform.processor() if field == "model name" else ""
