"""Shows, checks and empties the cache folder. It imports no jax, and marks nothing as used."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jax_cocktail import cache, config

_SOURCES = (  # name of a text in a source, and what it is the source of
    ("ck_cpu_instantiate", "runtime library"),
    ("ck_gpu_initialize", "GPU handlers"),
)
_PLANS = {"survey": "survey", "program": "plan", "call": "plan of a call"}


@dataclass(frozen=True, slots=True)
class _Item:
    """An entry or a record. `made` and `used`: seconds since the epoch, 0 if unknown; `examine` raises
    OSError, ValueError, KeyError, TypeError or OverflowError if it does not count."""

    kind: str
    name: str
    path: Path
    size: int
    made: float
    used: float
    examine: Callable[[], object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    commands = parser.add_subparsers(dest="action", required=True)
    commands.add_parser("list", help="one line for each entry and record, the last used one first")
    commands.add_parser("info", help="the folder, its size and its limits")
    commands.add_parser("clear", help="empty it")
    verify = commands.add_parser("verify", help="check every entry and record; status 1 if one is damaged")
    verify.add_argument("--remove", action="store_true", help="remove what is damaged")


def main(options: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    actions: dict[str, Callable[[], int]] = {"list": _list, "info": _info, "clear": _clear}
    return _verify(options.remove) if options.action == "verify" else actions[options.action]()


def _list() -> int:
    now = time.time()
    for item in sorted(_items(), key=lambda item: -item.used):
        ages = f"{_age(now, item.made):>6} old  used {_age(now, item.used):>6} ago"
        print(f"{item.kind:16} {item.name:.24}  {_bytes(item.size):>9}  {ages}")
    return 0


def _info() -> int:
    root, items = cache.cache_dir(), [*_items()]
    problem = cache.problem()
    print(f"folder     {root}" + (f" (not usable: {problem})" if problem else ""))
    limit = config.resolve({}, scopes=()).cache_limit_bytes
    programs = [item for item in items if item.path.is_dir()]
    records = [item for item in items if not item.path.is_dir()]
    print(f"programs   {len(programs)}, {_bytes(sum(i.size for i in programs))} of at most {_bytes(limit)}")
    print(f"records    {len(records)}, {_bytes(sum(i.size for i in records))}")
    for folder in cache.record_folders():
        count = sum(item.path.parent.name == folder for item in records)
        print(f"  {folder:9} {count} of at most {cache.MOST_RECORDS}")
    return 0


def _clear() -> int:
    cache.clear_cache()
    cache.clear_all_records()
    left = sum(1 for _ in _items())
    if left:
        print(f"{left} entries and records cannot be removed from {cache.cache_dir()}")
    return 1 if left else 0


def _verify(remove: bool) -> int:
    count = left = 0
    for item in _items():
        count += 1
        if reason := _damage(item):
            removed = remove and _removed(item.path)
            left += not removed
            print(f"{item.kind} {item.name:.24}: {reason}{'; removed' if removed else ''}")
    print(f"{count} entries and records, {left} of them damaged")
    return 1 if left else 0


def counts() -> tuple[int, int, int]:
    """The number of entries and records, that of damaged ones, and the bytes of the programs."""
    items = [*_items()]
    size = sum(item.size for item in items if item.path.is_dir())
    return len(items), sum(1 for item in items if _damage(item)), size


def _damage(item: _Item) -> str:
    """The reason why an entry or record does not count, or ""."""
    try:
        item.examine()
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        return str(error) if isinstance(error, OSError | ValueError) else "it is not complete"
    return ""


def _removed(path: Path) -> bool:
    """True if the entry or record is gone. Of what lies at the place of a record, a folder is not ours."""
    if path.is_dir() and not path.is_symlink():
        if path.suffix != ".json":
            shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
    return not path.exists()


# ---- the folder --------------------------------------------------------------------------------------------


def _items() -> Iterator[_Item]:
    """All entries and records."""
    root = cache.cache_dir()
    for key in cache.entry_keys():
        path = cache.entry_folder(root, key)
        made, used = _time(path / cache.BINARY), _time(path / cache.META)
        yield _Item(_kind(path), key, path, _size(path), made, used, _examined(path, key))
    for folder in cache.record_folders():
        for path in sorted((root / folder).glob("*.json")):
            used = _time(path)
            what = _PLANS.get(path.stem.partition("-")[0], "") if folder == "plans" else ""
            kind = what or folder.removesuffix("s")
            yield _Item(kind, path.stem, path, _size(path), used, used, _examined_record(folder, path.stem))


def _examined(path: Path, key: str) -> Callable[[], object]:
    return lambda: cache.examine(path, key)


def _examined_record(folder: str, name: str) -> Callable[[], object]:
    return lambda: cache.examine_record(cache.cache_dir(), folder, name)


def _kind(folder: Path) -> str:
    """Says what an entry contains."""
    if (folder / "program.cu").exists():
        return "GPU program"
    with suppress(OSError):
        text = (folder / "program.cc").read_text(encoding="utf-8", errors="replace")
        return next((kind for word, kind in _SOURCES if word in text), "CPU program")
    return "unknown"


def _size(path: Path) -> int:
    with suppress(OSError):
        each = path.iterdir() if path.is_dir() else (path,)
        return sum(file.stat().st_size for file in each)
    return 0


def _time(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _age(now: float, then: float) -> str:
    """The time since then, for people; a clock that was set back makes it 0."""
    seconds = max(now - then, 0.0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _bytes(number: int) -> str:
    return f"{number / 2**20:.1f} MiB" if number >= 1 << 20 else f"{number / 2**10:.1f} KiB"
