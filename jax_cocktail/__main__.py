"""Command line: ``python -m jax_cocktail demo``."""

from __future__ import annotations

import sys

from absl import app, logging

from jax_cocktail import demo


def run() -> None:
    """Entry point; absl's own flags (``--verbosity`` and others) are understood too."""
    logging.set_verbosity(logging.WARNING)  # jax tells of every backend that it does not find
    app.run(demo.main, argv=sys.argv, flags_parser=demo.parse)


if __name__ == "__main__":
    run()
