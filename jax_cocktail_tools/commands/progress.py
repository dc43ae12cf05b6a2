"""A progress bar, and tables of text."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

BAR_WIDTH = 20


class Bar:
    """A progress bar on standard error, shown only on a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = -1  # the first step shown is under way, none is done

    def show(self, subject: str, step: str) -> None:
        """Counts the previous step as done and shows the bar with the name of this one."""
        self._done += 1
        filled = BAR_WIDTH * self._done // self._total
        marks = "#" * filled + "." * (BAR_WIDTH - filled)
        self._write(f"[{marks}] {self._done}/{self._total} {subject}: {step}")

    def hide(self) -> None:
        """Clears the line for the next output."""
        self._write("")

    def _write(self, text: str) -> None:
        if sys.stderr.isatty():
            room = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{text[:room]}", end="", file=sys.stderr, flush=True)


def line(texts: Sequence[str], widths: Sequence[int], left: Sequence[int] = (0,)) -> str:
    """One line of a table. `left`: the columns that begin at the left."""
    columns = enumerate(zip(texts, widths, strict=True))
    padded = (text.ljust(width) if column in left else text.rjust(width) for column, (text, width) in columns)
    return "  ".join(padded).rstrip()
