"""Command line: ``python -m jax_cocktail COMMAND``, or ``jax_cocktail COMMAND``."""

from jax_cocktail_tools.command_line import run as run

if __name__ == "__main__":
    run()
