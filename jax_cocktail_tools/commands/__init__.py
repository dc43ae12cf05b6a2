"""The commands of ``python -m jax_cocktail``, a module each: its arguments, and what runs.

A module is imported only if its command is asked for: `cache` needs no jax, and `doctor` works without it.
"""
