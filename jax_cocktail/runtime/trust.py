"""Decides which machine code this process runs.

A call carries a binary, how it is launched, its signature, and a digest of them all. The handlers run it if
the digest fits and is permitted: this process compiled the call, the cache folder of this user records it, or
the user trusts it (`trust`). They compare the buffers of every call with the signature, so a module that was
changed cannot make a program write out of bounds. `common_src/runtime_trust.h` is their part of this."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from jax_cocktail import cache

# What `trust` takes.
Trust = bool | bytes | bytearray | memoryview | str | os.PathLike[str] | Iterable["Trust"]
Buffer = tuple[str, Sequence[int]]  # the name of the dtype, and the shape

# XLA_FFI_DataType by names of dtypes.
DTYPES = {
    "bool": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
    "bfloat16": 16,
}
_FOLDER = "calls"
_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def signature(
    operands: Sequence[Buffer], results: Sequence[Buffer], aliases: Sequence[tuple[int, int]]
) -> tuple[int, ...]:
    """The types that a program was compiled for, as the handlers read them (runtime_trust.h).
    `aliases`: (operand, result) pairs that share memory."""
    numbers = [len(operands), len(results), len(aliases)]
    for dtype, shape in (*operands, *results):
        numbers += [DTYPES[dtype], len(shape), *shape]
    for pair in aliases:
        numbers += pair
    return tuple(numbers)


def digest_of(launch: Sequence[int], signed: Sequence[int], binary: str, forms: Sequence[int] = ()) -> str:
    """The digest of a call. `launch`: how the binary is launched; `signed`: its `signature`; `binary`: the
    digest of the binary; `forms`: see `utask.forms`."""
    digest = hashlib.sha256()
    for numbers in (launch, signed):
        digest.update(np.asarray(numbers, "<i8").tobytes())
    digest.update(binary.encode())
    digest.update(np.asarray(forms, "<i8").tobytes())
    return digest.hexdigest()


# ---- permission --------------------------------------------------------------------------------------------

REFUSED, TRUSTED, COMPILED_HERE = 0, 1, 2  # enum Permission
_compiled: set[str] = set()
_trusted: set[str] = set()
_everything = False


def admit(digest: str, elsewhere: bool = True) -> None:
    """Permits a call that this process has compiled, here and, if `elsewhere`, in other processes with this
    cache folder."""
    if digest not in _compiled:
        _compiled.add(digest)
        if elsewhere and cache.read_record(_FOLDER, digest) is None:
            with suppress(OSError):  # then only here
                cache.write_record(_FOLDER, digest, {})


def permission(digest: str) -> int:
    """The permission of the call with this digest to run."""
    if digest in _compiled:
        return COMPILED_HERE
    known = _everything or digest in _trusted or cache.read_record(_FOLDER, digest) is not None
    return TRUSTED if known else REFUSED


def trust(what: Trust) -> None:
    """Permits calls; see `jax_cocktail.load`. Raises OSError if a file cannot be read, or TypeError."""
    global _everything
    if isinstance(what, bool):
        _everything = _everything or what
    elif isinstance(what, str) and _DIGEST.fullmatch(what.encode()):
        _trusted.add(what)
    elif isinstance(what, bytes | bytearray | memoryview):
        _trusted.update(_named(bytes(what)))
    elif isinstance(what, str | os.PathLike):
        _trusted.update(_named(b"\n".join(_contents(what))))
    elif isinstance(what, Iterable):
        for each in what:
            trust(each)
    else:
        raise TypeError(
            f"trust must be True, False, bytes, a path, a digest, or several of these, not {what!r}"
        )


def _named(data: bytes) -> set[str]:
    """The digests in an exported module, which contains them as text; none if stock XLA was faster."""
    return {match.decode() for match in _DIGEST.findall(data)}


def _contents(place: str | os.PathLike[str]) -> Iterator[bytes]:
    if not os.fspath(place):  # an unset variable, not the current folder
        raise FileNotFoundError(errno.ENOENT, "trust names no file", place)
    path = Path(place)
    files = [path] if not path.is_dir() else sorted(file for file in path.iterdir() if file.is_file())
    return (file.read_bytes() for file in files)


# It must live as long as the process.
_PERMIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)(lambda digest: permission(digest.decode("ascii")))


def guard(library: ctypes.CDLL) -> None:
    """Makes the handlers of a library ask this module."""
    library.ck_set_permit(_PERMIT)
