"""Runs a call and collects what it warns about."""

from __future__ import annotations

import warnings

import jax_cocktail


def told(wrapped, *arguments):
    """The result, and the one warning that came with it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = wrapped(*arguments)
    texts = [str(w.message) for w in caught if issubclass(w.category, jax_cocktail.CocktailWarning)]
    assert len(texts) == 1, texts
    return result, texts[0]


def silent(wrapped, *arguments):
    """The result, which must come without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", jax_cocktail.CocktailWarning)
        return wrapped(*arguments)
