"""Command line: ``python -m jax_cocktail demo``."""

from __future__ import annotations

import sys

from absl import app, logging

from jax_cocktail import demo


def run() -> None:
    """Entry point. It also accepts absl's own flags, such as ``--verbosity``."""
    logging.set_verbosity(logging.WARNING)  # jax logs every backend that it does not find
    app.run(demo.main, argv=sys.argv, flags_parser=demo.parse)


if __name__ == "__main__":
    run()
