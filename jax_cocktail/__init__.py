"""A compiler for JAX programs with dynamic control flow. `jit` is a drop-in replacement for `jax.jit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax_cocktail.config import VERSION as __version__
from jax_cocktail.config import Options, options
from jax_cocktail.errors import (
    BuildError,
    BundleError,
    CocktailError,
    CocktailWarning,
    RecursionTypeError,
    StalePlanError,
    StrictModeError,
    UnsupportedError,
    VerificationError,
)
from jax_cocktail.report import Report

if TYPE_CHECKING:
    from jax_cocktail.api import (
        CacheInfo,
        Trace,
        cache_info,
        clear_cache,
        explain,
        export,
        jit,
        load,
        load_bundle,
        recursive,
        replace_jit,
        save_bundle,
        trace,
        wait,
    )

__all__ = [
    "BuildError",
    "BundleError",
    "CacheInfo",
    "CocktailError",
    "CocktailWarning",
    "Options",
    "RecursionTypeError",
    "Report",
    "StalePlanError",
    "StrictModeError",
    "Trace",
    "UnsupportedError",
    "VerificationError",
    "__version__",
    "cache_info",
    "clear_cache",
    "explain",
    "export",
    "jit",
    "load",
    "load_bundle",
    "options",
    "recursive",
    "replace_jit",
    "save_bundle",
    "trace",
    "wait",
]

_NEEDS_JAX = frozenset(
    {
        "CacheInfo",
        "Trace",
        "cache_info",
        "clear_cache",
        "explain",
        "export",
        "jit",
        "load",
        "load_bundle",
        "recursive",
        "replace_jit",
        "save_bundle",
        "trace",
        "wait",
    }
)


def __getattr__(name: str) -> Any:
    """Imports the names that need jax on first use: the compiler below them runs without it."""
    if name in _NEEDS_JAX:
        from jax_cocktail import api

        value = getattr(api, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'jax_cocktail' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
