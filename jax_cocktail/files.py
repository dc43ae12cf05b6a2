"""Reads files that no other user can have written, from folders that no other user can exchange.

Everything that the cache folder contains is examined here before it is believed or loaded.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MOST_LINKS = 40  # as in the kernel


def distrust_way(path: Path) -> str:
    """The reason why another user could exchange or change the folder that `path` leads to, or "".

    It examines every folder and every symbolic link on the way. Once they are trusted, only this user and
    root can change what the path means, so there is no race between this check and a use of the path.
    """
    way, rest, links = Path("/"), [*path.absolute().parts[1:]], 0
    try:
        reason = _reason(way, way.stat(), ancestor=True)
        while rest and not reason:
            step = way / rest.pop(0)
            if step.name == "..":
                way = way.parent
                continue
            status = step.lstat()
            reason = _reason(step, status, ancestor=bool(rest))
            if not stat.S_ISLNK(status.st_mode):
                way = step
                continue
            links += 1
            if links > _MOST_LINKS:
                return f"{path} has too many symbolic links"
            target = Path(os.readlink(step))
            rest = [*(target.parts[1:] if target.is_absolute() else target.parts), *rest]
            way = Path("/") if target.is_absolute() else way
    except OSError as error:
        return f"{path} cannot be examined ({error.strerror})"
    return reason


def _reason(path: Path, status: os.stat_result, ancestor: bool = False) -> str:
    """The reason why another user could change `path`, or "". In an `ancestor` that has the sticky bit, such
    as /tmp, others can add files but not exchange ours. Who owns / can do everything anyway."""
    owners = {os.getuid(), 0}
    if ancestor:
        owners.add(Path("/").stat().st_uid)
    if status.st_uid not in owners:
        return f"{path} belongs to another user (uid {status.st_uid})"
    if stat.S_ISLNK(status.st_mode) or (ancestor and status.st_mode & stat.S_ISVTX):
        return ""
    others = stat.S_IWOTH if ancestor and _private_group(status) else stat.S_IWGRP | stat.S_IWOTH
    if status.st_mode & others:
        return f"{path} is writable by other users (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _private_group(status: os.stat_result) -> bool:
    """True if the group of a file is that of this user alone: many systems give it the user's number."""
    return status.st_gid == os.getgid() == os.getuid()


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A descriptor of a folder that no other user can write to. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _require(_reason(folder, os.fstat(handle)))
        yield handle
    finally:
        os.close(handle)


def read(folder: int, name: str, most: int) -> bytes:
    """A file of at most `most` bytes in an open folder.

    Raises:
      OSError: there is no such regular file, it is larger, or another user could have written it.
    """
    # O_NONBLOCK: to open a FIFO does not wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        _require(_reason(Path(name), status))
        _require("" if stat.S_ISREG(status.st_mode) else f"{name} is not a regular file")
        _require("" if status.st_size <= most else f"{name} has more than {most} bytes")
        return file.read(most)


def _require(problem: str) -> None:
    """Raises OSError if there is a problem."""
    if problem:
        raise OSError(errno.EPERM, problem)
