"""A compiler for JAX programs with dynamic control flow. `jit` is a drop-in replacement for `jax.jit`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jax_cocktail.config import VERSION as __version__
from jax_cocktail.config import Options, options
from jax_cocktail.errors import (
    BuildError,
    BundleError,
    ChoiceError,
    CocktailError,
    CocktailWarning,
    RecursionTypeError,
    StalePlanError,
    StrictModeError,
    TimeLimitError,
    UnsupportedError,
    VerificationError,
)

if TYPE_CHECKING:
    from jax_cocktail.api import (
        CacheInfo,
        cache_info,
        clear_cache,
        explain,
        export,
        jit,
        load,
        load_bundle,
        replace_jit,
        save_bundle,
        trace,
        wait,
    )
    from jax_cocktail.bounded.while_loop import while_loop
    from jax_cocktail.recursion.trace import recursive
    from jax_cocktail.report import Report
    from jax_cocktail.timeline.trace import Trace

__all__ = [
    "BuildError",
    "BundleError",
    "CacheInfo",
    "ChoiceError",
    "CocktailError",
    "CocktailWarning",
    "Options",
    "RecursionTypeError",
    "Report",
    "StalePlanError",
    "StrictModeError",
    "TimeLimitError",
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
    "while_loop",
]

_API = "jax_cocktail.api"
_PLACES = {  # by name: the module that has it, imported at first use, since the compiler runs without jax
    **dict.fromkeys(("CacheInfo", "cache_info", "clear_cache", "explain", "export", "jit", "load"), _API),
    **dict.fromkeys(("replace_jit", "save_bundle", "trace", "wait"), _API),
    "Report": "jax_cocktail.report",
    "Trace": "jax_cocktail.timeline.trace",
    "load_bundle": "jax_cocktail.lowering.choice.bundle",
    "recursive": "jax_cocktail.recursion.trace",
    "while_loop": "jax_cocktail.bounded.while_loop",
}


def __getattr__(name: str) -> Any:
    """Imports on first use what needs jax, and what few need."""
    if name not in _PLACES:
        raise AttributeError(f"module 'jax_cocktail' has no attribute {name!r}")
    if name in ("recursive", "while_loop"):  # the API hides the frames of its implementation
        importlib.import_module(_API)
    # The API registers handlers for GPUs when it is imported, unless a bundle has brought some before.
    globals()[name] = value = getattr(importlib.import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
