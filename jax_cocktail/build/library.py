"""Loads shared objects, also where their own folder does not allow it, and checks what a compiler wrote."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jax_cocktail.errors import BuildError


def open_library(path: str | Path) -> ctypes.CDLL:
    """Loads a shared object, or, if its folder does not allow that, a copy in TMPDIR or in memory. Raises
    OSError."""
    try:
        return ctypes.CDLL(os.fspath(path))
    except OSError as error:
        problem = error
    for copy in (_in_temporary_folder, _in_memory):
        try:
            with copy(path) as place:
                return ctypes.CDLL(place)
        except OSError:
            continue
    raise problem


def provided(what: str, binary: bytes, build: Callable[[], str]) -> tuple[ctypes.CDLL, bytes]:
    """Loads a library of handlers, and returns its file too. `what`: its name in messages; `binary`: the file
    if there is one, else b"" and `build` makes it. Raises BuildError."""
    try:
        return (open_binary(binary), binary) if binary else open_built(build)
    except OSError as error:
        raise BuildError(
            f"{what} cannot be loaded ({error})",
            "empty the cache with jax_cocktail.clear_cache(), or choose another compiler with CXX",
        ) from error


def open_built(build: Callable[[], str]) -> tuple[ctypes.CDLL, bytes]:
    """Loads the shared object that `build` makes and returns the path of, and reads the file. If another
    process has cleared the cache in between, it is built again. Raises OSError."""
    path = build()
    try:
        return open_library(path), Path(path).read_bytes()
    except OSError:
        if os.path.exists(path):
            raise
    path = build()
    return open_library(path), Path(path).read_bytes()


def open_binary(binary: bytes) -> ctypes.CDLL:
    """Loads a shared object that is not in a file. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix="jax_cocktail-") as folder:
        path = Path(folder, "library.so")
        path.write_bytes(binary)
        return open_library(path)


@contextmanager
def _in_temporary_folder(path: str | Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="jax_cocktail-") as folder:
        yield shutil.copy(path, folder)


@contextmanager
def _in_memory(path: str | Path) -> Iterator[str]:
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no files in memory")
    handle = os.memfd_create("jax_cocktail")
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(Path(path).read_bytes())
        # The loader takes libraries of one path for the same, and file descriptors are reused: the number of
        # the file is spelled in front, as in runtime_load.h, in slashes that change nothing.
        number = f"{os.fstat(handle).st_ino:b}"
        slashes = "".join(".//" if bit == "1" else "./" for bit in reversed(number))
        yield f"/proc/self/fd/{slashes}{handle}"
    finally:
        os.close(handle)


def problem_with(path: Path, symbols: Sequence[str]) -> str:
    """The reason why a new shared object cannot be used, or "". It is loaded and unloaded again, so that
    damage to the file cannot affect this process later. `symbols`: what it must define."""
    if not _is_complete(path):
        return "it is not a complete shared object"
    try:
        library = open_library(path)
    except OSError as error:
        return str(error)
    missing = [name for name in symbols if not hasattr(library, name)]
    ctypes.CDLL(None).dlclose(ctypes.c_void_p(library._handle))
    return f"it does not define {', '.join(missing)}" if missing else ""


def _is_complete(path: Path) -> bool:
    """True if the file is in ELF format and as long as its segments say. Loading a shorter one kills this
    process."""
    data = path.read_bytes()
    try:
        magic, bits, order = struct.unpack_from("4sBB", data)
        if magic != b"\x7fELF" or bits != 2:
            return False
        end = "<" if order == 1 else ">"
        (table,) = struct.unpack_from(f"{end}Q", data, 32)
        size, count = struct.unpack_from(f"{end}HH", data, 54)
        segments = (struct.unpack_from(f"{end}IIQQQQ", data, table + k * size) for k in range(count))
        return all(offset + length <= len(data) for _, _, offset, _, _, length in segments)
    except struct.error:
        return False
