"""The content-addressed cache of compiled programs on disk.

Each digest has a folder with source, command, log, binary and ``meta.json``. An entry is written to a private
folder and renamed into place, so it is either complete or absent. A file is loaded only if this user or root
owns it, no one else can write to it, and its SHA-256 matches the recorded one.

Small JSON records, of measurements and decisions, have folders of their own beside the programs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

DEFAULT_LIMIT_BYTES = 1 << 30  # of the option `cache_limit_bytes`
BINARY = "program.so"
META = "meta.json"
_ENTRIES = "entries"
_LOCKS = "locks"
_BUILD_PREFIX = "build-"
_STALE_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A verified compiled binary. `seconds`: its compile time; `meta`: the contents of `META`."""

    binary: bytes
    digest: str
    path: str
    seconds: float
    meta: Mapping[str, Any]


def cache_dir() -> Path:
    """$JAX_COCKTAIL_CACHE_DIR, else a folder in $TEST_TMPDIR, else one in the user's cache folder."""
    own = os.environ.get("JAX_COCKTAIL_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    scratch = os.environ.get("TEST_TMPDIR")
    if scratch:
        return Path(scratch) / "jax_cocktail"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "jax_cocktail"


def clear_cache() -> None:
    """Removes every compiled program from `cache_dir()` and keeps its other files."""
    root = cache_dir()
    for folder in (root / _ENTRIES, *root.glob(_BUILD_PREFIX + "*")):
        shutil.rmtree(folder, ignore_errors=True)


def distrust(path: Path) -> str:
    """The reason why nothing may be loaded from `path`, or ""."""
    try:
        status = path.lstat()
    except OSError as error:
        return f"{path} cannot be examined ({error.strerror})"
    if stat.S_ISLNK(status.st_mode) and path.name in (BINARY, META):
        return f"{path} is a symbolic link"
    if stat.S_ISLNK(status.st_mode):
        status = path.stat()
    if status.st_uid not in (os.getuid(), 0):
        return f"{path} belongs to another user (uid {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} is writable by other users (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def prepare_root() -> Path:
    """Creates `cache_dir()` if needed and returns it. Raises OSError if it is unusable or unsafe."""
    root = cache_dir()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"the cache folder {root} cannot be created ({error.strerror})") from error
    reason = distrust(root)
    if reason:
        raise OSError(f"the cache folder is not safe to use: {reason}")
    return root


def entry_folder(root: Path, key: str) -> Path:
    """The folder of the build with this key."""
    return root / _ENTRIES / key


def lock_path(root: Path, key: str) -> Path:
    """The lock that guards the creation of an entry. There are only 256, so lock files do not accumulate."""
    folder = root / _LOCKS
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{key[:2]}.lock"


def load(folder: Path) -> Entry | None:
    """The entry in `folder`, or None if it is absent, damaged, or could have been written by someone else."""
    binary_path, meta_path = folder / BINARY, folder / META
    if any(distrust(path) for path in (folder.parent, folder, binary_path, meta_path)):
        return None
    try:
        meta = json.loads(meta_path.read_text(encoding="utf-8"))
        binary = binary_path.read_bytes()
        expected, seconds = str(meta["sha256"]), float(meta["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    digest = hashlib.sha256(binary).hexdigest()
    if digest != expected:
        return None
    _touch(meta_path)
    return Entry(binary, digest, str(binary_path), seconds, meta)


def _touch(path: Path) -> None:
    """Marks an entry as used. A read-only cache still works."""
    try:
        os.utime(path)
    except OSError:
        return


def build_folder(root: Path) -> Path:
    """Creates a private folder on the file system of the cache."""
    return Path(tempfile.mkdtemp(prefix=_BUILD_PREFIX, dir=root))


def seal(folder: Path, facts: Mapping[str, object]) -> None:
    """Completes a built entry: sets file modes and writes `META` with the digest of the binary."""
    binary_path = folder / BINARY
    digest = hashlib.sha256(binary_path.read_bytes()).hexdigest()
    size = binary_path.stat().st_size
    text = json.dumps({**facts, "sha256": digest, "size": size}, indent=1, sort_keys=True)
    (folder / META).write_text(text + "\n", encoding="utf-8")
    for path in folder.iterdir():
        path.chmod(0o755 if path.name == BINARY else 0o644)


def publish(folder: Path, target: Path) -> None:
    """Renames a sealed folder into place and replaces any invalid entry there."""
    target.parent.mkdir(mode=0o700, exist_ok=True)
    for _ in range(10):
        try:
            folder.rename(target)
            return
        except OSError:
            if not target.exists() and not target.is_symlink():
                raise
        if target.is_symlink() or not target.is_dir():
            target.unlink(missing_ok=True)
            continue
        # Renamed first: removal in place would expose a half-removed entry to other processes.
        grave = build_folder(target.parent.parent)
        try:
            target.rename(grave / "old")
        except FileNotFoundError:
            pass
        finally:
            shutil.rmtree(grave, ignore_errors=True)
    raise OSError(f"{target} cannot be replaced")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def evict(root: Path, limit_bytes: int, keep: str) -> None:
    """Removes the least recently used entries, but never `keep`, until the rest fits in `limit_bytes`."""
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
    for _, size, folder in sorted(entries, key=lambda item: (item[0], item[2].name)):
        if total <= limit_bytes:
            break
        shutil.rmtree(folder, ignore_errors=True)
        total -= size
    for folder in root.glob(_BUILD_PREFIX + "*"):
        try:
            abandoned = time.time() - folder.stat().st_mtime > _STALE_SECONDS
        except OSError:
            continue
        if abandoned:
            shutil.rmtree(folder, ignore_errors=True)


# ---- records -----------------------------------------------------------------------------------------------


def read_record(folder: str, name: str) -> Any:
    """The stored JSON value; None if there is none, or if someone else could have written it."""
    path = cache_dir() / folder / f"{name}.json"
    if any(distrust(place) for place in (path.parent.parent, path.parent, path)):
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_record(folder: str, name: str, value: Mapping[str, Any]) -> Path:
    """Stores a JSON value and returns its file. Raises OSError."""
    path = _record_folder(folder) / f"{name}.json"
    handle, temporary = tempfile.mkstemp(prefix="new-", dir=path.parent)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=1) + "\n")
    os.replace(temporary, path)  # atomic: readers never see a partial file
    return path


def clear_records(folder: str) -> None:
    """Removes all records in a folder."""
    for path in (cache_dir() / folder).glob("*.json"):
        path.unlink(missing_ok=True)


@contextmanager
def one_at_a_time(folder: str, name: str, seconds: float) -> Iterator[bool]:
    """Lets one process at a time make a record. Yields False if another one holds the lock for too long."""
    ours = True
    with ExitStack() as held:
        try:
            held.enter_context(filelock.FileLock(_record_folder(folder) / f"{name}.lock", timeout=seconds))
        except filelock.Timeout:
            ours = False
        except OSError:
            pass  # nothing can be stored, so every process makes its own
        yield ours


def _record_folder(name: str) -> Path:
    folder = prepare_root() / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
