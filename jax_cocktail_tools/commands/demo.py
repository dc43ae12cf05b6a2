"""Compares benchmark models under stock XLA and under jax_cocktail: equal results and a table of times."""

from __future__ import annotations

import argparse
import functools
import sys

import jax

from jax_cocktail_tools.commands.progress import Bar, line
from jax_cocktail_tools.models import MODELS
from jax_cocktail_tools.models.compare import STEPS, Comparison, compare

DEFAULT = ("lstm", "seq2seq", "blockdrop")  # a loop, a data-dependent loop, and branches

HEADINGS = ("model", "batch", "captured", "stock ms", "ours ms", "ratio", "jit uses", "difference")
WIDTHS, LEFT = (10, 5, 8, 9, 9, 6, 9, 10), (0, 6)


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
    print(line(HEADINGS, WIDTHS, LEFT))
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
        print(line(cells(model.name, batch, row), WIDTHS, LEFT), flush=True)
        if not row.difference <= model.tolerance:
            wrong.append(f"{subject}: difference {row.difference:.1e} > {model.tolerance:.1e}")
    for text in wrong:
        print(f"WRONG RESULT: {text}", file=sys.stderr)
    return 1 if wrong else 0


def cells(name: str, batch: int, row: Comparison) -> tuple[str, ...]:
    """The texts of one table row."""
    times = (f"{row.stock * 1e3:.3f}", f"{row.ours * 1e3:.3f}", f"{row.ratio:.2f}")
    return (name, str(batch), row.captured, *times, row.choice, f"{row.difference:.1e}")
