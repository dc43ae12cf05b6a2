"""Command line: ``python -m jax_cocktail COMMAND``, or ``jax_cocktail COMMAND``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import app, logging
from absl.flags import argparse_flags

from jax_cocktail.errors import CocktailError
from jax_cocktail_tools.commands.problem import Problem

COMMANDS = {
    "demo": "Compare a few models under stock XLA and under jax_cocktail in a table.",
    "bench": "Time models under both, with intervals: a table, JSON and a page. Compare two such runs.",
    "explain": "Say how jax_cocktail compiles a function of a file.",
    "cache": "Show, check or empty the folder of built programs, plans and decisions.",
    "doctor": "Check what jax_cocktail needs on this machine, and say how to mend what is broken.",
}
_INTERRUPTED, _BROKEN_PIPE = 130, 141  # as shells say it


def run() -> None:
    """Entry point. It also accepts absl's own flags, such as ``--verbosity``."""
    logging.set_verbosity(logging.WARNING)  # jax logs every backend that it does not find
    app.run(main, argv=sys.argv, flags_parser=parse)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; ``argv[0]`` is the program."""
    parser = argparse_flags.ArgumentParser(
        prog="python -m jax_cocktail", description="A compiler for JAX programs with dynamic control flow."
    )
    _hide_flags_of_absl(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in argv[1:] if word in COMMANDS), "")
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        _hide_flags_of_absl(command)
        if name == chosen:  # jax takes a second to import, and not every command needs it
            _module(name).add_arguments(command)
    options: argparse.Namespace = parser.parse_args(argv[1:])
    return options


def _hide_flags_of_absl(parser: argparse.ArgumentParser) -> None:
    """They are accepted, but nobody looks for them in the help."""
    for action in parser._actions:
        if "--helpfull" in action.option_strings:
            action.help = argparse.SUPPRESS


def main(options: argparse.Namespace) -> int:
    """Runs a command and returns its exit status: 2 if it cannot do what it was asked for."""
    try:
        status = int(_module(options.command).main(options))
        sys.stdout.flush()
        return status
    except (Problem, CocktailError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at the end
        return _BROKEN_PIPE


def _module(command: str) -> Any:
    return importlib.import_module(f"jax_cocktail_tools.commands.{command}")

