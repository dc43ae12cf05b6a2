"""Facts about this machine and its software, from the system alone. Nothing here fails: what is unknown is
left out."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/")
PACKAGES = ("jax", "jaxlib", "numpy")
_GROUPS = ("sys", "fs", "cgroup")


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """A machine, as this process sees it. None: unknown, or no limit.

    Attributes:
      processor: its name.
      cores: those that this process may use, of `all_cores`.
      quota: cores' worth of time that the control group gets.
      load: runnable processes, on average over a minute.
      memory_bytes: of the machine; `limit_bytes`: of the control group, `available_bytes`: not in use.
      system: its name and architecture.
    """

    processor: str
    cores: int
    all_cores: int
    quota: float | None
    load: float | None
    memory_bytes: int | None
    limit_bytes: int | None
    available_bytes: int | None
    system: str


def this_machine(root: Path = SYSTEM) -> MachineFacts:
    """Facts about this machine. `root`: where its file system begins."""
    memory = _memory(root)
    groups = [*_groups(root)]
    return MachineFacts(
        processor=_processor(root),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        all_cores=os.cpu_count() or 1,
        quota=min((q for folder in groups for q in _quota(folder)), default=None),
        load=_load(root),
        memory_bytes=memory.get("MemTotal"),
        limit_bytes=min((limit for folder in groups for limit in _limit(folder)), default=None),
        available_bytes=memory.get("MemAvailable"),
        system=f"{platform.system()} {platform.machine()}",
    )


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """The versions of Python and of installed packages."""
    found = {"python": platform.python_version()}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    return ""


def _processor(root: Path) -> str:
    for line in _text(root / "proc" / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Hardware", "cpu model") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def _load(root: Path) -> float | None:
    with suppress(ValueError, IndexError):
        return float(_text(root / "proc" / "loadavg").split()[0])
    return None


def _memory(root: Path) -> Mapping[str, int]:
    """Bytes by the kernel's names."""
    found = {}
    for line in _text(root / "proc" / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        with suppress(ValueError, IndexError):
            found[name] = int(rest.split()[0]) << 10
    return found


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's control groups, with those around them."""
    base = root.joinpath(*_GROUPS)
    for line in _text(root / "proc" / "self" / "cgroup").splitlines() or ["0::/"]:
        _, _, rest = line.partition(":")
        controllers, _, inner = rest.partition(":")
        tops = [base / name for name in {controllers, *controllers.split(",")}] if controllers else [base]
        for top in tops:
            folder = top / inner.lstrip("/")
            yield from (each for each in (folder, *folder.parents) if each.is_relative_to(top))


def _quota(folder: Path) -> Iterator[float]:
    """The cores of a group, if it has a limit."""
    words = _text(folder / "cpu.max").split()
    if len(words) < 2:
        words = [_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    with suppress(ValueError, ZeroDivisionError):
        if (cores := int(words[0]) / int(words[1])) > 0:
            yield cores


def _limit(folder: Path) -> Iterator[int]:
    """The bytes of memory of a group, if it has a limit."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        with suppress(ValueError):
            if (limit := int(_text(folder / name))) < 1 << 60:
                yield limit
