"""Warnings: each once per cause, at a line of the user's program."""

from __future__ import annotations

import os
import re
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from jax_cocktail import cells
from jax_cocktail.errors import CocktailWarning
from jax_cocktail.memory import MEMORY

_PLACE = re.compile(r"(.+):(\d+)(?: \(|$)")
_HERE = os.path.abspath(__file__)

Line = tuple[str, int]  # a file and the number of a line


class _Local(threading.local):
    """Per thread: the line that this thread works for."""

    line: Line | None = None


_local = _Local()


@contextmanager
def at(place: Line | None) -> Iterator[None]:
    """Lets a thread that runs no line of the user's warn at this one."""
    outer, _local.line = _local.line, place
    try:
        yield
    finally:
        _local.line = outer


def warn(cause: tuple[str, str], text: str, where: str = "") -> None:
    """Warns once per cause.

    Args:
      cause: two texts; the second may be a place.
      text: says what happened and what to try.
      where: the place, ``file:line (function)``. Without one it is that of the cause, else the line that
        this thread runs of the user's program, or works for.
    """
    if cause in MEMORY.warned:
        return
    MEMORY.warned.keep(cause, None)
    if named := _PLACE.match(where or cause[1]):
        warnings.warn_explicit(text, CocktailWarning, cells.file_of(named[1]), int(named[2]))
    elif place := line() or _local.line:
        warnings.warn_explicit(text, CocktailWarning, *place)
    else:
        warnings.warn(text, CocktailWarning, stacklevel=2)


def line() -> Line | None:
    """The innermost line of this thread that is neither ours nor JAX's nor Python's own."""
    modules = (sys.modules.get(name) for name in ("jax", "jaxlib", "jax_cocktail_tools", "threading"))
    files = [_HERE, *(getattr(module, "__file__", None) or _HERE for module in modules)]
    *packages, python = (os.path.dirname(os.path.abspath(file)) + os.sep for file in files)
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        of_python = os.path.dirname(file) + os.sep == python or file.startswith("<frozen")
        if not (of_python or file.startswith(tuple(packages))):
            return file, frame.f_lineno
        frame = frame.f_back
    return None
