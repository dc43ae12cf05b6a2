"""Patterns without control flow: what stock XLA and jax_cocktail make of them."""
