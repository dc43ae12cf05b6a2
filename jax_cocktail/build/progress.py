"""A line on the terminal that tells what takes long. Nothing is written if there is no terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

EVERY_SECONDS = 0.2
PATIENCE_SECONDS = 1.0  # what is over sooner is not told


@contextmanager
def line(text: Callable[[], str]) -> Iterator[Callable[[], None]]:
    """Yields a function to be called now and then: it writes the text of the moment over that of the last.

    The line appears after a second and vanishes with the block.
    """
    stream, start, shown, on_terminal = sys.stderr, time.monotonic(), False, False
    with suppress(ValueError):  # it is closed
        on_terminal = stream is not None and stream.isatty()

    def write(told: str) -> None:
        with suppress(ValueError, OSError):  # it is closed, or nobody is at its end
            stream.write(f"\r\x1b[K{told}")
            stream.flush()

    def tell() -> None:
        nonlocal shown
        seconds = time.monotonic() - start
        if on_terminal and seconds >= PATIENCE_SECONDS and (what := text()):
            told = f"jax_cocktail: {what}, {seconds:.0f} s"
            write(told[: shutil.get_terminal_size().columns - 1])
            shown = True

    try:
        yield tell
    finally:
        if shown:
            write("")
