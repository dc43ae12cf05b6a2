"""The content-addressed cache of compiled programs on disk.

Each key has a folder with source, command, log, binary and ``meta.json``. An entry is written to a private
folder and renamed into place, so it is either complete or absent. It counts as absent unless no other user
can have written it (`files`), its SHA-256 is the recorded one, and it was made for its key: an entry that was
exchanged for another one never runs.

Small JSON records, of measurements and decisions, have folders of their own beside the programs.

A process may carry records and programs of another machine beside its cache folder (`portable`). They are
looked up after those in the folder, and are never written there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from jax_cocktail import files, portable

DEFAULT_LIMIT_BYTES = 1 << 30  # of the option `cache_limit_bytes`
BINARY = "program.so"
META = "meta.json"
_ENTRIES = "entries"
_RECORD_FOLDERS = ("bundles", "calls", "decisions", "devices", "plans", "stuck")
_LOCKS = "locks"
_USAGE = "usage"  # the sum of the entries' sizes, as far as it is known
_BUILD_PREFIX = "build-"
_STALE_SECONDS = 24 * 3600.0
_USAGE_SECONDS = 10.0
_LOW_WATER = 0.75  # of the limit: what eviction leaves, so that the next builds need none
_MOST_META_BYTES = 1 << 20  # of `META`, and of a record
_MOST_BINARY_BYTES = 1 << 30
MOST_RECORDS = 4096  # in a folder
_NOWHERE = Path(os.devnull, "jax_cocktail")  # nothing is there, and nothing can be made there


@dataclass(frozen=True, slots=True)
class Entry:
    """A verified compiled binary. `seconds`: its compile time; `meta`: the contents of `META`."""

    binary: bytes
    digest: str
    path: str
    seconds: float
    meta: Mapping[str, Any]


def cache_dir() -> Path:
    """$JAX_COCKTAIL_CACHE_DIR, else a folder in $TEST_TMPDIR, else one in the user's cache folder.

    If the user has no home, it is a path where nothing can be stored."""
    own = os.environ.get("JAX_COCKTAIL_CACHE_DIR")
    scratch, base = os.environ.get("TEST_TMPDIR"), os.environ.get("XDG_CACHE_HOME")
    try:
        if own:
            return Path(own).expanduser()
        if scratch:
            return Path(scratch) / "jax_cocktail"
        return (Path(base) if base else Path("~/.cache").expanduser()) / "jax_cocktail"
    except RuntimeError:  # HOME is not set, and the user has no entry in the password file
        return _NOWHERE


def clear_cache() -> None:
    """Removes every compiled program from `cache_dir()` and keeps its other files.

    Other processes go on undisturbed: folders that they build in and locks that they hold stay.
    """
    root = cache_dir()
    with suppress(OSError), build_folder(root) as grave:
        (root / _ENTRIES).rename(grave / _ENTRIES)  # at once: nobody sees a half-removed entry
    with suppress(OSError):
        (root / _USAGE).unlink()
    _remove_abandoned(root)
    for path in (root / _LOCKS).glob("*.lock"):
        # RuntimeError: a file system without locks
        with suppress(OSError, RuntimeError), filelock.FileLock(path, timeout=0):
            path.unlink()


def prepare_root() -> Path:
    """Creates `cache_dir()` if needed and returns it. Raises OSError if it is unusable or unsafe."""
    root = cache_dir()
    if root == _NOWHERE:
        raise OSError("the user has no home folder: HOME is not set, and the user id has no name")
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"the cache folder {root} cannot be created ({error.strerror})") from error
    reason = files.distrust_way(root)
    if reason:
        raise OSError(f"the cache folder is not safe to use: {reason}")
    return root


def problem() -> str:
    """The reason why `cache_dir()` cannot be used, or ""; "" also if it does not exist yet."""
    root = cache_dir()
    if not root.exists():
        return ""
    return files.distrust_way(root) or ("" if os.access(root, os.W_OK) else "it cannot be written")


def entry_keys() -> tuple[str, ...]:
    """The keys of the entries in the cache folder, also of damaged ones."""
    with suppress(OSError):
        return tuple(sorted(path.name for path in (cache_dir() / _ENTRIES).iterdir()))
    return ()


def record_folders() -> tuple[str, ...]:
    """The names of the folders of records in the cache folder. Other folders are not ours."""
    return tuple(name for name in _RECORD_FOLDERS if any((cache_dir() / name).glob("*.json")))


def entry_folder(root: Path, key: str) -> Path:
    """The folder of the build with this key."""
    return root / _ENTRIES / key


def lock_path(root: Path, kind: str, name: str) -> Path:
    """The lock that guards the creation of an entry or record. There are only 256 of a kind, so lock files do
    not accumulate."""
    folder = root / _LOCKS
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{kind}-{hashlib.sha256(name.encode()).hexdigest()[:2]}.lock"


def load(folder: Path, key: str) -> Entry | None:
    """The entry in `folder`; None if it is absent, damaged, made for another key, or could have been written
    by someone else."""
    found = peek(folder, key)
    if found is not None:
        _touch(folder / META)
    return found


def peek(folder: Path, key: str) -> Entry | None:
    """Reads an entry as `load` does, but it does not count as used."""
    with suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
        return examine(folder, key)
    return None


def examine(folder: Path, key: str) -> Entry:
    """The entry in `folder`. Raises OSError, ValueError, KeyError, TypeError or OverflowError if it does not
    count."""
    if reason := files.distrust_way(folder.parent):
        raise OSError(reason)
    with files.opened(folder) as handle:
        meta = _parsed(files.read(handle, META, _MOST_META_BYTES))
        binary = files.read(handle, BINARY, _MOST_BINARY_BYTES)
    expected, seconds = meta["sha256"], float(meta["seconds"])
    digest = hashlib.sha256(binary).hexdigest()
    if digest != expected:
        raise ValueError("its SHA-256 is not the recorded one")
    if meta.get("key") != key:
        raise ValueError("it was made for another key")
    if not math.isfinite(seconds):
        raise ValueError("its time is not a number")
    return Entry(binary, digest, str(folder / BINARY), seconds, meta)


def _parsed(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises ValueError."""
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _touch(path: Path) -> None:
    """Marks an entry as used. A read-only cache still works."""
    try:
        os.utime(path)
    except OSError:
        return


@contextmanager
def build_folder(root: Path) -> Iterator[Path]:
    """A private folder on the file system of the cache, removed at the end. It is locked meanwhile, so that
    other processes can tell it from one whose process has died."""
    folder = Path(tempfile.mkdtemp(prefix=_BUILD_PREFIX, dir=root))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Locks a folder. Yields False if another process holds the lock, or if the file system has no locks."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ours = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            ours = False
        yield ours
    finally:
        os.close(handle)  # and the lock is released


def _remove_abandoned(root: Path) -> None:
    """Removes the build folders of processes that have died; without locks, those that are old."""
    for folder in root.glob(_BUILD_PREFIX + "*"):
        with suppress(OSError), _locked(folder) as free:
            if free or time.time() - folder.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def seal(folder: Path, key: str, facts: Mapping[str, object]) -> None:
    """Completes a built entry: sets file modes and writes `META` with key and digest of the binary."""
    digest = hashlib.sha256((folder / BINARY).read_bytes()).hexdigest()
    text = json.dumps({**facts, "key": key, "sha256": digest}, indent=1, sort_keys=True)
    (folder / META).write_text(text + "\n", encoding="utf-8")
    for path in folder.iterdir():
        path.chmod(0o755 if path.name == BINARY else 0o644)


def publish(folder: Path, target: Path) -> None:
    """Renames a sealed folder into place and replaces any invalid entry there. Raises OSError."""
    for _ in range(10):
        target.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            folder.rename(target)
            return
        except OSError:
            if not folder.exists() or not os.path.lexists(target):
                raise
        if target.is_symlink() or not target.is_dir():
            target.unlink(missing_ok=True)
            continue
        # Renamed first: removal in place would expose a half-removed entry to other processes.
        with build_folder(target.parent.parent) as grave, suppress(FileNotFoundError):
            target.rename(grave / "old")
    raise OSError(f"{target} cannot be replaced")


# ---- the limit of its size ---------------------------------------------------------------------------------


def make_room(root: Path, key: str, limit_bytes: int) -> None:
    """Counts a new entry. If the sum exceeds the limit, it removes the least recently used entries, but never
    this one, until the others fit. Raises OSError.

    Only then are all entries looked at, and a quarter of the limit is free afterwards: per build, this takes
    constant time.
    """
    with filelock.FileLock(lock_path(root, _USAGE, ""), timeout=_USAGE_SECONDS):
        known = _usage(root)
        total = None if known is None else known + _size(entry_folder(root, key))
        if total is None or total > limit_bytes:
            total = _evict(root, limit_bytes, key)
        _write(root, _USAGE, str(total))
    _remove_abandoned(root)


def _usage(root: Path) -> int | None:
    """The sum that `make_room` has stored; None if there is none."""
    try:
        with files.opened(root) as handle:
            text = files.read(handle, _USAGE, 32).decode("ascii")
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _evict(root: Path, limit_bytes: int, keep: str) -> int:
    """Removes entries, if all of them exceed the limit. Returns the size of those that stay."""
    entries: list[tuple[float, int, Path]] = []
    total = 0
    for folder in (root / _ENTRIES).iterdir():
        try:
            size, used = _size(folder), (folder / META).stat().st_mtime
        except OSError:  # being removed by another process, or incomplete
            size, used = 0, 0.0
        total += size
        if folder.name != keep:
            entries.append((used, size, folder))
    if total <= limit_bytes:
        return total
    for _, size, folder in sorted(entries, key=lambda item: (item[0], item[2].name)):
        if total <= _LOW_WATER * limit_bytes:
            break
        shutil.rmtree(folder, ignore_errors=True)
        total -= size
    return total


# ---- records -----------------------------------------------------------------------------------------------


def read_record(folder: str, name: str) -> Any:
    """The stored JSON object of this name, else the one that this process carries; None if there is none, or
    if others could have written it."""
    found = peek_record(cache_dir(), folder, name)
    if found is None:
        return portable.carried_record(folder, name)
    portable.note_use(str(cache_dir()), folder, name)
    _touch(cache_dir() / folder / f"{name}.json")
    return found


def peek_record(root: Path, folder: str, name: str) -> Any:
    """The JSON object of this name that `root` stores, or None. It does not count as used."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return examine_record(root, folder, name)
    return None


def examine_record(root: Path, folder: str, name: str) -> dict[str, Any]:
    """The JSON object of this name that `root` stores. Raises OSError or ValueError if it does not count."""
    place = root / folder
    if reason := files.distrust_way(place):
        raise OSError(reason)
    with files.opened(place) as handle:
        found = _parsed(files.read(handle, f"{name}.json", _MOST_META_BYTES))
    if found.pop("record", None) != name:
        raise ValueError("it is the record of another name")
    if "facts" in found and found.get("sha256") != portable.digest_of_facts(found["facts"]):
        raise ValueError("its SHA-256 is not the recorded one")
    return found


def write_record(folder: str, name: str, value: Mapping[str, Any]) -> Path:
    """Stores a JSON object and returns its file. Beyond a number of records, the least recently used ones go.
    Raises OSError."""
    place = _record_folder(folder)
    path = _write(place, f"{name}.json", json.dumps({"record": name, **value}, indent=1) + "\n")
    portable.note_use(str(cache_dir()), folder, name)
    records = [*place.iterdir()]
    if len(records) > MOST_RECORDS:
        for old in sorted(records, key=_used)[: len(records) // 4]:
            with suppress(OSError):
                old.unlink()
    return path


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed by another process
        return 0.0


def _write(folder: Path, name: str, text: str) -> Path:
    """Writes a file, atomically: readers never see a part of it. Raises OSError."""
    handle, temporary = tempfile.mkstemp(prefix="new-", dir=folder)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, folder / name)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    return folder / name


def clear_records(folder: str) -> None:
    """Removes all records in a folder."""
    portable.forget_use(folder)
    for path in (cache_dir() / folder).glob("*.json"):
        with suppress(OSError):
            path.unlink()


def clear_all_records() -> None:
    """Removes all records of ours."""
    for folder in _RECORD_FOLDERS:
        clear_records(folder)


@contextmanager
def one_at_a_time(folder: str, name: str, seconds: float) -> Iterator[bool]:
    """Lets one process at a time make a record. Yields False if another one holds the lock for too long."""
    ours = True
    with ExitStack() as held:
        try:
            held.enter_context(filelock.FileLock(lock_path(prepare_root(), folder, name), timeout=seconds))
        except filelock.Timeout:
            ours = False
        except (OSError, RuntimeError):  # the latter: a file system without locks
            pass  # nothing can be stored, so every process makes its own
        yield ours


def _record_folder(name: str) -> Path:
    folder = prepare_root() / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
