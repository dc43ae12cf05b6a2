"""The cache folder: what others, accidents or edits could have put there is not believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from jax_cocktail import cache, files

KEY = "ab" * 32


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder in use."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    return cache.prepare_root()


def _entry(root: Path, key: str = KEY, binary: bytes = b"a program") -> Path:
    with cache.build_folder(root) as folder:
        (folder / cache.BINARY).write_bytes(binary)
        cache.seal(folder, key, {"seconds": 1.0})
        cache.publish(folder, cache.entry_folder(root, key))
    return cache.entry_folder(root, key)


def _meta(**changes: object) -> Callable[[Path], object]:
    def change(entry: Path) -> None:
        path = entry / cache.META
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def _instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Puts something else in the place of a file."""

    def change(entry: Path) -> None:
        (entry / name).unlink()
        make(entry / name)

    return change


DAMAGES: dict[str, Callable[[Path], object]] = {
    "of another key": _meta(key="cd" * 32),
    "without a key": _meta(key=None),
    "digest of a wrong type": _meta(sha256=[1]),
    "seconds of a wrong type": _meta(seconds="x"),
    "seconds that are no number": _meta(seconds=float("nan")),
    "seconds that are too many": _meta(seconds=10**400),
    "a list": lambda entry: (entry / cache.META).write_text("[1]"),
    "nested": lambda entry: (entry / cache.META).write_text("[" * 100_000),
    "nested and closed": lambda entry: (entry / cache.META).write_text("[" * 100_000 + "]" * 100_000),
    "no text": lambda entry: (entry / cache.META).write_bytes(b'{"a":"\xe9"}'),
    "huge": lambda entry: os.truncate(entry / cache.META, 1 << 40),
    "a huge binary": lambda entry: os.truncate(entry / cache.BINARY, 1 << 40),
    "a shorter binary": lambda entry: os.truncate(entry / cache.BINARY, 3),
    "a FIFO as facts": _instead(cache.META, os.mkfifo),
    "a FIFO as the binary": _instead(cache.BINARY, os.mkfifo),
    "a device as facts": _instead(cache.META, lambda path: path.symlink_to("/dev/zero")),
    "a folder as facts": _instead(cache.META, Path.mkdir),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_counts_as_absent(root: Path, damage: str) -> None:
    entry = _entry(root)
    assert cache.load(entry, KEY) is not None
    DAMAGES[damage](entry)
    assert cache.load(entry, KEY) is None


def test_a_link_to_an_entry_counts_as_absent_and_is_replaced(root: Path, tmp_path: Path) -> None:
    entry = _entry(root)
    entry.rename(tmp_path / "moved")
    entry.symlink_to(tmp_path / "moved")
    assert cache.load(entry, KEY) is None
    assert cache.load(_entry(root), KEY) is not None and not entry.is_symlink()


# ---- who else could write there ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "safe"), [(0o700, True), (0o755, True), (0o1777, True), (0o777, False), (0o702, False)]
)
def test_folders_above_the_cache(tmp_path: Path, mode: int, safe: bool) -> None:
    """Who can write to a folder above can exchange the cache; the sticky bit forbids that."""
    (tmp_path / "above" / "cache").mkdir(mode=0o700, parents=True)
    (tmp_path / "above").chmod(mode)
    assert (files.distrust_way(tmp_path / "above" / "cache") == "") == safe


def test_a_folder_that_others_can_write_to_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o1777)  # they can put entries there, sticky or not
    assert "writable by other users" in files.distrust_way(tmp_path / "cache")


def test_links_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link is as good as its owner, and as the folders on its way."""
    (tmp_path / "open" / "cache").mkdir(mode=0o700, parents=True)
    (tmp_path / "link").symlink_to("open/../open/cache")
    assert files.distrust_way(tmp_path / "link") == ""
    (tmp_path / "open").chmod(0o777)
    assert "open is writable" in files.distrust_way(tmp_path / "link")
    (tmp_path / "ring").symlink_to("ring")
    assert "too many symbolic links" in files.distrust_way(tmp_path / "ring" / "cache")
    if os.getuid() == 0:
        (tmp_path / "open").chmod(0o700)
        os.lchown(tmp_path / "link", 54321, 54321)
        assert "link belongs to another user" in files.distrust_way(tmp_path / "link")


def test_an_unsafe_way_is_neither_read_nor_written(root: Path) -> None:
    _entry(root)
    cache.write_record("notes", "one", {"a": 1})
    root.parent.chmod(0o777)
    assert cache.load(cache.entry_folder(root, KEY), KEY) is None
    assert cache.read_record("notes", "one") is None
    with pytest.raises(OSError, match="not safe to use: .* is writable by other users"):
        cache.prepare_root()


# ---- records -----------------------------------------------------------------------------------------------


FOREIGN = ['{"record": "other", "a": 1}', '{"a": 1}', '{"record": "one", "a": "' + "y" * (2 << 20) + '"}']


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1e999", "[" * 200_000, *FOREIGN])
def test_a_damaged_record_counts_as_absent(root: Path, text: str) -> None:
    path = cache.write_record("notes", "one", {"a": 1})
    assert cache.read_record("notes", "one") == {"a": 1}
    path.write_text(text)
    assert cache.read_record("notes", "one") is None


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_record_that_is_no_file_counts_as_absent(root: Path, make: Callable[[Path], object]) -> None:
    path = cache.write_record("notes", "one", {"a": 1})
    path.unlink()
    make(path)
    assert cache.read_record("notes", "one") is None


def test_exchanged_records_count_as_absent(root: Path) -> None:
    one, two = (cache.write_record("notes", name, {"a": name}) for name in ("one", "two"))
    one.rename(root / "aside")
    two.rename(one)
    (root / "aside").rename(two)
    assert cache.read_record("notes", "one") is cache.read_record("notes", "two") is None


def test_records_and_locks_are_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_RECORDS", 8)
    for number in range(40):
        with cache.one_at_a_time("notes", str(number), 1.0) as ours:
            assert ours
            path = cache.write_record("notes", str(number), {"a": number})
        os.utime(path, (number, number))
        if number > 0:
            assert cache.read_record("notes", "0") == {"a": 0}, "what is read often stays"
    assert len([*(root / "notes").iterdir()]) <= 8
    assert len({cache.lock_path(root, "notes", str(number)) for number in range(1000)}) <= 256
    assert [*(root / "locks").iterdir()]
    cache.clear_cache()
    assert not [*(root / "locks").iterdir()]


# ---- other processes ---------------------------------------------------------------------------------------


def test_clear_cache_leaves_what_others_use(root: Path) -> None:
    """A folder that is being built in, and a lock that is held; what a dead process left is removed."""
    program = """
import os, sys
from jax_cocktail import cache
with cache.build_folder(cache.prepare_root()) as folder, cache.one_at_a_time("notes", "one", 1.0):
    print(folder, flush=True)
    if not sys.stdin.readline():
        os._exit(1)
"""
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        cache.clear_cache()
        assert folder.is_dir() and [path.name for path in (root / "locks").iterdir()]
        other.stdin.close()  # and it dies
    assert other.returncode == 1 and folder.is_dir()
    cache.clear_cache()
    assert not folder.exists() and not [*(root / "locks").iterdir()]


def test_a_file_system_without_locks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(lock: object, **options: object) -> None:
        raise RuntimeError("no locks")

    cache.lock_path(root, "notes", "one").touch()
    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with cache.one_at_a_time("notes", "one", 1.0) as ours:
        assert ours
    entry = _entry(root)
    assert cache.load(entry, KEY) is not None
    cache.clear_cache()
    assert cache.load(entry, KEY) is None


# ---- the limit ---------------------------------------------------------------------------------------------


def test_eviction_is_rare(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All entries are looked at once in many builds, and the sum of their sizes never exceeds the limit."""
    looked = []
    evict = cache._evict
    monkeypatch.setattr(cache, "_evict", lambda *rest: looked.append(1) or evict(*rest))
    size, most = 10_000, 40
    for number in range(3 * most):
        key = f"{number:064x}"
        os.utime(_entry(root, key, bytes(size)) / cache.META, (number, number))
        cache.make_room(root, key, most * size)
        assert cache.load(cache.entry_folder(root, key), key) is not None
    kept = sorted(int(path.name, 16) for path in (root / "entries").iterdir())
    assert 0.7 * most < len(kept) <= most
    assert kept == [*range(3 * most - len(kept), 3 * most)], "the least recently used ones went"
    assert len(looked) <= 12


@pytest.mark.parametrize("text", ["", "x", "-1", "1" * 40, "1.5"])
def test_a_damaged_sum_is_counted_anew(root: Path, text: str) -> None:
    for number in range(4):
        _entry(root, f"{number:064x}", bytes(1000))
    (root / "usage").write_text(text)
    cache.make_room(root, f"{3:064x}", 3000)
    assert len([*(root / "entries").iterdir()]) < 4
