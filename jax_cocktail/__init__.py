"""A compiler for JAX programs with dynamic control flow. `jit` is a drop-in replacement for `jax.jit`."""

from __future__ import annotations

import importlib
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
    from jax_cocktail.report import Report

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


# The API registers handlers for GPUs when it is imported, unless a bundle has brought some before.
_ELSEWHERE = {"Report": "jax_cocktail.report", "load_bundle": "jax_cocktail.lowering.bundle"}


def __getattr__(name: str) -> Any:
    """Imports on first use what needs jax, for the compiler below runs without it, and what few need."""
    if name in _NEEDS_JAX or name == "Report":
        value = getattr(importlib.import_module(_ELSEWHERE.get(name, "jax_cocktail.api")), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'jax_cocktail' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
