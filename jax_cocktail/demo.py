"""Compares benchmark models under stock XLA and under jax_cocktail: equal results and a table of times."""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
from collections.abc import Sequence

import jax

from jax_cocktail.models import MODELS
from jax_cocktail.models.compare import STEPS, Comparison, compare

DEFAULT = ("lstm", "seq2seq", "blockdrop")  # a loop, a data-dependent loop, and branches
BAR_WIDTH = 20

HEADINGS = ("model", "batch", "captured", "stock ms", "ours ms", "ratio", "jit uses", "difference")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    command.add_argument("--model", nargs="+", choices=MODELS, metavar="NAME", help=", ".join(MODELS))
    command.add_argument("--batch", type=int, help="batch size (default: 1)")
    command.add_argument("--all", action="store_true", help="every model and every batch size")
    command.add_argument("--small", action="store_true", help="tiny sizes: a check, not a benchmark")
    command.add_argument("--seconds", type=float, default=2.0, help="time spent timing each row")


def main(options: argparse.Namespace) -> int:
    """Runs the demo. Returns 1 if a result differs from stock XLA's by more than its model's tolerance."""
    names = options.model or (tuple(MODELS) if options.all else DEFAULT)
    print(f"jax {jax.__version__} on {jax.default_backend()}; ratio = stock / ours, ours forced")
    print(line(HEADINGS))
    asked = [
        (MODELS[name], batch)
        for name in names
        for batch in (MODELS[name].batches if options.all else (options.batch or 1,))
    ]
    rows = [(model, batch) for model, batch in asked if batch in model.batches]
    for model, batch in asked:
        if batch not in model.batches:
            print(f"{model.name}: no batch {batch}; defined for {', '.join(map(str, model.batches))}")
    bar = Bar(len(rows) * len(STEPS))
    wrong = []
    for model, batch in rows:
        subject = f"{model.name} batch {batch}"
        function, arguments = model.make(batch, small=options.small)
        row = compare(
            function,
            arguments,
            seconds=options.seconds,
            progress=functools.partial(bar.show, subject),
        )
        bar.hide()
        print(line(cells(model.name, batch, row)), flush=True)
        if not row.difference <= model.tolerance:
            wrong.append(f"{subject}: difference {row.difference:.1e} > {model.tolerance:.1e}")
    for text in wrong:
        print(f"WRONG RESULT: {text}", file=sys.stderr)
    return 1 if wrong else 0


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


def cells(name: str, batch: int, row: Comparison) -> tuple[str, ...]:
    """The texts of one table row."""
    times = (f"{row.stock * 1e3:.3f}", f"{row.ours * 1e3:.3f}", f"{row.ratio:.2f}")
    return (name, str(batch), row.captured, *times, row.choice, f"{row.difference:.1e}")


def line(texts: Sequence[str]) -> str:
    """One line of the table, in columns."""
    widths = (10, 5, 8, 9, 9, 6, 9, 10)
    return "  ".join(
        text.ljust(width) if column in (0, 6) else text.rjust(width)
        for column, (text, width) in enumerate(zip(texts, widths, strict=True))
    )
