"""Command line: ``python -m jax_cocktail demo`` and ``python -m jax_cocktail cache``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from absl import app, logging
from absl.flags import argparse_flags

from jax_cocktail import cache_command


def run() -> None:
    """Entry point. It also accepts absl's own flags, such as ``--verbosity``."""
    logging.set_verbosity(logging.WARNING)  # jax logs every backend that it does not find
    app.run(main, argv=sys.argv, flags_parser=parse)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; ``argv[0]`` is the program."""
    parser = argparse_flags.ArgumentParser(prog="python -m jax_cocktail", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    about = cache_command.ABOUT
    cache_command.add_arguments(commands.add_parser("cache", help=about, description=about))
    if argv[1:2] != ["cache"]:  # it needs no jax, which takes a second to import
        from jax_cocktail import demo

        demo.add_arguments(commands.add_parser("demo", help=demo.__doc__, description=demo.__doc__))
    options: argparse.Namespace = parser.parse_args(argv[1:])
    return options


def main(options: argparse.Namespace) -> int:
    """Runs a command and returns its exit status."""
    if options.command == "cache":
        return cache_command.main(options)
    from jax_cocktail import demo

    return demo.main(options)


if __name__ == "__main__":
    run()
