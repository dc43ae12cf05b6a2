"""The demo: benchmark models under stock XLA and under jax_cocktail, equal results and a table of times."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import jax
from absl.flags import argparse_flags

from jax_cocktail.models import MODELS
from jax_cocktail.models.compare import Comparison, compare

DEFAULT = ("lstm", "seq2seq", "blockdrop")  # a loop, a data-dependent loop, and branches

HEADINGS = ("model", "batch", "captured", "stock ms", "ours ms", "ratio", "jit uses", "difference")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Command line to options; ``argv[0]`` is the program."""
    parser = argparse_flags.ArgumentParser(prog="python -m jax_cocktail", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("demo", help=__doc__, description=__doc__)
    command.add_argument("--model", nargs="+", choices=MODELS, metavar="NAME", help=", ".join(MODELS))
    command.add_argument("--batch", type=int, help="batch size (default: 1)")
    command.add_argument("--all", action="store_true", help="every model and every batch size")
    command.add_argument("--small", action="store_true", help="tiny sizes: a check, not a benchmark")
    command.add_argument("--seconds", type=float, default=2.0, help="time spent timing each row")
    return parser.parse_args(argv[1:])


def main(options: argparse.Namespace) -> int:
    """Run the demo; returns 1 if a result differs from stock XLA's by more than its model allows."""
    names = options.model or (tuple(MODELS) if options.all else DEFAULT)
    print(f"jax {jax.__version__} on {jax.default_backend()}; ratio = stock / ours, ours forced")
    print(line(HEADINGS))
    wrong = []
    for name in names:
        model = MODELS[name]
        batches = model.batches if options.all else (options.batch or 1,)
        for batch in batches:
            if batch not in model.batches:
                print(f"{name}: no batch {batch}; defined for {', '.join(map(str, model.batches))}")
                continue
            function, arguments = model.make(batch, small=options.small)
            row = compare(
                function, arguments, seconds=options.seconds, progress=progress(f"{name}, batch {batch}")
            )
            progress("")("")
            print(line(cells(name, batch, row)), flush=True)
            if not row.difference <= model.tolerance:
                wrong.append(
                    f"{name} (batch {batch}): difference {row.difference:.1e} > {model.tolerance:.1e}"
                )
    for text in wrong:
        print(f"WRONG RESULT: {text}", file=sys.stderr)
    return 1 if wrong else 0


def progress(subject: str) -> Callable[[str], None]:
    """A function that shows one line on a terminal, overwriting the last; elsewhere it shows nothing."""

    def show(step: str) -> None:
        if sys.stderr.isatty():
            text = f"{subject}: {step} ..." if step else ""
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    return show


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
